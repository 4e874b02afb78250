"""The live driver: gives the pure core a clock and sockets, and its answers to the clients."""

import asyncio
import dataclasses
import logging
import secrets
from collections.abc import Callable
from typing import Any, Protocol, Self

from orchestrator.lifecycle.machine import Machine
from orchestrator.lifecycle.request import StopWatch
from orchestrator.live.channel import Hello, Place, WorkerChannel, close_all
from orchestrator.live.openai.service import ModelCard, Tokenizer
from orchestrator.state.actions import Action, Emit, Fail, Failure, Finish, Send
from orchestrator.state.config import CoreConfig
from orchestrator.state.events import (
    Arrived,
    ClientGone,
    Event,
    Heard,
    LinkMeasured,
    Reconnected,
    Ticked,
    WorkerDraining,
    WorkerLost,
    WorkerReturned,
    WorkerUp,
)
from workers.api.messages import Load, Role, SendKV, Stop, UpMessage

log = logging.getLogger(__name__)

# At the end: how long the last stops may take to be delivered.
FAREWELL_S = 2.0
SHUTTING_DOWN = "the service is shutting down"
FORGOTTEN = "the request met a defect of the gateway"


class Metrics(Protocol):
    """What the driver reports beside the requests."""

    def load(self, worker: str, site: str, pool: str, load: Load) -> None: ...
    def forget(self, worker: str) -> None: ...


class Addresses(Protocol):
    """Where planes of workers are seen from a site."""

    def kv(self, worker: str, seen_from: str) -> str: ...


@dataclasses.dataclass(slots=True)
class Member:
    """A worker of the deployment as this gateway knows it."""

    site: str
    pool: str
    roles: frozenset[Role]
    channel: WorkerChannel
    hello: Hello | None = None  # None: not up
    load: Load | None = None
    draining: bool = False


class ClientStream:
    """One request's actions, in order; see `openai.service.Submission`."""

    def __init__(self, driver: "Driver", arrived: Arrived) -> None:
        self._driver = driver
        self._arrived = arrived
        self._queue: asyncio.Queue[Emit | Finish | Fail] = asyncio.Queue()
        self._begun = False
        self._over = False

    def put(self, action: Emit | Finish | Fail) -> None:
        self._queue.put_nowait(action)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Emit | Finish | Fail:
        if self._over:
            raise StopAsyncIteration
        if not self._begun:
            self._begun = True
            self._driver.begin(self._arrived, self)
        action = await self._queue.get()
        self._over = not isinstance(action, Emit)
        return action

    async def aclose(self) -> None:
        """Cancel on every leg what has not ended."""
        if self._begun and not self._over:
            self._over = True
            self._driver.leave(self._arrived.request)


class Driver:
    """Implements `openai.service.Service` over the machine and the workers' channels.

    `record`, when given, is told every event with its time, before the machine is: fed to a
    fresh machine they give the same actions.
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
        record: Callable[[float, Event], None] | None = None,
    ) -> None:
        self.config = config
        self.model = model
        self.tokenizer = tokenizer
        self.machine = Machine(config, stop_watch)
        self.members: dict[str, Member] = {}
        self._addresses = addresses
        self._secret = secret
        self._metrics = metrics
        self._awaited = set(needed)  # of the topology's workers, those that never were up yet
        self._record = record
        self._clients: dict[str, ClientStream] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._timer_due: float | None = None  # uvloop's handles do not all know their time
        self._ids = 0
        self._closing = False

    # ------------------------------------------------------------ what the HTTP surface asks

    def ready(self) -> str | None:
        """Ready once every worker of the topology has been up, and while one of them is.

        After that any live worker may serve, whatever its role: the core knows which can.
        """
        if self._closing:
            return SHUTTING_DOWN
        if self._awaited:
            return f"waiting for workers: {', '.join(sorted(self._awaited))}"
        if not any(m.hello is not None and not m.draining for m in self.members.values()):
            return "no worker is up"
        return None

    def submit(self, arrived: Arrived) -> ClientStream:
        return ClientStream(self, arrived)

    def new_request_id(self) -> str:
        self._ids += 1
        return f"{self.config.gateway}-{self._ids:08d}"

    def status(self) -> dict[str, Any]:
        """Workers, links and requests as they are now."""
        world = self.machine.ctx.world
        return {
            "model": self.model.name,
            "gateway": {"name": self.config.gateway, "site": self.config.gateway_site},
            "ready": self.ready() is None,
            "why_not": self.ready(),
            "requests": {"open": len(self.machine.requests), "queued": self.machine.queued},
            "workers": [self._worker_status(name) for name in sorted(self.members)],
            "links": [
                {
                    "between": sorted(pair),
                    "rtt_s": link.rtt_s,
                    "goodput_bytes_per_s": link.goodput_bytes_per_s,
                    "queue_bytes": link.queue_bytes,
                }
                for pair, link in sorted(world.links.items(), key=lambda item: sorted(item[0]))
            ],
            "counts": dict(sorted(self.machine.ctx.counts.items())),
        }

    def _worker_status(self, name: str) -> dict[str, Any]:
        member = self.members[name]
        state = "draining" if member.draining else "up" if member.hello else "down"
        return {
            "name": name,
            "site": member.site,
            "pool": member.pool,
            "roles": sorted(member.roles),
            "state": state,
            "pid": member.hello.pid if member.hello else None,
            "control": member.channel.place.control,
            "load": dataclasses.asdict(member.load) if member.load else None,
        }

    # ------------------------------------------------------------ clients

    def begin(self, arrived: Arrived, client: ClientStream) -> None:
        self._clients[arrived.request] = client
        self.tell(arrived)

    def leave(self, request: str) -> None:
        self._clients.pop(request, None)
        self.tell(ClientGone(request=request))

    # ------------------------------------------------------------ workers

    def join(self, worker: str, site: str, pool: str, roles: frozenset[Role], place: Place) -> None:
        """A worker that an agent reports; harmless when it is known at this place already."""
        known = self.members.get(worker)
        if known is not None:
            known.channel.place = place
            return
        channel = WorkerChannel(
            worker,
            place,
            gateway=self.config.gateway,
            secret=self._secret,
            unreachable_s=self.config.deadlines.silence,
            listener=self,
        )
        self.members[worker] = Member(site=site, pool=pool, roles=roles, channel=channel)

    def drain(self, worker: str) -> None:
        """No new legs for this worker."""
        member = self.members.get(worker)
        if member is not None and not member.draining:
            member.draining = True
            self.tell(WorkerDraining(worker=worker))

    def revive(self, worker: str) -> None:
        """A drained worker may have new legs again: its site's lease was renewed."""
        member = self.members.get(worker)
        if member is not None and member.draining:
            member.draining = False
            if member.hello is not None:
                self.tell(WorkerReturned(worker=worker))

    async def remove(self, worker: str) -> None:
        """The worker has left the deployment."""
        member = self.members.pop(worker, None)
        if member is not None:
            self.tell(WorkerLost(worker=worker, reason="it left"))
            self._metrics.forget(worker)
            await member.channel.close()

    def measured(self, site_a: str, site_b: str, rtt_s: float, goodput_bytes_per_s: float) -> None:
        self.tell(
            LinkMeasured(
                site_a=site_a, site_b=site_b, rtt_s=rtt_s, goodput_bytes_per_s=goodput_bytes_per_s
            )
        )

    async def close(self) -> None:
        """Cancel every request, deliver the last stops, close the channels."""
        self._closing = True
        for request, client in list(self._clients.items()):
            client.put(Fail(request=request, failure=Failure.UNAVAILABLE, message=SHUTTING_DOWN))
            self.leave(request)
        channels = [member.channel for member in self.members.values()]
        await asyncio.gather(*(channel.settled(FAREWELL_S) for channel in channels))
        await close_all(channels)
        if self._timer is not None:
            self._timer.cancel()

    # ------------------------------------------------------------ what channels tell

    def came_up(self, worker: str, hello: Hello) -> None:
        member = self.members[worker]
        member.hello = hello
        log.info("worker up", extra={"worker": worker, "pid": hello.pid})
        self.tell(
            WorkerUp(
                worker=worker,
                site=member.site,
                pool=member.pool,
                roles=member.roles,
                slots=hello.slots,
                max_context=hello.max_context,
                kv_total_tokens=hello.kv_total_tokens,
                kv_bytes_per_token=hello.kv_bytes_per_token,
            )
        )
        if member.draining:
            self.tell(WorkerDraining(worker=worker))

    def came_back(self, worker: str) -> None:
        self.tell(Reconnected(worker=worker))

    def was_lost(self, worker: str, reason: str) -> None:
        log.warning("worker lost", extra={"worker": worker, "reason": reason})
        self.members[worker].hello = self.members[worker].load = None
        self._metrics.forget(worker)
        self.tell(WorkerLost(worker=worker, reason=reason))

    def heard(self, worker: str, messages: list[UpMessage]) -> None:
        for message in messages:
            if isinstance(message, Load):
                member = self.members[worker]
                member.load = message
                self._awaited.discard(worker)
                self._metrics.load(worker, member.site, member.pool, message)
            self.tell(Heard(worker=worker, message=message))

    # ------------------------------------------------------------ the core

    def tell(self, event: Event) -> None:
        """Tell the machine what happened now, and do what it answers."""
        now = self._loop.time()
        if self._record is not None:
            self._record(now, event)
        try:
            actions = self.machine.handle(event, now)
        except Exception:
            # A defect must not take the other requests with it, nor the stream that told us.
            log.exception("the core failed", extra={"kind": type(event).__name__})
            actions = self.machine.abandon()
            self._fail_forgotten(actions)
        for action in actions:
            self._act(action)
        self._set_timer()

    def _fail_forgotten(self, actions: list[Action]) -> None:
        """A client whose request the core no longer has must be told of its end."""
        told = {action.request for action in actions if isinstance(action, Finish | Fail)}
        for request in self._clients.keys() - self.machine.requests.keys() - told:
            failure = Failure.INTERNAL
            actions.append(Fail(request=request, failure=failure, message=FORGOTTEN))

    def _act(self, action: Action) -> None:
        if isinstance(action, Send):
            self._send(action)
            return
        client = self._clients.get(action.request)
        if client is None:
            return
        client.put(action)
        if not isinstance(action, Emit):
            del self._clients[action.request]

    def _send(self, action: Send) -> None:
        member = self.members.get(action.worker)
        if member is None:
            return
        if not member.channel.up and not isinstance(action.message, Stop):
            return  # its loss has been told; only what frees memory is still worth sending
        message = action.message
        if isinstance(message, SendKV) and message.to_worker != action.worker:
            address = self._addresses.kv(message.to_worker, seen_from=member.site)
            message = dataclasses.replace(message, address=address)
        member.channel.send(message)

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
