"""The live driver: gives the pure core a clock and sockets, and its answers to the clients."""

import asyncio
import dataclasses
import logging
import secrets
import ssl
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from orchestrator.lifecycle.machine import Machine
from orchestrator.lifecycle.request import Request, StopWatch
from orchestrator.lifecycle.timeline import Timeline, timeline
from orchestrator.live.channel import Place, WorkerChannel, close_all
from orchestrator.live.openai.service import ModelCard, Tokenizer, Told
from orchestrator.membership.members import Members
from orchestrator.membership.reach import CameUp, Lost, News
from orchestrator.membership.reports import StoreReport
from orchestrator.state.actions import Action, Emit, Fail, Failure, Finish, Send, Summary
from orchestrator.state.config import CoreConfig
from orchestrator.state.events import Arrived, ClientGone, Event, LinkTold, StoreHolds, Ticked
from workers.api.messages import Load, Role, SendKV, UpMessage

log = logging.getLogger(__name__)

# At the end: how long the last stops may take to be delivered.
FAREWELL_S = 2.0
SHUTTING_DOWN = "the service is shutting down"
FORGOTTEN = "the request met a defect of the gateway"


# Told of each event: when it came, what it was, what the machine answered.
Record = Callable[[float, Event, Sequence[Action]], None]


class Metrics(Protocol):
    """What the driver reports beside the requests."""

    def load(self, site: str, load: Load) -> None: ...
    def store(self, site: str, pool: str, account: dict[str, Any] | None) -> None: ...


class Watcher(Protocol):
    """Told of each request's end and all that happened in it; None: it was refused as it came.

    `end` None: the client left. `trace`: its client's traceparent, if it gave one.
    """

    def ended(
        self, told: Timeline | None, end: Finish | Fail | None, trace: str | None
    ) -> None: ...


class Addresses(Protocol):
    """Where planes of workers are seen from a site, and who emulates a line."""

    def kv(self, worker: str, seen_from: str) -> str: ...
    def emulator(self, a: str, b: str) -> str | None: ...


class Driver:
    """Implements `openai.service.Service` over the machine and the workers' channels.

    `record`, when given, is told every event with its time and what the machine answered: a
    fresh machine that is fed the events gives the same actions. `finished` is told of each request
    that ended well. With `tls` it dials workers.
    """

    def __init__(
        self,
        config: CoreConfig,
        *,
        model: ModelCard,
        tokenizer: Tokenizer,
        stop_watch: Callable[[tuple[str, ...]], StopWatch],
        addresses: Addresses,
        secret: str,
        metrics: Metrics,
        needed: frozenset[str],
        sites: Sequence[str] = (),
        record: Record | None = None,
        finished: Callable[[Summary], None] = lambda summary: None,
        watchers: Sequence[Watcher] = (),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.config = config
        self.model = model
        self.tokenizer = tokenizer
        self.machine = Machine(config, stop_watch)
        self.members = Members(needed, sites)
        self.channels: dict[str, WorkerChannel] = {}  # of every member
        self._addresses = addresses
        self._secret = secret
        self._tls = tls
        self._metrics = metrics
        self._record = record
        self._finished = finished
        self._watchers = watchers
        self._clients: dict[str, Told] = {}
        # As the core has them, until their end was told, and their clients' traceparents.
        self._open: dict[str, tuple[Request, str | None]] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._timer_due: float | None = None  # uvloop's handles do not all know their time
        self._ids = 0
        self._closing = False

    # ------------------------------------------------------------ what the HTTP surface asks

    def ready(self) -> str | None:
        """Why no request can be served now; None: they can."""
        return SHUTTING_DOWN if self._closing else self.members.why_not_ready()

    def submit(self, arrived: Arrived, told: Told, trace: str | None = None) -> None:
        self._clients[arrived.request] = told
        self.tell(arrived)
        request = self.machine.requests.get(arrived.request)
        if request is not None:
            self._open[arrived.request] = request, trace

    def leave(self, request: str) -> None:
        """Cancel on every leg what has not ended."""
        if self._clients.pop(request, None) is not None:
            self.tell(ClientGone(request=request))
            self._ended(request, None)

    def route(self, request: str) -> str | None:
        """The route that was chosen for an open request."""
        open_ = self.machine.requests.get(request)
        return None if open_ is None or open_.decision is None else open_.decision.route

    def new_request_id(self) -> str:
        self._ids += 1
        return f"{self.config.gateway}-{self._ids:08d}"

    def status(self) -> dict[str, Any]:
        """Sites, workers, links and requests as they are now."""
        world = self.machine.ctx.world
        return {
            "model": self.model.name,
            "gateway": {"name": self.config.gateway, "site": self.config.gateway_site},
            "ready": self.ready() is None,
            "why_not": self.ready(),
            "requests": {"open": len(self.machine.requests), "queued": self.machine.queued},
            "tasks": len(asyncio.all_tasks()),
            "sites": [
                {"name": site, "state": self.members.site_state(site)}
                for site in self.members.sites
            ],
            "workers": [self._worker_status(name) for name in sorted(self.members.by_name)],
            "links": [self._link_status(ends) for ends in sorted(world.links)],
            "counts": dict(sorted(self.machine.ctx.counts.items())),
        }

    def _worker_status(self, name: str) -> dict[str, Any]:
        member = self.members.by_name[name]
        return {
            "name": name,
            "site": member.site,
            "pool": member.pool,
            "roles": sorted(member.roles),
            "state": member.state,
            "pid": member.hello.pid if member.hello else None,
            "fingerprint": member.hello.fingerprint if member.hello else None,
            "control": self.channels[name].place.control,
            "load": dataclasses.asdict(member.load) if member.load else None,
        }

    def _link_status(self, ends: tuple[str, str]) -> dict[str, Any]:
        """One direction of a link, as the router believes it is now; `between` is from and to."""
        link, now = self.machine.ctx.world.links[ends], self._loop.time()
        seen = link.seen_goodput
        return {
            "between": list(ends),
            "bandwidth_bytes_per_s": link.told_bytes_per_s,
            "goodput_bytes_per_s": link.goodput_bytes_per_s(now),
            "measured_s_ago": None if seen is None else now - seen.at,
            "rtt_s": link.rtt_s(now),
            "loss": link.loss,
            "queue_bytes": round(link.waiting_bytes(now)),
            "emulator": self._addresses.emulator(*ends),
        }

    # ------------------------------------------------------------ workers

    def join(self, worker: str, site: str, pool: str, roles: frozenset[Role], place: Place) -> None:
        """A worker that an agent reports; harmless when it is known at this place already."""
        if not self.members.join(worker, site, pool, roles):
            self.channels[worker].place = place
            self._tell_all(self.members.reported(worker, roles))
            return
        self.channels[worker] = WorkerChannel(
            worker,
            place,
            site=site,
            gateway=self.config.gateway,
            secret=self._secret,
            tls=self._tls,
            unreachable_s=self.config.deadlines.silence,
            listener=self,
        )

    def drain(self, worker: str) -> None:
        """No new legs for this worker."""
        self._tell_all(self.members.drain(worker))

    def revive(self, worker: str) -> None:
        """A drained worker may have new legs again."""
        self._tell_all(self.members.revive(worker))

    def stand(self, site: str, *, drained: bool) -> None:
        """A site is to have no workers, or to have them again: for those who look."""
        self.members.stand(site, drained=drained)

    def give_roles(self, worker: str, roles: frozenset[Role]) -> None:
        """New legs of this worker are of these roles."""
        self._tell_all(self.members.give_roles(worker, roles))

    async def remove(self, worker: str) -> None:
        """The worker has left the deployment."""
        channel = self.channels.pop(worker, None)
        if channel is not None:
            self._tell_all(self.members.remove(worker))
            await channel.close()

    def line(self, site_a: str, site_b: str, rtt_s: float, bytes_per_s: float) -> None:
        """There is a line between two sites, and the topology says this of it."""
        self.tell(LinkTold(site_a=site_a, site_b=site_b, rtt_s=rtt_s, bytes_per_s=bytes_per_s))

    def store(self, site: str, told: StoreReport, news: StoreHolds | None) -> None:
        """A pool's store has told of itself; None: it holds what it held before."""
        self._metrics.store(site, told.pool, told.account)
        if news is not None:
            self.tell(news)

    async def close(self) -> None:
        """Cancel every request, deliver the last stops, close the channels."""
        self._closing = True
        for request, client in list(self._clients.items()):
            client(Fail(request=request, failure=Failure.UNAVAILABLE, message=SHUTTING_DOWN))
            self.leave(request)
        channels = list(self.channels.values())
        await asyncio.gather(*(channel.settled(FAREWELL_S) for channel in channels))
        await close_all(channels)
        if self._timer is not None:
            self._timer.cancel()

    # ------------------------------------------------------------ what channels tell

    def learn(self, worker: str, news: News) -> None:
        if isinstance(news, CameUp):
            log.info("worker up", extra={"worker": worker, "pid": news.hello.pid})
        elif isinstance(news, Lost):
            log.warning("worker lost", extra={"worker": worker, "reason": news.reason})
        self._tell_all(self.members.learn(worker, news))

    def heard(self, worker: str, messages: list[UpMessage]) -> None:
        for message in messages:
            if isinstance(message, Load):
                member = self.members.by_name[worker]
                self._metrics.load(member.site, message)
        self._tell_all(self.members.heard(worker, messages))

    # ------------------------------------------------------------ the core

    def tell(self, event: Event) -> None:
        """Tell the machine what happened now, and do what it answers."""
        self._tell_all((event,))

    def _tell_all(self, events: Iterable[Event]) -> None:
        now = self._loop.time()
        for event in events:
            self._handle(event, now)
        self._set_timer()

    def _handle(self, event: Event, now: float) -> None:
        forgotten: list[Action] = []
        try:
            actions = self.machine.handle(event, now)
        except Exception:
            # A defect must not take the other requests with it, nor the stream that told us.
            log.exception("the core failed", extra={"kind": type(event).__name__})
            actions = self.machine.abandon()
            forgotten = self._forgotten(actions)
        if self._record is not None:
            self._record(now, event, actions)
        for action in (*actions, *forgotten) if forgotten else actions:
            if isinstance(action, Emit):
                client = self._clients.get(action.request)
                if client is not None:
                    client(action)
            else:
                self._act(action)

    def _forgotten(self, actions: Sequence[Action]) -> list[Action]:
        """A client whose request the core no longer has must be told of its end."""
        told = {action.request for action in actions if isinstance(action, Finish | Fail)}
        return [
            Fail(request=request, failure=Failure.INTERNAL, message=FORGOTTEN)
            for request in self._clients.keys() - self.machine.requests.keys() - told
        ]

    def _act(self, action: Send | Finish | Fail) -> None:
        if isinstance(action, Send):
            self._send(action)
            return
        if isinstance(action, Finish):
            self._finished(action.summary)
        client = self._clients.pop(action.request, None)
        if client is not None:
            self._ended(action.request, action)
            client(action)

    def _ended(self, name: str, end: Finish | Fail | None) -> None:
        request, trace = self._open.pop(name, (None, None))
        told = None if request is None else timeline(request, self._loop.time())
        for watcher in self._watchers:
            watcher.ended(told, end, trace)

    def _send(self, action: Send) -> None:
        worker, message = action.worker, action.message
        if not self.members.deliverable(worker, message):
            return
        if isinstance(message, SendKV) and message.to_worker != worker:
            site = self.members.by_name[worker].site
            address = self._addresses.kv(message.to_worker, seen_from=site)
            message = dataclasses.replace(message, address=address)
        self.channels[worker].send(message)

    def _set_timer(self) -> None:
        due = self.machine.next_deadline()
        if due == self._timer_due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = None if due is None else self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = self._timer_due = None
        self.tell(Ticked())


def new_gateway_name() -> str:
    """A name no other gateway has: request ids begin with it."""
    return f"gw-{secrets.token_hex(4)}"
