"""A modelled worker: the answers and the timing of a real one, without its tokens.

It keeps the rules of `workers.worker` that can be seen from outside: what does not fit is refused,
a prefill samples once and holds its KV, a leg decodes on ahead of what it is fed, what arrives
while a step runs waits for the step's end. Not modelled: leases, the end of a hold.

When its legs speak: see `voice`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from orchestrator.lifecycle.request import NEAR_HANDOFF
from orchestrator.replay.batch import NO_CHUNK
from orchestrator.replay.leg import LegKey, ModelLeg
from orchestrator.replay.memory import BLOCK, Memory, in_blocks
from orchestrator.replay.setup import ModelSpec
from orchestrator.replay.steps import Steps
from orchestrator.replay.stores.site import PoolStores
from orchestrator.replay.voice import Voice
from orchestrator.virtual.schedule import Schedule
from workers.api.messages import (
    PREFILL,
    DownMessage,
    Feed,
    Landed,
    Load,
    Pause,
    Paused,
    Refused,
    Resume,
    Resync,
    SendKV,
    Start,
    Stop,
    UpMessage,
)

PARKED_S = 10.0  # KV that is earlier than its leg's start waits so long
FEW_TOKENS = NEAR_HANDOFF + 4

Row = Callable[[ModelLeg, Any], None]


class ModelWorker:
    """One worker. `say(worker, messages)` sends to its gateway, `move(worker, leg, send, at)` KV
    that it was told to send at `at`; `closed(leg)` ends what is moving from or to a leg;
    `prefilled(worker, leg)` is told when a prefill has its token. `stores`: its site's, if its pool
    has one.
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
        stores: PoolStores | None = None,
    ) -> None:
        self.spec = spec
        self.legs: dict[LegKey, ModelLeg] = {}
        self.memory = Memory(spec.kv_tokens, block_tokens)
        self.slots_used = 0
        self.dead = False
        self._stores = stores
        self._schedule = schedule
        self._say_up = say
        self._move = move
        self._closed = closed
        self._prefilled = prefilled
        self._steps = Steps(spec, schedule, self._ended)
        self._batch = self._steps.batch
        self._queue = self._steps.queue
        self._voice = Voice(schedule, self._batch, report_s=report_s, every_step=every_step)
        self._starved: dict[LegKey, ModelLeg] = {}
        self._landed_early: dict[LegKey, tuple[float, int]] = {}
        self._inbox: list[tuple[Row, ModelLeg, Any]] = []  # what waits for the step's end

    def die(self) -> None:
        """Nothing is heard of it any more, and all it had is gone.

        What its last step gave was on its way; only here it was not said yet.
        """
        self._steps.stop()
        for leg in self.legs.values():
            if leg.landed:
                self._voice.speak(leg)
        if self._voice.up:
            self._say_up(self, self._voice.up)
        for key in self.legs:
            self._closed(key)
        self.legs.clear()
        self.dead = True

    # ------------------------------------------------------------ what is asked of it

    def take(self, messages: Sequence[DownMessage]) -> None:
        """What its gateway sends."""
        if self.dead:
            return
        legs = self.legs
        for message in messages:
            if type(message) is Start:
                self._start(message)
                continue
            leg = legs.get((message.request, message.epoch))
            if leg is not None:
                _ROWS[type(message)](self, leg, message)
        self._go_on()

    def land(self, key: LegKey, gone: int = 0) -> None:
        """All the KV that a leg imports is here, but for `gone` tokens that nobody has kept."""
        if self.dead:
            return
        leg = self.legs.get(key)
        if leg is not None:
            self._land(leg, gone)
            self._go_on()
            return
        now = self._schedule.now
        while self._landed_early:
            oldest = next(iter(self._landed_early))
            if self._landed_early[oldest][0] + PARKED_S > now:
                break
            del self._landed_early[oldest]
        self._landed_early[key] = now, gone

    def race_before(self, key: LegKey, at: float) -> float | None:
        """A handover begins at `at`: see `race`. When to ask again; None: it races, or is gone.

        It begins a step before; or with its first token, if there will be only a few: the wait for
        the first of a run would be taken for the handoff's gap.
        """
        leg = self.legs.get(key)
        if leg is None or leg.racing:
            return None
        step_s, now = self.step_s(), self._schedule.now
        if at - step_s > now and self._voice.own(leg) + (at - now) / step_s > FEW_TOKENS:
            return at - step_s
        self.race(key)
        return None

    def race(self, key: LegKey) -> None:
        """From now on a leg says every token as it comes."""
        leg = self.legs.get(key)
        if leg is None or leg.racing:
            return
        self._voice.race(leg)
        if leg.leaves_at is not None:
            self._steps.cut()

    def calm(self, key: LegKey) -> None:
        """The handover is over: this leg has no need to say every token."""
        leg = self.legs.get(key)
        if leg is not None and leg.racing:
            self._voice.calm(leg)

    def load(self) -> Load:
        """Its account of itself."""
        spec = self.spec
        return Load(
            worker=spec.name,
            running=self._batch.size + len(self._queue),
            prefill_tokens=sum(leg.todo for leg in self._queue),
            kv_free_tokens=self.memory.free_tokens,
            kv_total_tokens=spec.kv_tokens,
            kv_held_tokens=spec.kv_tokens - self.memory.free_tokens,
            step_s=self.step_s(),
            prefill_tokens_per_s=spec.costs.prefill_tokens_per_s,
        )

    def found(self, key: LegKey) -> tuple[int, float]:
        """Leading tokens of a leg's prompt that need not be sent, and when they are here."""
        leg = self.legs.get(key)
        return (0, 0.0) if leg is None else (leg.hit, leg.loaded_at)

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
        leg = ModelLeg(start=start, key=key)
        reserved = leg.reserved = in_blocks(max(start.reserve, leg.prompt + leg.law + 1))
        if self.slots_used >= spec.slots:
            self._refuse(key, f"all {spec.slots} slots of {spec.name} are taken")
            return
        if reserved > self.memory.free_tokens:
            self._refuse(key, f"{reserved} tokens of KV wanted, {self.memory.free_tokens} are free")
            return
        self.legs[key] = leg
        self.memory.take(leg)
        self.slots_used += 1
        loads = self._stores is not None and self._stores.load(leg, self.memory, self._schedule.now)
        if start.role is PREFILL:
            leg.todo = leg.prompt + leg.law - leg.hit
            if loads:
                leg.loading = True
                self._schedule.at(leg.loaded_at, self._loaded, leg)
            else:
                self._compute(leg)
        elif (landed := self._landed_early.pop(key, None)) is not None:
            self._land(leg, landed[1])

    def _compute(self, leg: ModelLeg) -> None:
        self._queue.append(leg)
        if self._steps.chunk is NO_CHUNK:
            self._steps.cut()

    def _loaded(self, leg: ModelLeg) -> None:
        leg.loading = False
        if not (leg.closed or self.dead):
            self._compute(leg)
            self._go_on()

    def _refuse(self, key: LegKey, reason: str) -> None:
        self._landed_early.pop(key, None)
        self._voice.up.append(Refused(request=key[0], epoch=key[1], reason=reason))

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
        elif leg.todo and not leg.loading:
            self._queue.remove(leg)
        whole = leg.landed and not leg.gone
        if self._stores is not None and whole and leg.start.role is not PREFILL:
            self._stores.keep(leg)
        leg.closed = True
        del self.legs[leg.key]
        self._closed(leg.key)
        self.memory.give_back(leg)
        if not (leg.held or leg.paused):
            self.slots_used -= 1
        self._starved.pop(leg.key, None)
        self._feed_starved()

    def _feed_starved(self) -> None:
        for starved in list(self._starved.values()):
            self._aim_later(starved)

    def _settle(self, leg: ModelLeg) -> None:
        """All that is to be computed of a leg before it decodes is there: some of it may die.

        A real worker lets what landed die after its first step, a step later.
        """
        keeps, reserve = self.spec.keeps, leg.start.reserve
        room = reserve - leg.gone
        if keeps is not None:
            live = leg.computed - leg.gone
            leg.gone += live - keeps.left(live, leg.computed, leg.prompt)
            room = min(room, keeps.most(reserve, leg.prompt) + BLOCK)
        room = in_blocks(max(room, leg.computed + 1 - leg.gone))
        if leg.gone and self.memory.shrink(leg, room):
            self._feed_starved()

    def _land(self, leg: ModelLeg, gone: int) -> None:
        leg.landed = True
        leg.gone = gone
        if not gone:  # what lacks tokens is nobody's prefix
            self.memory.keep(leg)
        self._settle(leg)
        request, epoch = leg.key
        self._voice.up.append(Landed(request=request, epoch=epoch, covered=leg.start.cover))
        self._send_waiting(leg)
        if leg.law:
            self._aim_later(leg)

    def _send_kv(self, leg: ModelLeg, send: SendKV) -> None:
        leg.exports.append((self._schedule.now, send))
        self._send_waiting(leg)

    def _send_waiting(self, leg: ModelLeg) -> None:
        """Send what a leg was asked for, if it has all of it."""
        if leg.exports and (leg.held or leg.start.role is not PREFILL) and leg.landed:
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
        if leg.landed and not leg.todo and self._voice.own(leg) < leg.law:
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
        self._voice.answer(leg, message.start)

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
        own = self._voice.own(leg)
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
            self._voice.speak(leg)
            return
        todo = leg.prompt + leg.own - leg.computed
        if todo > 1:
            leg.todo = todo
            self._queue.append(leg)
        else:
            self._join(leg)

    def _rest(self, leg: ModelLeg) -> None:
        """Its pause takes effect."""
        self._voice.speak(leg)
        leg.paused = True
        self.slots_used -= 1
        request, epoch = leg.key
        self._voice.up.append(Paused(request=request, epoch=epoch, seq=leg.seq, at=leg.own))

    def _has_room(self, leg: ModelLeg) -> bool:
        """Whether its next token has memory, or gets some now."""
        if leg.prompt + leg.own - leg.gone < leg.reserved:
            return True
        if not self.memory.grow(leg):
            self._starved[leg.key] = leg
            return False
        self._starved.pop(leg.key, None)
        return True

    def _join(self, leg: ModelLeg) -> None:
        self._batch.join(leg, leg.goal)
        self._voice.joined(leg)

    def _leave(self, leg: ModelLeg) -> None:
        self._batch.leave(leg)
        self._voice.left(leg)

    def _left(self, leg: ModelLeg) -> None:
        """A leg has reached its goal."""
        voice = self._voice
        voice.left(leg)
        if leg.own >= leg.end:
            voice.speak(leg)
        else:
            self._aim(leg, None)

    # ------------------------------------------------------------ steps

    def _after_step(self, row: Row, leg: ModelLeg, message: Any) -> None:
        self._inbox.append((row, leg, message))
        self._steps.cut()

    def _go_on(self) -> None:
        voice = self._voice
        if not self._steps.running and (self._batch.size or self._queue):
            single = voice.every_step or bool(voice.aloud)
            self._steps.begin(voice.due() if voice.reports else None, single=single)
        if voice.up:
            messages, voice.up = voice.up, []
            self._say_up(self, messages)

    def _ended(self, left: list[ModelLeg], computed: list[ModelLeg]) -> None:
        """The step that ran is over: see `Steps`."""
        for leg in left:
            self._left(leg)
        voice = self._voice
        if voice.aloud or voice.reports:
            voice.after_step()
        for leg in computed:
            self._computed(leg)
        if self._inbox:
            inbox, self._inbox = self._inbox, []
            for row, leg, message in inbox:
                row(leg, message)
        self._go_on()

    def _computed(self, leg: ModelLeg) -> None:
        """A leg has KV for all it knows: it samples its next token, and goes on."""
        leg.computed = leg.prompt + leg.own
        prefill = leg.start.role is PREFILL
        if prefill:
            self.memory.keep(leg)
            if self._stores is not None:
                self._stores.keep(leg)
        self._settle(leg)
        leg.own += leg.own < leg.end
        leg.fresh = False
        self._voice.speak(leg)
        if prefill:
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
