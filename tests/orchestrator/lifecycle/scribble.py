"""Any order of well-typed events for one machine, from a list of small numbers.

The numbers choose the event and whom it is about, modulo what there is, so that hypothesis can
shrink a failing story to a short one.
"""

from dataclasses import dataclass

from orchestrator.lifecycle.request import Leg, Request
from orchestrator.state.config import Attempts, Deadlines
from orchestrator.state.events import (
    ClientGone,
    HandoffMode,
    LinkTold,
    Reconnected,
    RolesTold,
    Route,
    Ticked,
    WorkerDraining,
    WorkerReturned,
)
from tests.orchestrator.lifecycle.machine_rig import SPARES, M, MachineRig, P, R, worker_up
from workers.api.history import EMPTY_HISTORY, extend_history
from workers.api.messages import (
    Cause,
    KVFailed,
    KVStats,
    Landed,
    LinkLoad,
    Paused,
    Refused,
    TokenRun,
)

DEADLINES = Deadlines(
    queue=7.0, prefill=11.0, kv=9.0, first_token=3.0, silence=5.0, resync=0.5, cut=2.0, request=40.0
)
WORKERS = (*SPARES, ("x0", "urumqi", (P, R, M)))
TOKENS = (2, 5, 7, 8)
MOST_TICKS = 3000

Step = tuple[int, int, int, int]


@dataclass(frozen=True)
class Choices:
    """Three numbers, each used once for what it is good for."""

    a: int
    b: int
    c: int


class Scribbler:
    """Turns steps into events and watches the law grow."""

    def __init__(self, setting: int) -> None:
        self.rig = MachineRig(
            WORKERS,
            handoff=list(HandoffMode)[setting % 3],
            gateway_site=("hami", "shenzhen", "urumqi")[setting // 3 % 3],
            deadlines=DEADLINES,
            attempts=Attempts(restarts=3, relay=2, main=2),
            queue_limit=(0, 2, 9)[setting // 9 % 3],
            slots=(1, 2, 4)[setting // 27 % 3],
            tokens=(64, 512)[setting // 81 % 2],
        )
        self.laws: dict[str, list[int]] = {}
        self.asked: list[str] = []
        self.left: set[str] = set()

    def play(self, steps: list[Step]) -> None:
        for kind, a, b, c in steps:
            KINDS[kind % len(KINDS)](self, Choices(a, b, c))
            self.check()

    def check(self) -> None:
        """The law only grows; what the client has is a part of it; the books are right."""
        for name, req in self.rig.machine.requests.items():
            old = self.laws.get(name, [])
            assert req.law.ids[: len(old)] == old, "the law was rewritten"
            self.laws[name] = list(req.law.ids)
            assert len(req.law) <= req.limit
            seen = self.rig.seen.get(name, [])
            assert req.law.ids[: len(seen)] == seen
            roles = [leg.role for leg in req.legs.values()]
            assert len(set(roles)) == len(roles), "two legs with one role"
            assert max(req.legs, default=-1) < req.next_epoch
        self.rig.check()

    def end(self) -> None:
        """Nothing more happens but time: everything ends."""
        for _ in range(MOST_TICKS):
            if self.rig.machine.next_deadline() is None:
                break
            self.rig.to_deadline()
        assert not self.rig.machine.requests, "a request hangs"
        assert self.rig.ends.keys() == set(self.asked) - self.left
        self.check()

    # ------------------------------------------------------------ whom it is about

    def request(self, n: int) -> Request | None:
        open_ = list(self.rig.machine.requests.values())
        return open_[n % len(open_)] if open_ else None

    def leg(self, ch: Choices) -> tuple[Request, Leg] | None:
        req = self.request(ch.a)
        if req is None or not req.legs:
            return None
        legs = list(req.legs.values())
        return req, legs[ch.a // 7 % len(legs)]

    def worker(self, n: int) -> str:
        return WORKERS[n % len(WORKERS)][0]

    # ------------------------------------------------------------ events

    def arrive(self, ch: Choices) -> None:
        name = f"q{len(self.asked)}"
        self.asked.append(name)
        self.rig.arrive(
            name,
            limit=(1, 2, 12, 30, 90, 90)[ch.a % 6],
            prompt_ids=tuple(range((1, 16, 40)[ch.b % 3])),
            min_tokens=(0, 0, 3)[ch.b // 3 % 3],
            stop_ids=((), (), (2,))[ch.b // 9 % 3],
            stop_strings=((), (), ("7,8",), ("5",))[ch.c % 4],
            route=(None, Route.RELAY, *Route)[ch.c // 4 % 5],
            handoff=(None, *HandoffMode)[ch.c // 20 % 4],
        )

    def run(self, ch: Choices) -> None:
        """A leg speaks: mostly sense, sometimes of the past, the future or another history."""
        found = self.leg(ch)
        if found is None:
            return
        req, leg = found
        law = req.law.ids
        index = max(0, len(law) + (0, 0, 0, 0, 0, 0, 0, 0, 1, 2, -1, -2)[ch.b % 12])
        ids = tuple(TOKENS[(ch.c + i) % len(TOKENS)] for i in range(1 + ch.c // 4 % 3))
        history = law[:index] + [TOKENS[ch.c % 4]] * (index - len(law))
        if ch.b // 12 % 9 == 8:
            history = [*history[:-1], 99]
        fed = (leg.fed, min(index, leg.sent), 0, 99)[ch.b // 108 % 4]
        self.say(req, leg.epoch, leg.worker, index, ids, history, fed)

    def stray_run(self, ch: Choices) -> None:
        """A run of a dead or unknown leg, or one that comes from the wrong worker."""
        req = self.request(ch.a)
        if req is None:
            return
        epoch = ch.b % (req.next_epoch + 2)
        self.say(req, epoch, self.worker(ch.c), len(req.law), (5,), req.law.ids, len(req.law))

    def say(
        self,
        req: Request,
        epoch: int,
        worker: str,
        index: int,
        ids: tuple[int, ...],
        history: list[int],
        fed: int,
    ) -> None:
        self.rig.hear(
            worker,
            TokenRun(
                request=req.name,
                epoch=epoch,
                index=index,
                ids=ids,
                hist=extend_history(EMPTY_HISTORY, history),
                fed=fed,
            ),
        )

    def empty_run(self, ch: Choices) -> None:
        found = self.leg(ch)
        if found is not None:
            req, leg = found
            index = ch.b % (len(req.law) + 2)
            self.say(req, leg.epoch, leg.worker, index, (), req.law.ids[:index], ch.c % 40)

    def landed(self, ch: Choices) -> None:
        found = self.leg(ch)
        if found is not None:
            req, leg = found
            message = Landed(request=req.name, epoch=leg.epoch, covered=leg.cover)
            self.rig.hear(leg.worker, message)

    def paused(self, ch: Choices) -> None:
        found = self.leg(ch)
        if found is not None:
            req, leg = found
            seq = max(0, leg.pause_seq - ch.b % 2)
            at = len(req.law) + ch.c % 3
            self.rig.hear(leg.worker, Paused(request=req.name, epoch=leg.epoch, seq=seq, at=at))

    def refused(self, ch: Choices) -> None:
        found = self.leg(ch)
        if found is not None:
            req, leg = found
            cause = (Cause.SENSELESS, Cause.GRAMMAR, *(7 * (Cause.BUSY,)))[ch.b % 9]
            message = Refused(request=req.name, epoch=leg.epoch, reason="full", cause=cause)
            self.rig.hear(leg.worker, message)

    def kv_failed(self, ch: Choices) -> None:
        found = self.leg(ch)
        if found is not None:
            req, leg = found
            source = leg.source if leg.source is not None and ch.b % 4 else ch.b % 5
            message = KVFailed(request=req.name, epoch=leg.epoch, source=source, reason="cut")
            self.rig.hear(leg.worker, message)

    def kv_stats(self, ch: Choices) -> None:
        found = self.leg(ch)
        if found is not None:
            req, leg = found
            message = KVStats(
                request=req.name, epoch=leg.epoch, bytes_raw=9, bytes_wire=7, transfer_s=0.1
            )
            self.rig.hear(leg.worker, message)

    def lost(self, ch: Choices) -> None:
        self.rig.lose(self.worker(ch.a))

    def up(self, ch: Choices) -> None:
        name, site, roles = WORKERS[ch.a % len(WORKERS)]
        self.rig.tell(
            worker_up(name, site, roles, slots=(1, 2, 8)[ch.b % 3], tokens=(64, 512)[ch.c % 2])
        )

    def draining(self, ch: Choices) -> None:
        event = WorkerDraining if ch.b % 2 else WorkerReturned
        self.rig.tell(event(worker=self.worker(ch.a)))

    def roles(self, ch: Choices) -> None:
        roles = frozenset(role for bit, role in enumerate((P, R, M)) if ch.b >> bit & 1)
        self.rig.tell(RolesTold(worker=self.worker(ch.a), roles=roles))

    def reconnected(self, ch: Choices) -> None:
        self.rig.tell(Reconnected(worker=self.worker(ch.a)))

    def link(self, ch: Choices) -> None:
        a, b = (("hami", "shenzhen"), ("hami", "urumqi"), ("shenzhen", "urumqi"))[ch.a % 3]
        rate = (0.0, 1.0, 20_000.0, 1e9)[ch.b % 4]
        self.rig.tell(
            LinkTold(site_a=a, site_b=b, rtt_s=(0.0, 0.05, 2.0)[ch.c % 3], bytes_per_s=rate)
        )

    def load(self, ch: Choices) -> None:
        seen = LinkLoad(
            site=("hami", "shenzhen", "nowhere")[ch.b % 3],
            goodput_bytes_per_s=(None, 0.0, -1.0, 1e-9, 5e4, 1e12)[ch.c % 6],
            rtt_s=(None, 0.0, 0.01, 100.0)[ch.b % 4],
            loss=(None, 0.0, 1.0)[ch.c % 3],
            queue_bytes=(0, 1, 10**12)[ch.a % 3],
            uncoded_bytes=(0, 10**12)[ch.a % 2],
            sent_bytes=ch.c % 5,
            resent_bytes=0,
        )
        step_s = (None, 0.0, 0.01, 0.3)[ch.b % 4]
        self.rig.load(self.worker(ch.a), step_s=step_s, links=(seen,))

    def tick(self, ch: Choices) -> None:
        if self.rig.machine.next_deadline() is not None:
            self.rig.to_deadline()

    def early_tick(self, ch: Choices) -> None:
        self.rig.tell(Ticked())

    def later(self, ch: Choices) -> None:
        """Time passes without a tick: the driver is late."""
        self.rig.now += (0.0, 0.01, 0.05, 0.3, 2.0)[ch.a % 5]

    def gone(self, ch: Choices) -> None:
        req = self.request(ch.a)
        if req is not None:
            self.left.add(req.name)
            self.rig.tell(ClientGone(request=req.name))


S = Scribbler
# What happens often stands here more than once.
KINDS = (
    *[S.arrive] * 2,
    *[S.run] * 24,
    S.stray_run,
    S.empty_run,
    *[S.landed] * 6,
    S.paused,
    S.refused,
    S.kv_failed,
    S.kv_stats,
    S.lost,
    S.up,
    S.draining,
    S.roles,
    S.reconnected,
    S.link,
    S.load,
    *[S.tick] * 2,
    S.early_tick,
    *[S.later] * 2,
    S.gone,
)
