"""A site's agent in virtual time: it looks at its workers and renews its site's lease."""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

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
from orchestrator.virtual.worker import VirtualWorker

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
        gateways: Callable[[], Sequence[VirtualGateway]],
    ) -> None:
        name = f"agent-{site}"
        self.process = Process(name, site, schedule, setup.clocks.get(name, ClockError()))
        self.site = site
        self._network = network
        self._workers = {worker.spec.name: worker for worker in workers}
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
        report = orjson.dumps(self._inventory.report(self._renewals[place].state))
        gateway = self._gateways()[place]
        self._network.send(
            self.process, gateway.process, self._arrive, place, number, gateway, report
        )
        self.process.after(RENEW_TIMEOUT_S, self._outcome, place, number, False)

    def _arrive(self, place: int, number: int, gateway: VirtualGateway, report: bytes) -> None:
        if gateway.process.alive:
            gateway.process.do(self._take, place, number, gateway, report)
        else:
            self._answer(place, number, gateway, False)

    def _take(self, place: int, number: int, gateway: VirtualGateway, report: bytes) -> None:
        renewed = gateway.renew(_read(report))
        self._answer(place, number, gateway, renewed)

    def _answer(self, place: int, number: int, gateway: VirtualGateway, renewed: bool) -> None:
        life = self.process.life
        self._network.send(gateway.process, self.process, self._heard, life, place, number, renewed)

    def _heard(self, life: int, place: int, number: int, renewed: bool) -> None:
        if life == self.process.life:
            self.process.do(self._outcome, place, number, renewed)

    def _outcome(self, place: int, number: int, renewed: bool) -> None:
        if number <= self._answered[place]:
            return  # late: it was taken for failed
        self._answered[place] = number
        renewals = self._renewals[place]
        wait_s = renewals.renewed() if renewed else renewals.failed("refused, or no answer")
        self.process.after(wait_s, self._renew, place)


def _serving(worker: VirtualWorker) -> Description:
    return Description(
        roles=tuple(sorted(worker.spec.roles)),
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
