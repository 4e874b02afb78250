"""A site's agent in virtual time: it looks at its workers and renews its site's lease."""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import orjson

from orchestrator.membership.inventory import (
    RENEW_TIMEOUT_S,
    START_S,
    WATCH_S,
    Assigned,
    Description,
    Order,
    Phase,
    Place,
    Remove,
    Renewals,
    SiteInventory,
)
from orchestrator.membership.reports import Report, read_report
from orchestrator.virtual.gateway import VirtualGateway
from orchestrator.virtual.network import Network
from orchestrator.virtual.process import ClockError, Process
from orchestrator.virtual.schedule import Schedule
from orchestrator.virtual.setup import Setup
from orchestrator.virtual.stores.store import VirtualStore
from orchestrator.virtual.worker import VirtualWorker
from workers.tiers.holdings import AWAY

ADDRESS = "virtual:1"  # of everything: calls go to the processes themselves


class VirtualAgent:
    """What `live.agent` is to a real site; `boot` begins a life, which adopts what runs.

    `gateways` are the gateways of now, in their places.
    """

    def __init__(
        self,
        site: str,
        setup: Setup,
        schedule: Schedule,
        network: Network,
        workers: Sequence[VirtualWorker],
        stores: Sequence[VirtualStore],
        gateways: Callable[[], Sequence[VirtualGateway]],
    ) -> None:
        name = f"agent-{site}"
        self.process = Process(name, site, schedule, setup.clocks.get(name, ClockError()))
        self.site = site
        self._network = network
        self._workers = {worker.spec.name: worker for worker in workers}
        self._stores = stores
        self._gateways = gateways
        self._places = setup.gateways
        self._placed: set[str] = set()

    def boot(self) -> None:
        self.process.start()
        self._inventory = SiteInventory(
            self.site,
            [
                Assigned(name=spec.name, pool=spec.pool, roles=tuple(sorted(spec.roles)))
                for spec in (worker.spec for worker in self._workers.values())
            ],
            front=ADDRESS,
            epoch=self.process.life,
            start_s=START_S,
            now=self.process.time(),
        )
        self._carry_out(self._inventory.begin(self._placed, None))
        self._renewals = [Renewals() for _ in range(self._places)]
        self._asked = [0] * self._places  # renewals sent, by the gateway's place
        self._answered = [0] * self._places  # the newest that has an outcome
        # Versions of the stores that each gateway has.
        self._known: list[dict[str, str]] = [{} for _ in range(self._places)]
        self._watch()
        for place in range(self._places):
            self._renew(place)

    def _watch(self) -> None:
        now = self.process.time()
        for name in self._inventory.watched:
            worker = self._workers[name]
            if worker.process.alive and not worker.process.frozen:
                self._carry_out(self._inventory.described(name, _serving(worker), now))
            else:
                self._carry_out(self._inventory.unanswered(name, None, now))
        self.process.after(WATCH_S, self._watch)

    def _carry_out(self, orders: Iterable[Order]) -> None:
        for order in orders:
            worker = self._workers[order.worker]
            if isinstance(order, Place):
                self._placed.add(order.worker)
                worker.boot()
                self._inventory.placed(order.worker, ADDRESS, ADDRESS)
            elif isinstance(order, Remove):
                worker.process.kill()

    # ------------------------------------------------------------ the lease

    def _renew(self, place: int) -> None:
        self._asked[place] += 1
        number = self._asked[place]
        stores = [self._told(store, self._known[place]) for store in self._stores]
        report = orjson.dumps(
            self._inventory.report(self._renewals[place].state) | {"stores": stores}
        )
        gateway = self._gateways()[place]
        self._network.send(
            self.process, gateway.process, self._arrive, place, number, gateway, report
        )
        self.process.after(RENEW_TIMEOUT_S, self._outcome, place, number, False)

    def _told(self, store: VirtualStore, known: dict[str, str]) -> dict[str, Any]:
        pool, process = store.spec.pool, store.process
        since = known.get(pool, "")
        answers = process.alive and not process.frozen
        told = store.blocks.holdings(bytes.fromhex(since)) if answers else AWAY
        return {"pool": pool, "since": since, "account": None, **told.told_on()}

    def _arrive(self, place: int, number: int, gateway: VirtualGateway, report: bytes) -> None:
        if gateway.process.alive:
            gateway.process.do(self._take, place, number, gateway, report)
        else:
            self._answer(place, number, gateway, None)

    def _take(self, place: int, number: int, gateway: VirtualGateway, report: bytes) -> None:
        self._answer(place, number, gateway, gateway.renew(_read(report)))

    def _answer(
        self, place: int, number: int, gateway: VirtualGateway, known: dict[str, str] | None
    ) -> None:
        """`known`: the versions of stores that the gateway has; None: it refused."""
        life = self.process.life
        self._network.send(gateway.process, self.process, self._heard, life, place, number, known)

    def _heard(self, life: int, place: int, number: int, known: dict[str, str] | None) -> None:
        if life == self.process.life:
            if known is not None and number > self._answered[place]:
                self._known[place] = known
            self.process.do(self._outcome, place, number, known is not None)

    def _outcome(self, place: int, number: int, renewed: bool) -> None:
        if number <= self._answered[place]:
            return  # late: it was taken for failed
        self._answered[place] = number
        renewals = self._renewals[place]
        wait_s = renewals.renewed() if renewed else renewals.failed("refused, or no answer")
        self.process.after(wait_s, self._renew, place)


def _serving(worker: VirtualWorker) -> Description:
    return Description(
        http=ADDRESS,
        kv=ADDRESS,
        phase=Phase.SERVING,
        reason=None,
        draining=False,
        info=None,
    )


@lru_cache(maxsize=256)
def _read(report: bytes) -> Report:
    """What stands in a report; an agent says the same most of the time."""
    return read_report(orjson.loads(report))
