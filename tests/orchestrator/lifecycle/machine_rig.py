"""One machine on a table: a test tells it events and compares the actions word for word."""

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.lifecycle.machine import Machine
from orchestrator.lifecycle.phases import Phase
from orchestrator.lifecycle.recover import settle_phase
from orchestrator.lifecycle.request import Request
from orchestrator.state.actions import Action, Emit, Fail, Finish, FinishReason, Send
from orchestrator.state.config import Attempts, CoreConfig, Deadlines
from orchestrator.state.events import (
    Arrived,
    ClientGone,
    Event,
    HandoffMode,
    Heard,
    LinkTold,
    Reconnected,
    Route,
    Ticked,
    WorkerLost,
    WorkerUp,
)
from orchestrator.virtual.gateway import IdWatch
from workers.api.history import EMPTY_HISTORY, extend_history
from workers.api.messages import (
    Cause,
    Feed,
    KVFailed,
    Landed,
    LinkLoad,
    Load,
    Pause,
    Paused,
    Refused,
    Resume,
    Resync,
    Role,
    SendKV,
    Start,
    Stop,
    TokenRun,
    UpMessage,
)

P, R, M = Role.PREFILL, Role.RELAY, Role.MAIN
PROMPT = tuple(range(100, 120))
# The first three legs of a request on the relay route, by epoch.
PREFILL, RELAY, MAIN = 0, 1, 2

HAMI = ("p0", "hami", (P,)), ("r0", "hami", (R,))
TWO_SITES = (*HAMI, ("m0", "shenzhen", (M,)))
SPARES = (
    *TWO_SITES,
    ("p1", "hami", (P,)),
    ("r1", "hami", (R,)),
    ("m1", "shenzhen", (M,)),
)


def worker_up(
    name: str,
    site: str,
    roles: Sequence[Role],
    *,
    slots: int = 8,
    tokens: int = 4096,
    context: int = 4096,
) -> WorkerUp:
    return WorkerUp(
        worker=name,
        site=site,
        pool=name,
        roles=frozenset(roles),
        slots=slots,
        max_context=context,
        kv_total_tokens=tokens,
        kv_bytes_per_token=20_000,
    )


class MachineRig:
    """A machine with workers at two sites, 50 ms apart, and its clock.

    The default mode is catch-up, so that nothing is paced; the line is so slow that the router
    takes the relay route. What every event must leave true is checked after every event.
    """

    def __init__(
        self,
        workers: Sequence[tuple[str, str, Sequence[Role]]] = TWO_SITES,
        *,
        handoff: HandoffMode = HandoffMode.CATCH_UP,
        route: Route | None = None,
        gateway_site: str = "shenzhen",
        deadlines: Deadlines = Deadlines(),  # noqa: B008 - frozen
        attempts: Attempts = Attempts(),  # noqa: B008 - frozen
        queue_limit: int = 256,
        bound_s: float = 1.0,
        slots: int = 8,
        tokens: int = 4096,
    ) -> None:
        self.config = CoreConfig(
            gateway="g",
            gateway_site=gateway_site,
            route=route,
            handoff=handoff,
            handoff_bound_s=bound_s,
            queue_limit=queue_limit,
            deadlines=deadlines,
            attempts=attempts,
        )
        self.machine = Machine(self.config, IdWatch)
        self.now = 1000.0
        self.name = "a"
        self.log: list[tuple[float, Event]] = []
        self.seen: dict[str, list[int]] = {}
        self.ends: dict[str, Finish | Fail] = {}
        self.open: set[tuple[str, str, int]] = set()
        self.link(rate=20_000.0)
        for name, site, roles in workers:
            self.tell(worker_up(name, site, roles, slots=slots, tokens=tokens))

    # ------------------------------------------------------------ telling

    def tell(self, event: Event) -> list[Action]:
        """One event, now; the actions."""
        actions = self.machine.handle(event, self.now)
        self.log.append((self.now, event))
        for action in actions:
            self._note(action)
        due = self.machine.next_deadline()
        assert due is None or due > self.now, f"the deadline {due} is not after {self.now}"
        for req in self.machine.requests.values():
            roles = {leg.role: leg for leg in req.legs.values()}
            assert len(roles) == len(req.legs), "two live legs have one role"
            assert all(req.leg(role) is roles.get(role) for role in Role)
            before = req.phase
            settle_phase(req)
            assert req.phase is before, "the stored phase lags behind the tracks"
        return actions

    def _note(self, action: Action) -> None:
        if isinstance(action, Send):
            message = action.message
            key = (action.worker, message.request, message.epoch)
            if isinstance(message, Start):
                assert key not in self.open, f"{key} was started twice"
                self.open.add(key)
            elif isinstance(message, Stop):
                self.open.discard(key)
            return
        assert action.request not in self.ends, "the client was told something after the end"
        if isinstance(action, Emit):
            seen = self.seen.setdefault(action.request, [])
            assert action.start == len(seen), "a token was repeated or left out"
            assert action.ids
            seen.extend(action.ids)
        else:
            self.ends[action.request] = action

    def link(self, rate: float) -> list[Action]:
        return self.tell(LinkTold(site_a="hami", site_b="shenzhen", rtt_s=0.05, bytes_per_s=rate))

    def arrive(self, name: str = "a", *, limit: int = 40, **fields: object) -> list[Action]:
        self.name = name
        spec = Arrived(request=name, prompt_ids=PROMPT, limit=limit)
        return self.tell(replace(spec, **fields))  # type: ignore[arg-type]

    def after(self, seconds: float) -> list[Action]:
        """Let time pass, with every tick that falls due on the way; all their actions."""
        end = self.now + seconds
        actions: list[Action] = []
        while (due := self.machine.next_deadline()) is not None and due <= end:
            self.now = due
            actions += self.tell(Ticked())
        self.now = end
        return actions

    def to_deadline(self) -> list[Action]:
        """Jump to the next deadline; its actions."""
        due = self.machine.next_deadline()
        assert due is not None
        self.now = due
        return self.tell(Ticked())

    def hear(self, worker: str, message: UpMessage) -> list[Action]:
        return self.tell(Heard(worker=worker, message=message))

    def say(self, epoch: int, message: UpMessage) -> list[Action]:
        """A message from the live leg with this epoch."""
        return self.hear(self.req.legs[epoch].worker, message)

    # ------------------------------------------------------------ what legs say

    def run(
        self,
        epoch: int,
        index: int,
        *ids: int,
        after: Sequence[int] | None = None,
        fed: int | None = None,
        worker: str | None = None,
        cached: int = 0,
    ) -> list[Action]:
        """A token run; `after`: its history, the law so far when left out."""
        history = self.law[:index] if after is None else after
        known = self.fed(epoch) if fed is None else fed
        message = TokenRun(
            request=self.name,
            epoch=epoch,
            index=index,
            ids=ids,
            hist=extend_history(EMPTY_HISTORY, history),
            fed=min(index, known) if ids else known,
            cached=cached,
        )
        return self.hear(worker or self.req.legs[epoch].worker, message)

    def fed(self, epoch: int) -> int:
        req = self.machine.requests.get(self.name)
        leg = req.legs.get(epoch) if req is not None else None
        return leg.sent if leg is not None else 0

    def landed(self, epoch: int) -> list[Action]:
        leg = self.req.legs[epoch]
        return self.say(epoch, Landed(request=self.name, epoch=epoch, covered=leg.cover))

    def paused(self, epoch: int, seq: int, at: int) -> list[Action]:
        return self.say(epoch, Paused(request=self.name, epoch=epoch, seq=seq, at=at))

    def refused(self, epoch: int, *, cause: Cause = Cause.BUSY) -> list[Action]:
        message = Refused(request=self.name, epoch=epoch, reason="full", cause=cause)
        return self.say(epoch, message)

    def kv_failed(self, epoch: int, source: int, *, worker: str | None = None) -> list[Action]:
        """Told by the leg's own worker, unless another is given."""
        message = KVFailed(request=self.name, epoch=epoch, source=source, reason="cut")
        if worker is not None:
            return self.tell(Heard(worker=worker, message=message))
        return self.say(epoch, message)

    def load(
        self, worker: str, *, step_s: float | None = None, links: tuple[LinkLoad, ...] = ()
    ) -> list[Action]:
        message = Load(
            worker=worker,
            running=0,
            prefill_tokens=0,
            kv_free_tokens=4096,
            kv_total_tokens=4096,
            kv_held_tokens=0,
            step_s=step_s,
            prefill_tokens_per_s=200.0,
            links=links,
        )
        return self.hear(worker, message)

    def lose(self, worker: str) -> list[Action]:
        return self.tell(WorkerLost(worker=worker, reason="killed"))

    def reconnect(self, worker: str) -> list[Action]:
        return self.tell(Reconnected(worker=worker))

    def leave(self) -> list[Action]:
        return self.tell(ClientGone(request=self.name))

    # ------------------------------------------------------------ what is known

    @property
    def req(self) -> Request:
        return self.machine.requests[self.name]

    @property
    def law(self) -> list[int]:
        return self.req.law.ids

    @property
    def phase(self) -> Phase:
        """DONE also when the machine has forgotten the request."""
        req = self.machine.requests.get(self.name)
        return req.phase if req is not None else Phase.DONE

    @property
    def counts(self) -> dict[str, int]:
        return self.machine.ctx.counts

    @property
    def end(self) -> Finish | Fail | None:
        return self.ends.get(self.name)

    def legs(self) -> dict[str, int]:
        """Live legs: role -> epoch."""
        return {leg.role.value: leg.epoch for leg in self.req.legs.values()}

    # ------------------------------------------------------------ to a phase

    def to_phase(self, phase: Phase) -> None:
        """A request on the relay route, brought to this phase in the plainest way."""
        if phase is Phase.QUEUED:
            self.arrive("first")
            self.arrive()
        else:
            self.arrive()
        if phase in (Phase.QUEUED, Phase.PREFILL):
            assert self.phase is phase
            return
        self.run(PREFILL, 0, 10)
        self.landed(RELAY)
        self.run(RELAY, 1, 11)
        if phase is Phase.MAIN_WAIT:
            self.machine.ctx.config = replace(self.config, attempts=Attempts(relay=0))
            self.lose("r0")
        if phase in (Phase.RACE, Phase.CUT, Phase.MAIN):
            self.landed(MAIN)
        if phase is Phase.CUT:
            self.run(MAIN, 1, 11)
            self.now += self.config.handoff_bound_s
            self.run(RELAY, 2, 12)
        if phase is Phase.MAIN:
            self.run(MAIN, 2, 12)
        assert self.phase is phase

    # ------------------------------------------------------------ at the end

    def check(self) -> None:
        """Live legs are started and booked; nothing else is."""
        live = {
            (leg.worker, req.name, leg.epoch)
            for req in self.machine.requests.values()
            for leg in req.legs.values()
        }
        assert self.open == live, f"started and never stopped: {sorted(self.open - live)}"
        booked = {
            (view.name, *key)
            for view in self.machine.ctx.world.workers.values()
            for key in view.bookings
        }
        assert booked == live
        legs = {key[1:] for key in live}
        for way in self.machine.ctx.world.links.values():
            assert way.queued.keys() <= legs
        ended = self.seen.keys() & {n for n, e in self.ends.items() if isinstance(e, Finish)}
        for name in ended:
            assert self.ends[name].summary.completion_tokens == len(self.seen[name])
        if not self.machine.requests:
            assert self.machine.next_deadline() is None


# ---------------------------------------------------------------- actions, in short


def start(worker: str, epoch: int, role: Role, reserve: int, **fields: object) -> Send:
    message = Start(
        request="a",
        epoch=epoch,
        gateway="g",
        role=role,
        prompt_ids=PROMPT,
        limit=40,
        reserve=reserve,
    )
    return Send(worker=worker, message=replace(message, **fields))  # type: ignore[arg-type]


def send_kv(
    worker: str, epoch: int, to_worker: str, to_epoch: int, stop: int = len(PROMPT)
) -> Send:
    message = SendKV(
        request="a", epoch=epoch, to_worker=to_worker, to_epoch=to_epoch, start=0, stop=stop
    )
    return Send(worker=worker, message=message)


def feed(worker: str, epoch: int, begin: int, *ids: int) -> Send:
    message = Feed(request="a", epoch=epoch, law=begin + len(ids), start=begin, ids=ids)
    return Send(worker=worker, message=message)


def resync(worker: str, epoch: int, begin: int) -> Send:
    return Send(worker=worker, message=Resync(request="a", epoch=epoch, start=begin))


def pause(worker: str, epoch: int, seq: int) -> Send:
    return Send(worker=worker, message=Pause(request="a", epoch=epoch, seq=seq))


def resume(worker: str, epoch: int, seq: int) -> Send:
    return Send(worker=worker, message=Resume(request="a", epoch=epoch, seq=seq))


def stop(worker: str, epoch: int, request: str = "a") -> Send:
    return Send(worker=worker, message=Stop(request=request, epoch=epoch))


def emit(begin: int, *ids: int) -> Emit:
    return Emit(request="a", start=begin, ids=ids)


def starts(actions: Sequence[Action]) -> list[tuple[Role, str]]:
    """Legs that were started: role and worker."""
    return [
        (a.message.role, a.worker)
        for a in actions
        if isinstance(a, Send) and isinstance(a.message, Start)
    ]


def stops(actions: Sequence[Action]) -> set[tuple[str, int]]:
    """Legs that were stopped: worker and epoch."""
    return {
        (a.worker, a.message.epoch)
        for a in actions
        if isinstance(a, Send) and isinstance(a.message, Stop)
    }


def finished(
    actions: Sequence[Action], reason: FinishReason, stop_string: str | None = None
) -> bool:
    """Whether the last action is this end."""
    last = actions[-1]
    return isinstance(last, Finish) and (last.reason, last.stop) == (reason, stop_string)
