"""A worker's pure core: PROTOCOL's worker-side rules, as legs over an engine.

No I/O, no clock, no threads: messages and `now` go in, outputs come out. `begin` and `complete`
bracket a step, which the caller may compute elsewhere; what arrives meanwhile waits for its end,
since a worker finishes its running step first.
"""

from collections.abc import Callable

from transport.base import Offer, StreamId
from workers import answers
from workers.absent import Absent
from workers.api.messages import (
    Cause,
    DownMessage,
    Feed,
    Load,
    Pause,
    Resume,
    Resync,
    Role,
    SendKV,
    Start,
    Stop,
)
from workers.engines.base import Engine, GrammarRefused, NoRoom, SeqId, Step, StepResult
from workers.handover import Handover, NotYet
from workers.legs import Leg
from workers.meter import StepMeter
from workers.outputs import Output, Up
from workers.runner import Runner
from workers.sense import in_vocabulary, senseless
from workers.sharing import Sharing, Taken
from workers.storing import Storing

__all__ = ["NotYet", "Worker"]


class Worker:
    """See the module's docstring.

    `slots`: legs that may compute, decode or wait for their KV at a time (paused legs and held
    prefills not counted; a leg that resumes is never refused). `hold_s`: how long a prefill's KV
    is kept after its token. `lease_s`: how long the legs of a gateway that is not seen are kept.
    `stores`: whether the site has stores of KV blocks; who carries orders out has the way to them.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        *,
        slots: int,
        hold_s: float,
        lease_s: float,
        tombstone_s: float = 60.0,
        stores: bool = False,
    ) -> None:
        self.name = name
        self._engine = engine
        self._slots = slots
        self._hold_s = hold_s
        self._lease_s = lease_s
        self._runner = Runner(engine)
        self._legs = self._runner.legs
        self._absent = Absent(tombstone_s)
        self._handover = Handover(name, self._runner, self._absent)
        self._seen: dict[str, float] = {}  # gateway -> when it was heard last
        self._holds: dict[SeqId, float] = {}  # held prefill -> when its KV is freed
        self._step: Step | None = None
        self._step_began = 0.0
        self._sharing = Sharing()
        self._inbox: list[Callable[[float], list[Output]]] = []
        self._meter = StepMeter()
        self._storing = Storing(self._runner, self._meter) if stores else None
        self._draining = False

    # ---------------------------------------------------------------- messages and steps

    def handle(self, message: DownMessage, now: float) -> list[Output]:
        """Take one message. While a step runs it waits for the step's end."""
        row = _ROWS[type(message)]
        if self._step is None:
            return row(self, message, now)
        self._inbox.append(lambda at: row(self, message, at))
        return []

    def begin(self, now: float) -> Step | None:
        """Choose the next step; None: nothing to compute. RuntimeError if one is running."""
        if self._step is not None:
            raise RuntimeError("the last step is not complete")
        self._step = self._engine.begin()
        self._step_began = now
        return self._step

    def finish(self, step: Step, now: float) -> list[Output]:
        """Compute the step and complete it."""
        return self.complete(step, self._engine.finish(step), now)

    def complete(self, step: Step, result: StepResult, now: float) -> list[Output]:
        """Turn a step's result into token runs; then do what arrived while it ran."""
        if step is not self._step:
            raise RuntimeError("this step is not the one that runs")
        self._step = None
        out: list[Output] = []
        decodes = False
        for sample in result.samples:
            leg = self._legs[sample.seq]
            decodes = decodes or leg.start.role is not Role.PREFILL
            out.append(Up(gateway=leg.gateway, message=leg.take(sample)))
        took_s = now - self._step_began if result.took_s is None else result.took_s
        self._meter.measure(took_s, result.prefill_tokens, decodes=decodes)
        for seq in step.seqs:
            leg = self._legs[seq]
            if not leg.decodes_on:
                out += self._hold_if_done(leg, result.computed.get(seq, 0), now)
                out += self._runner.aim(leg)
        out += self._handover.computed(result.computed)
        for seq, reason in result.lost:
            out += self._close(self._legs[seq], now, refusal=reason, cause=Cause.GRAMMAR)
        if self._inbox:
            inbox, self._inbox = self._inbox, []
            for call in inbox:
                out += call(now)
        return out + self.expire(now)

    def abandoned(self, request: str, epoch: int) -> None:
        """A stop for this leg is waiting: cut the running step short. From any thread."""
        try:
            self._engine.cancel(SeqId(request, epoch))
        except KeyError:
            return  # not started, or gone already

    # ---------------------------------------------------------------- KV streams

    def offered(self, offer: Offer, now: float) -> int:
        """Leading tokens of the offered range that are here. Never touches the engine.

        Raises NotYet while the leg's start has not come, OfferRefused when it never can land.
        """
        return self._handover.offered(offer)

    def import_completed(self, stream: StreamId, now: float) -> list[Output]:
        """Every slice of a stream has been put."""
        return self._do(lambda at: self._handover.import_completed(stream), now)

    def import_broken(self, stream: StreamId, reason: str, now: float) -> list[Output]:
        """A stream will not complete; what has been put stays for the next source."""
        return self._do(lambda at: self._handover.import_broken(stream, reason), now)

    def export_completed(self, stream: StreamId, now: float) -> list[Output]:
        """The receiver has all of a stream that this worker sent."""
        return self._do(lambda at: self._handover.export_completed(stream), now)

    def export_failed(self, stream: StreamId, reason: str, now: float) -> list[Output]:
        """A stream that this worker sent was refused, or could not be resumed in time."""
        return self._do(lambda at: self._handover.export_failed(stream, reason), now)

    def blocks_loaded(self, seq: SeqId, now: float) -> list[Output]:
        """All that the site's stores will give has been put; see `LoadBlocks`."""
        return self._do(lambda at: self._loaded(seq), now)

    # ---------------------------------------------------------------- leases, load, drain

    def gateway_seen(self, gateway: str, now: float) -> None:
        """Renew a gateway's lease on its legs."""
        self._seen[gateway] = now

    def next_deadline(self) -> float | None:
        """When to call `expire`; None: nothing to wait for, or the running step's end does it."""
        if self._step is not None:
            return None
        times = [at + self._lease_s for gateway, at in self._seen.items() if self._serves(gateway)]
        if self._holds:
            times.append(next(iter(self._holds.values())))  # held longest
        others = [self._absent.next_deadline()]
        if self._storing is not None:
            others.append(self._storing.next_deadline())
        return min((*times, *(at for at in others if at is not None)), default=None)

    def _serves(self, gateway: str) -> bool:
        """Whether it has a leg here."""
        return any(leg.start.gateway == gateway for leg in self._legs.values())

    def expire(self, now: float) -> list[Output]:
        """Free what nobody renewed. While a step runs this waits for its end."""
        if self._step is not None:
            return []
        out: list[Output] = []
        for gateway in [g for g, at in self._seen.items() if at + self._lease_s <= now]:
            del self._seen[gateway]
            for leg in [leg for leg in self._legs.values() if leg.gateway == gateway]:
                out += self._close(leg, now, refusal=f"lease expired: {gateway} was not seen")
        for seq in [seq for seq, at in self._holds.items() if at <= now]:
            out += self._close(self._legs[seq], now, refusal="hold expired")
        for seq in self._storing.overdue(now) if self._storing is not None else ():
            out += self._loaded(seq)
        for message in self._absent.expire(now):
            out += self._give_up(message)
        return out + self._runner.feed_starved()

    def load(self) -> Load:
        """The worker's own account of itself."""
        engine = self._engine
        busy = [leg.seq for leg in self._legs.values() if leg.target() is not None]
        kept = engine.kept()
        uncomputed = (engine.length(seq) - engine.computed(seq) for seq in busy)
        return Load(
            worker=self.name,
            running=len(busy),
            prefill_tokens=sum(max(0, tokens - 1) for tokens in uncomputed),
            kv_free_tokens=engine.kv_free_tokens(),
            kv_total_tokens=engine.info.kv_total_tokens,
            kv_held_tokens=engine.kv_held_tokens(),
            step_s=self._meter.step_s,
            prefill_tokens_per_s=self._meter.prefill_tokens_per_s,
            kv_evicted_tokens=kept.evicted_tokens,
            kv_freed_blocks=kept.freed_blocks,
            kv_waste=1 - kept.living_tokens / kept.places if kept.places else None,
        )

    def taken(self) -> dict[str, Taken]:
        """What the legs of each gateway take that was seen within its lease."""
        taken = dict.fromkeys(self._seen, Taken())
        for leg in self._legs.values():
            before = taken.get(leg.gateway, Taken())
            taken[leg.gateway] = Taken(before.slots + leg.takes_slot, before.tokens + leg.reserved)
        return taken

    def drain(self, now: float) -> None:
        """Take no new legs; those that are here go on."""
        self._draining = True

    @property
    def leg_count(self) -> int:
        """Legs that are here, held and paused ones too."""
        return len(self._legs)

    def legs_of(self, request: str) -> int:
        """How many of them are of this request."""
        return sum(seq.request == request for seq in self._legs)

    @property
    def idle(self) -> bool:
        """Nothing is held for anybody and nothing runs."""
        return not self._legs and self._step is None

    # ---------------------------------------------------------------- start and stop

    def _start(self, start: Start, now: float) -> list[Output]:
        seq = SeqId(start.request, start.epoch)
        self._seen[start.gateway] = max(now, self._seen.get(start.gateway, now))
        if seq in self._legs:
            return self._repeat(self._legs[seq])
        if self._absent.tombstone(seq) is not None:
            return self._refusal(seq)
        reason = senseless(start, self._engine.info)
        if reason is not None:
            return self._refuse(start, now, reason, cause=Cause.SENSELESS)
        if self._draining:
            return self._refuse(start, now, f"{self.name} is draining")
        taken = self.taken()
        kept = self._sharing.kept_from(start.gateway, taken, now)
        if sum(share.slots for share in taken.values()) + kept >= self._slots:
            self._sharing.refused(start.gateway, now)
            return self._refuse(start, now, f"all {self._slots} slots of {self.name} are taken")
        try:
            leg = self._runner.open(start, seq)
        except NoRoom as full:
            self._sharing.refused(start.gateway, now)
            return self._refuse(start, now, str(full))
        except GrammarRefused as error:
            return self._refuse(start, now, str(error), cause=Cause.GRAMMAR)
        self._sharing.started(start.gateway)
        out = [] if self._storing is None else self._storing.begin(leg, now)
        out += self._runner.aim(leg) + self._handover.started(leg)
        return out + self._unpark(seq, now)

    def _repeat(self, leg: Leg) -> list[Output]:
        """A start came again: whatever it was answered with may have been lost."""
        out: list[Output] = []
        if leg.landed and leg.start.role is not Role.PREFILL:
            out.append(answers.landed(leg))
        if len(leg.own) > len(leg.law):
            out += answers.runs(leg, len(leg.law))
        return out

    def _refuse(
        self, start: Start, now: float, reason: str, *, cause: Cause = Cause.BUSY
    ) -> list[Output]:
        seq = SeqId(start.request, start.epoch)
        self._absent.bury(seq, now, start.gateway, refusal=reason, cause=cause)
        return self._refusal(seq) + self._unpark(seq, now)

    def _refusal(self, seq: SeqId) -> list[Output]:
        """What a gateway hears that speaks to an ended leg; nothing if it ended it itself."""
        stone = self._absent.tombstone(seq)
        if stone is None or stone.refusal is None:
            return []
        return [answers.refused(stone.gateway, seq, stone.refusal, cause=stone.cause)]

    def _stop(self, stop: Stop, now: float) -> list[Output]:
        seq = SeqId(stop.request, stop.epoch)
        leg = self._legs.get(seq)
        if leg is not None:
            return self._close(leg, now) + self._runner.feed_starved()
        self._absent.bury(seq, now, None)
        return self._unpark(seq, now)

    def _close(
        self,
        leg: Leg,
        now: float,
        *,
        refusal: str | None = None,
        cause: Cause = Cause.BUSY,
    ) -> list[Output]:
        """Free all that a leg holds. `refusal`: what to tell its gateway, if it does not know."""
        out = [] if leg.held else self._keep(leg)
        self._runner.close(leg)
        self._holds.pop(leg.seq, None)
        self._absent.bury(leg.seq, now, leg.gateway, refusal=refusal, cause=cause)
        out += self._refusal(leg.seq)
        return out + self._handover.closed(leg, refusal or "the source was stopped")

    def _hold_if_done(self, leg: Leg, computed: int, now: float) -> list[Output]:
        """A prefill samples once and then only keeps its KV for a while."""
        if leg.start.role is not Role.PREFILL or leg.held:
            return []
        target = leg.target()
        if target is None or len(leg.own) < target:
            return []
        if computed < leg.prompt_len + len(leg.start.law_ids):
            return []
        leg.held = True
        self._holds[leg.seq] = now + self._hold_s
        return self._keep(leg)

    # ---------------------------------------------------------------- the site's stores

    def _loaded(self, seq: SeqId) -> list[Output]:
        leg = None if self._storing is None else self._storing.done(seq)
        return [] if leg is None else self._handover.loaded(leg)

    def _keep(self, leg: Leg) -> list[Output]:
        return [] if self._storing is None else self._storing.keep(leg)

    # ---------------------------------------------------------------- law, pause, resync, KV

    def _feed(self, feed: Feed, now: float) -> list[Output]:
        seq = SeqId(feed.request, feed.epoch)
        leg = self._legs.get(seq)
        if leg is None:
            return self._park(seq, feed, now)
        if not in_vocabulary(feed.ids, self._engine.info):
            return []
        cut = leg.learn(feed)
        out: list[Output] = []
        if cut is not None:
            computed = self._engine.computed(seq)
            for epoch in list(leg.spoiled_exports(leg.prompt_len + cut, computed)):
                out += self._handover.fail_export(leg, epoch, "the source took tokens back")
        return out + self._runner.aim(leg)

    def _switch(self, message: Pause | Resume, now: float) -> list[Output]:
        seq = SeqId(message.request, message.epoch)
        leg = self._legs.get(seq)
        if leg is None:
            return self._park(seq, message, now)
        if leg.switch(message):
            return self._runner.aim(leg)
        repeated = leg.pause is not None and leg.pause.seq == message.seq
        return answers.paused(leg) if repeated and isinstance(message, Pause) else []

    def _resync(self, resync: Resync, now: float) -> list[Output]:
        seq = SeqId(resync.request, resync.epoch)
        leg = self._legs.get(seq)
        if leg is not None:
            return answers.runs(leg, resync.start)
        if self._absent.tombstone(seq) is not None:
            return self._refusal(seq)
        return self._park(seq, resync, now)

    def _send_kv(self, send: SendKV, now: float) -> list[Output]:
        seq = SeqId(send.request, send.epoch)
        leg = self._legs.get(seq)
        if leg is not None:
            return self._handover.send(leg, send)
        if self._absent.tombstone(seq) is not None:
            return self._refusal(seq)
        return self._park(seq, send, now)

    # ---------------------------------------------------------------- before start

    def _park(self, seq: SeqId, message: DownMessage, now: float) -> list[Output]:
        if self._absent.tombstone(seq) is not None:
            return []
        out: list[Output] = []
        for dropped in self._absent.park(seq, message, now):
            out += self._give_up(dropped)
        return out

    def _unpark(self, seq: SeqId, now: float) -> list[Output]:
        out: list[Output] = []
        for message in self._absent.unpark(seq):
            out += _ROWS[type(message)](self, message, now)
        return out

    def _give_up(self, message: DownMessage) -> list[Output]:
        """A parked message whose start never came: whoever waits for an answer gets one."""
        reason = f"leg {message.epoch} is not known at {self.name}"
        if isinstance(message, SendKV):
            return [answers.send_failed(None, message, reason)]
        if isinstance(message, Resync):
            return [answers.refused(None, SeqId(message.request, message.epoch), reason)]
        return []

    def _do(self, call: Callable[[float], list[Output]], now: float) -> list[Output]:
        if self._step is None:
            return call(now)
        self._inbox.append(call)
        return []


_ROWS: dict[type, Callable[..., list[Output]]] = {
    Start: Worker._start,
    SendKV: Worker._send_kv,
    Pause: Worker._switch,
    Resume: Worker._switch,
    Stop: Worker._stop,
    Feed: Worker._feed,
    Resync: Worker._resync,
}
