"""A modelled worker: the answers and the timing of a real one, without its tokens.

It keeps the rules of `workers.worker` that can be seen from outside: what does not fit is refused,
a prefill samples once and holds its KV, a leg decodes on ahead of what it is fed, what arrives
while a step runs waits for the step's end. Not modelled: leases, the end of a hold.

When a leg speaks: it says its first token as it comes, and what it has whenever it stops, is asked,
or its worker dies; a relay also when it was silent for `report_s`, as main may be lost meanwhile.
In between its tokens are known to nobody, as nobody acts on them. The exception is a handover: see
`Replay`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from orchestrator.lifecycle.request import NEAR_HANDOFF
from orchestrator.replay.batch import NO_CHUNK, SLACK
from orchestrator.replay.caches import PrefixCache
from orchestrator.replay.leg import LegKey, ModelLeg
from orchestrator.replay.prompt import blocks_of
from orchestrator.replay.setup import ModelSpec
from orchestrator.replay.steps import Steps
from orchestrator.virtual.schedule import Schedule
from workers.api.messages import (
    DownMessage,
    Feed,
    Landed,
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
    UpMessage,
)

BLOCK = 16  # KV memory is given out in blocks of so many tokens
PARKED_S = 10.0  # KV that is earlier than its leg's start waits so long
FEW_TOKENS = NEAR_HANDOFF + 4

Row = Callable[[ModelLeg, Any], None]


class ModelWorker:
    """One worker. `say(worker, messages)` sends to its gateway, `move(worker, leg, send, at)` KV
    that it was told to send at `at`; `closed(leg)` ends what is moving from or to a leg;
    `prefilled(worker, leg)` is told when a prefill has its token.
    """

    def __init__(
        self,
        spec: ModelSpec,
        schedule: Schedule,
        *,
        say: Callable[["ModelWorker", list[UpMessage]], None],
        move: Callable[["ModelWorker", ModelLeg, SendKV, float], None],
        closed: Callable[[LegKey], None],
        prefilled: Callable[["ModelWorker", ModelLeg], None],
        report_s: float,
        every_step: bool,
        block_tokens: int | None = None,
    ) -> None:
        self.spec = spec
        self.legs: dict[LegKey, ModelLeg] = {}
        self.free_tokens = spec.kv_tokens // BLOCK * BLOCK
        self.slots_used = 0
        self.dead = False
        self.cache = None if block_tokens is None else PrefixCache(block_tokens)
        self._schedule = schedule
        self._say_up = say
        self._move = move
        self._closed = closed
        self._prefilled = prefilled
        self._report_s = report_s
        self._every_step = every_step
        self._steps = Steps(spec, schedule, self._ended)
        self._batch = self._steps.batch
        self._queue = self._steps.queue
        self._starved: dict[LegKey, ModelLeg] = {}
        self._landed_early: dict[LegKey, float] = {}
        self._aloud: dict[LegKey, ModelLeg] = {}  # decoding legs that say every token
        self._reports: deque[tuple[float, ModelLeg]] = deque()  # when a decoding leg speaks next
        self._up: list[UpMessage] = []
        self._inbox: list[tuple[Row, ModelLeg, Any]] = []  # what waits for the step's end

    def die(self) -> None:
        """Nothing is heard of it any more, and all it had is gone.

        What its last step gave was on its way; only here it was not said yet.
        """
        self._steps.stop()
        for leg in self.legs.values():
            if leg.landed:
                self._speak(leg)
        if self._up:
            self._say_up(self, self._up)
        for key in self.legs:
            self._closed(key)
        self.legs.clear()
        self.dead = True

    # ------------------------------------------------------------ what is asked of it

    def take(self, messages: Sequence[DownMessage]) -> None:
        """What its gateway sends."""
        if self.dead:
            return
        for message in messages:
            if isinstance(message, Start):
                self._start(message)
                continue
            leg = self.legs.get((message.request, message.epoch))
            if leg is not None:
                _ROWS[type(message)](self, leg, message)
        self._go_on()

    def land(self, key: LegKey) -> None:
        """All the KV that a leg imports is here."""
        if self.dead:
            return
        leg = self.legs.get(key)
        if leg is not None:
            self._land(leg)
            self._go_on()
            return
        now = self._schedule.now
        while self._landed_early:
            oldest = next(iter(self._landed_early))
            if self._landed_early[oldest] + PARKED_S > now:
                break
            del self._landed_early[oldest]
        self._landed_early[key] = now

    def race_before(self, key: LegKey, at: float) -> float | None:
        """A handover begins at `at`: see `race`. When to ask again; None: it races, or is gone.

        It begins a step before; or with its first token, if there will be only a few: the wait for
        the first of a run would be taken for the handoff's gap.
        """
        leg = self.legs.get(key)
        if leg is None or leg.racing:
            return None
        step_s, now = self.step_s(), self._schedule.now
        if at - step_s > now and self._own(leg) + (at - now) / step_s > FEW_TOKENS:
            return at - step_s
        self.race(key)
        return None

    def race(self, key: LegKey) -> None:
        """From now on a leg says every token as it comes."""
        leg = self.legs.get(key)
        if leg is None or leg.racing:
            return
        leg.racing = True
        if leg.leaves_at is not None:
            self._aloud[key] = leg
            self._steps.cut()

    def calm(self, key: LegKey) -> None:
        """The handover is over: this leg has no need to say every token."""
        leg = self.legs.get(key)
        if leg is not None and leg.racing:
            leg.racing = False
            if not leg.fresh and not self._every_step:
                self._aloud.pop(key, None)

    def load(self) -> Load:
        """Its account of itself."""
        spec = self.spec
        return Load(
            worker=spec.name,
            running=self._batch.size + len(self._queue),
            prefill_tokens=sum(leg.todo for leg in self._queue),
            kv_free_tokens=self.free_tokens,
            kv_total_tokens=spec.kv_tokens,
            kv_held_tokens=spec.kv_tokens - self.free_tokens,
            step_s=self.step_s(),
            prefill_tokens_per_s=spec.costs.prefill_tokens_per_s,
        )

    def found(self, key: LegKey) -> int:
        """Leading tokens of a leg's prompt that were here when it started."""
        leg = self.legs.get(key)
        return 0 if leg is None else leg.hit

    def busy(self) -> float:
        """How much of it works now: slots that decode, or all of it while it prefills."""
        if self._queue:
            return 1.0
        return min(1.0, self._batch.size / self.spec.slots)

    def step_s(self) -> float:
        """Seconds of its decode step now."""
        return self._steps.step_s()

    # ------------------------------------------------------------ legs come and go

    def _start(self, start: Start) -> None:
        key = start.request, start.epoch
        if key in self.legs:
            return
        spec = self.spec
        tokens = max(start.reserve, len(start.prompt_ids) + len(start.law_ids) + 1)
        reserved = -(-tokens // BLOCK) * BLOCK
        if self.slots_used >= spec.slots:
            self._refuse(key, f"all {spec.slots} slots of {spec.name} are taken")
            return
        if reserved > self.free_tokens:
            self._refuse(key, f"{reserved} tokens of KV wanted, {self.free_tokens} are free")
            return
        leg = self.legs[key] = ModelLeg(start=start, key=key, reserved=reserved)
        self.free_tokens -= reserved
        self.slots_used += 1
        if self.cache is not None:
            self._find_prefix(leg, self.cache)
        if start.role is Role.PREFILL:
            leg.todo = leg.prompt + leg.law - leg.hit
            self._queue.append(leg)
            if self._steps.chunk is NO_CHUNK:
                self._steps.cut()
        elif self._landed_early and self._landed_early.pop(key, None) is not None:
            self._land(leg)

    def _find_prefix(self, leg: ModelLeg, cache: PrefixCache) -> None:
        """What is here of a leg's prompt stays here. A prefill computes its last token anyway."""
        blocks = blocks_of(leg.start.prompt_ids)
        leg.blocks = blocks[: cache.depth(blocks)]
        cache.hold(leg.blocks)
        cache.fit(self.free_tokens)
        leg.hit = min(len(leg.blocks) * cache.block_tokens, leg.prompt - 1)

    def _keep_prefix(self, leg: ModelLeg) -> None:
        """A leg has all of its prompt's KV now: others may use it."""
        if self.cache is not None:
            new = blocks_of(leg.start.prompt_ids)[len(leg.blocks) :]
            self.cache.hold(new)
            leg.blocks += new

    def _refuse(self, key: LegKey, reason: str) -> None:
        self._landed_early.pop(key, None)
        self._up.append(Refused(request=key[0], epoch=key[1], reason=reason))

    def _stop(self, leg: ModelLeg, message: Stop) -> None:
        if self._steps.computes(leg):
            self._after_step(self._close, leg, message)
        else:
            self._close(leg, message)

    def _close(self, leg: ModelLeg, message: Stop) -> None:
        if leg.closed:
            return
        if leg.leaves_at is not None:
            self._leave(leg)
        elif leg.todo:
            self._queue.remove(leg)
        leg.closed = True
        del self.legs[leg.key]
        self._closed(leg.key)
        self.free_tokens += leg.reserved
        if leg.blocks and self.cache is not None:
            self.cache.release(leg.blocks)
            self.cache.fit(self.free_tokens)
        if not (leg.held or leg.paused):
            self.slots_used -= 1
        if self._starved:
            self._starved.pop(leg.key, None)
            for starved in list(self._starved.values()):
                self._aim_later(starved)

    def _land(self, leg: ModelLeg) -> None:
        leg.landed = True
        self._keep_prefix(leg)
        request, epoch = leg.key
        self._up.append(Landed(request=request, epoch=epoch, covered=leg.start.cover))
        self._send_waiting(leg)
        if leg.law:
            self._aim_later(leg)

    def _send_kv(self, leg: ModelLeg, send: SendKV) -> None:
        leg.exports.append((self._schedule.now, send))
        self._send_waiting(leg)

    def _send_waiting(self, leg: ModelLeg) -> None:
        """Send what a leg was asked for, if it has all of it."""
        if leg.exports and (leg.held or leg.start.role is not Role.PREFILL) and leg.landed:
            exports, leg.exports = leg.exports, []
            for at, send in exports:
                self._move(self, leg, send, at)

    # ------------------------------------------------------------ law, pause, resync

    def _feed(self, leg: ModelLeg, feed: Feed) -> None:
        if self._steps.computes(leg):
            self._after_step(self._learn, leg, feed)
        else:
            self._learn(leg, feed)

    def _learn(self, leg: ModelLeg, feed: Feed) -> None:
        if leg.closed or feed.start > leg.law or feed.law <= leg.law:
            return
        leg.law = feed.law
        if leg.landed and not leg.todo and self._own(leg) < leg.law:
            self._aim_later(leg)

    def _switch(self, leg: ModelLeg, message: Pause | Resume) -> None:
        if message.seq <= leg.seq:
            return
        leg.seq = message.seq
        if self._steps.computes(leg):
            self._after_step(self._set_pause, leg, message)
        else:
            self._set_pause(leg, message)

    def _set_pause(self, leg: ModelLeg, message: Pause | Resume) -> None:
        if leg.closed:
            return
        if isinstance(message, Pause):
            leg.pause_at = message.at or 0
        else:
            self.slots_used += leg.paused
            leg.pause_at, leg.paused = None, False
        if leg.leaves_at is not None:
            self._leave(leg)
        self._aim(leg, None)

    def _resync(self, leg: ModelLeg, message: Resync) -> None:
        if self._steps.computes(leg):
            self._after_step(self._answer, leg, message)
        else:
            self._answer(leg, message)

    def _answer(self, leg: ModelLeg, message: Resync) -> None:
        own = self._own(leg)
        leg.said = own
        self._up.append(leg.run(min(message.start, own), own))

    # ------------------------------------------------------------ what a leg does next

    def _aim_later(self, leg: ModelLeg) -> None:
        if self._steps.running:
            self._after_step(self._aim, leg, None)
        else:
            self._aim(leg, None)

    def _aim(self, leg: ModelLeg, nothing: None) -> None:
        """Let a leg compute, decode, rest or wait for memory, as its state says. Between steps."""
        if leg.closed or leg.todo or leg.held or leg.paused:
            return
        own = self._own(leg)
        if leg.leaves_at is not None:
            if own >= leg.law:
                return
            self._leave(leg)  # behind what it was fed: it takes that over in one extend
        leg.own = max(own, leg.law)
        leg.said = max(leg.said, leg.law)
        if leg.pause_at is not None and leg.own >= leg.pause_at:
            self._rest(leg)
            return
        if not leg.landed or not leg.law or leg.own >= leg.end:
            return
        if not self._has_room(leg):
            self._speak(leg)
            return
        todo = leg.prompt + leg.own - leg.computed
        if todo > 1:
            leg.todo = todo
            self._queue.append(leg)
        else:
            self._join(leg)

    def _rest(self, leg: ModelLeg) -> None:
        """Its pause takes effect."""
        self._speak(leg)
        leg.paused = True
        self.slots_used -= 1
        request, epoch = leg.key
        self._up.append(Paused(request=request, epoch=epoch, seq=leg.seq, at=leg.own))

    def _has_room(self, leg: ModelLeg) -> bool:
        """Whether its next token has memory, or gets some now."""
        if leg.prompt + leg.own < leg.reserved:
            return True
        if self.free_tokens < BLOCK:
            self._starved[leg.key] = leg
            return False
        self._starved.pop(leg.key, None)
        self.free_tokens -= BLOCK
        if self.cache is not None:
            self.cache.fit(self.free_tokens)
        leg.reserved += BLOCK
        return True

    def _join(self, leg: ModelLeg) -> None:
        self._batch.join(leg, leg.goal)
        if leg.fresh or leg.racing or self._every_step:
            self._aloud[leg.key] = leg
        if leg.start.role is Role.RELAY and not leg.reports:
            leg.reports = True
            self._reports.append((self._schedule.now + self._report_s, leg))

    def _leave(self, leg: ModelLeg) -> None:
        self._batch.leave(leg)
        self._aloud.pop(leg.key, None)

    def _left(self, leg: ModelLeg) -> None:
        """A leg has reached its goal."""
        self._aloud.pop(leg.key, None)
        if leg.own >= leg.end:
            self._speak(leg)
        else:
            self._aim(leg, None)

    def _own(self, leg: ModelLeg) -> int:
        """Its output tokens, by the last step that has ended."""
        return leg.own if leg.leaves_at is None else leg.offset + self._batch.clock

    def _speak(self, leg: ModelLeg) -> None:
        """Say what it has not said yet."""
        own = self._own(leg)
        if own > leg.said:
            self._up.append(leg.run(leg.said, own))
            leg.said = own

    # ------------------------------------------------------------ steps

    def _after_step(self, row: Row, leg: ModelLeg, message: Any) -> None:
        self._inbox.append((row, leg, message))
        self._steps.cut()

    def _go_on(self) -> None:
        if not self._steps.running and (self._batch.size or self._queue):
            reports = self._reports
            while reports and reports[0][1].leaves_at is None:
                reports.popleft()[1].reports = False
            due = reports[0][0] if reports else None
            self._steps.begin(due, single=self._every_step or bool(self._aloud))
        if self._up:
            messages, self._up = self._up, []
            self._say_up(self, messages)

    def _ended(self, left: list[ModelLeg], computed: list[ModelLeg]) -> None:
        """The step that ran is over: see `Steps`."""
        for leg in left:
            self._left(leg)
        if self._aloud:
            self._say_aloud()
        if self._reports and self._reports[0][0] <= self._schedule.now + SLACK:
            self._report()
        for leg in computed:
            self._computed(leg)
        if self._inbox:
            inbox, self._inbox = self._inbox, []
            for row, leg, message in inbox:
                row(leg, message)
        self._go_on()

    def _say_aloud(self) -> None:
        for key, leg in list(self._aloud.items()):
            self._speak(leg)
            leg.fresh = False
            if not (leg.racing or self._every_step):
                del self._aloud[key]

    def _report(self) -> None:
        """Who was silent for long speaks."""
        now = self._schedule.now
        reports = self._reports
        while reports and reports[0][0] <= now + SLACK:
            leg = reports.popleft()[1]
            leg.reports = leg.leaves_at is not None
            if leg.reports:
                self._speak(leg)
                reports.append((now + self._report_s, leg))

    def _computed(self, leg: ModelLeg) -> None:
        """A leg has KV for all it knows: it samples its next token, and goes on."""
        leg.computed = leg.prompt + leg.own
        if leg.start.role is Role.PREFILL:
            self._keep_prefix(leg)
        leg.own += leg.own < leg.end
        leg.fresh = False
        self._speak(leg)
        if leg.start.role is Role.PREFILL:
            self._prefilled(self, leg)
            leg.held = True
            self.slots_used -= 1
            self._send_waiting(leg)
        else:
            self._aim(leg, None)


_ROWS: dict[type, Callable[[ModelWorker, ModelLeg, Any], None]] = {
    SendKV: ModelWorker._send_kv,
    Pause: ModelWorker._switch,
    Resume: ModelWorker._switch,
    Stop: ModelWorker._stop,
    Feed: ModelWorker._feed,
    Resync: ModelWorker._resync,
}
