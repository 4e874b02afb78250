"""A worker's pure core: PROTOCOL's worker-side rules, as legs over an engine.

No I/O, no clock, no threads: messages and `now` go in, outputs come out. `begin` and `complete`
bracket a step, which the caller may compute elsewhere; what arrives meanwhile waits for its end,
since a worker finishes its running step first.
"""

import json
from collections.abc import Callable
from dataclasses import asdict

from transport.base import Offer, OfferRefused, StreamId
from workers.absent import Absent
from workers.api.messages import (
    DownMessage,
    Feed,
    KVFailed,
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
    TokenRun,
    UpMessage,
)
from workers.engines.base import Engine, NoRoom, SeqId, SequenceSpec, Step, StepResult
from workers.legs import Leg
from workers.meter import StepMeter
from workers.outputs import CloseStream, DropImport, OpenStream, Output, Up


class NotYet(Exception):
    """The leg that an offer names has not started here; ask again in a moment."""


class Worker:
    """See the module's docstring.

    `slots`: legs that may compute, decode or wait for their KV at a time (paused legs and held
    prefills not counted). `hold_s`: how long a prefill's KV is kept after its token. `lease_s`:
    how long the legs of a gateway that is not seen are kept.
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
    ) -> None:
        self.name = name
        self._engine = engine
        self._slots = slots
        self._hold_s = hold_s
        self._lease_s = lease_s
        self._legs: dict[SeqId, Leg] = {}
        self._absent = Absent(tombstone_s)
        self._seen: dict[str, float] = {}  # gateway -> when it was heard last
        self._holds: dict[SeqId, float] = {}  # held prefill -> when its KV is freed
        self._shares: dict[SeqId, SeqId] = {}  # target -> source on this worker
        self._starved: dict[SeqId, None] = {}  # legs that wait for KV memory, oldest first
        self._step: Step | None = None
        self._step_began = 0.0
        self._inbox: list[Callable[[float], list[Output]]] = []
        self._meter = StepMeter()
        self._draining = False
        self._fingerprint = json.loads(json.dumps(asdict(engine.info.fingerprint)))

    # ---------------------------------------------------------------- what the server calls

    def handle(self, message: DownMessage, now: float) -> list[Output]:
        """Take one message. While a step runs it waits for the step's end."""
        return self._do(lambda at: _ROWS[type(message)](self, message, at), now)

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
        self._meter.measure(now - self._step_began, result.prefill_tokens)
        out: list[Output] = []
        for sample in result.samples:
            leg = self._legs.get(sample.seq)
            if leg is not None:
                out.append(self._up(leg, leg.take(sample)))
        for seq in step.seqs:
            leg = self._legs.get(seq)
            if leg is not None and not leg.decodes_on:
                self._hold_if_done(leg, result.computed.get(seq, 0), now)
                out += self._aim(leg)
        for target in [t for t, source in self._shares.items() if source in result.computed]:
            out += self._share(target)
        inbox, self._inbox = self._inbox, []
        for call in inbox:
            out += call(now)
        out += self._feed_starved()
        return out + self.expire(now)

    def offered(self, offer: Offer, now: float) -> int:
        """Leading tokens of the offered range that are here; nothing of the engine is touched.

        Raises NotYet while the leg's start has not come, OfferRefused when it never can land.
        """
        stream = offer.stream
        seq = SeqId(stream.request, stream.target)
        leg = self._legs.get(seq)
        if leg is None:
            if self._absent.tombstone(seq) is None:
                raise NotYet(f"leg {seq.epoch} of {seq.request} has not started")
            raise OfferRefused(f"leg {seq.epoch} of {seq.request} has ended")
        if leg.start.role is Role.PREFILL:
            raise OfferRefused(f"leg {seq.epoch} of {seq.request} is a prefill: it imports nothing")
        refusal = self._difference(offer, leg)
        if refusal is not None:
            raise OfferRefused(refusal)
        if leg.landed:
            return offer.stop
        if offer.start > leg.have:
            raise OfferRefused(f"{leg.have} tokens are here, the offer starts at {offer.start}")
        leg.imports.add(stream)
        return leg.have

    def import_completed(self, stream: StreamId, now: float) -> list[Output]:
        """Every slice of a stream has been put."""
        return self._do(lambda at: self._import_completed(stream), now)

    def import_broken(self, stream: StreamId, reason: str, now: float) -> list[Output]:
        """A stream will not complete; what has been put stays for the next source."""
        return self._do(lambda at: self._import_broken(stream, reason), now)

    def export_completed(self, stream: StreamId, now: float) -> list[Output]:
        """The receiver has all of a stream that this worker sent."""
        return self._do(lambda at: self._export_completed(stream), now)

    def export_failed(self, stream: StreamId, reason: str, now: float) -> list[Output]:
        """A stream that this worker sent was refused, or could not be resumed in time."""
        return self._do(lambda at: self._export_failed(stream, reason), now)

    def abandoned(self, request: str, epoch: int) -> None:
        """A stop for this leg is waiting: cut the running step short. May come at any time."""
        seq = SeqId(request, epoch)
        if seq in self._legs:
            self._engine.cancel(seq)

    def gateway_seen(self, gateway: str, now: float) -> None:
        """Renew a gateway's lease on its legs."""
        self._seen[gateway] = now

    def drain(self, now: float) -> None:
        """Take no new legs; those that are here go on."""
        self._draining = True

    @property
    def idle(self) -> bool:
        """Nothing is held for anybody and nothing runs."""
        return not self._legs and self._step is None

    @property
    def leg_count(self) -> int:
        """Legs that are here, held and paused ones too."""
        return len(self._legs)

    def next_deadline(self) -> float | None:
        """When to call `expire`; None: nothing to wait for, or the running step's end does it."""
        if self._step is not None:
            return None
        gateways = {leg.gateway for leg in self._legs.values()}
        times = [self._seen[gateway] + self._lease_s for gateway in gateways]
        times += list(self._holds.values())[:1]
        parked = self._absent.next_deadline()
        return min(times if parked is None else [*times, parked], default=None)

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
        for message in self._absent.expire(now):
            out += self._give_up(message)
        return out + self._feed_starved()

    def load(self) -> Load:
        """The worker's own account of itself."""
        engine, legs = self._engine, self._legs.values()
        busy = [leg for leg in legs if leg.target() is not None]
        return Load(
            worker=self.name,
            running=len(busy),
            prefill_tokens=sum(
                max(0, engine.length(leg.seq) - engine.computed(leg.seq) - 1) for leg in busy
            ),
            kv_free_tokens=engine.kv_free_tokens(),
            kv_total_tokens=engine.info.kv_total_tokens,
            kv_held_tokens=engine.kv_held_tokens(),
            step_s=self._meter.step_s,
            prefill_tokens_per_s=self._meter.prefill_tokens_per_s,
        )

    # ---------------------------------------------------------------- start and stop

    def _start(self, start: Start, now: float) -> list[Output]:
        seq = SeqId(start.request, start.epoch)
        self._seen[start.gateway] = max(now, self._seen.get(start.gateway, now))
        leg = self._legs.get(seq)
        if leg is not None:
            return self._repeat(leg)
        tombstone = self._absent.tombstone(seq)
        if tombstone is not None:
            return self._refusal(seq, start.gateway)
        senseless = self._senseless(start)
        if senseless is not None:
            return self._refuse(start, now, senseless, retryable=False)
        if self._draining:
            return self._refuse(start, now, f"{self.name} is draining")
        if sum(leg.takes_slot for leg in self._legs.values()) >= self._slots:
            return self._refuse(start, now, f"all {self._slots} slots of {self.name} are taken")
        try:
            leg = self._open(start, seq)
        except NoRoom as full:
            return self._refuse(start, now, str(full))
        out: list[Output] = []
        if not leg.landed and self._engine.missing(seq) == 0:
            out += self._land(leg)
        out += self._aim(leg)
        for message in self._absent.unpark(seq):
            out += _ROWS[type(message)](self, message, now)
        return out + self._share(seq)

    def _open(self, start: Start, seq: SeqId) -> Leg:
        """Set the leg's memory aside; raises NoRoom and leaves nothing behind."""
        known = start.law_ids
        imports = start.role is not Role.PREFILL
        tokens = (*start.prompt_ids, *(known[: start.cover] if imports else known))
        reserve = max(start.reserve, len(start.prompt_ids) + len(known) + 1)
        spec = SequenceSpec(
            tokens=tokens,
            prompt_len=len(start.prompt_ids),
            reserve=reserve,
            sampling=start.sampling,
            stop_ids=start.stop_ids,
            min_tokens=start.min_tokens,
            cache_salt=start.cache_salt,
        )
        self._engine.open(seq, spec, reuse=not imports)
        leg = Leg.opened(start, seq, spec)
        self._legs[seq] = leg
        if imports:
            leg.have = self._engine.open_import(seq, leg.import_tokens)
        return leg

    def _senseless(self, start: Start) -> str | None:
        """Why no worker could take this leg; None: it makes sense."""
        info = self._engine.info
        if not start.prompt_ids:
            return "the prompt is empty"
        if len(start.prompt_ids) + start.limit > info.max_context:
            return (
                f"{len(start.prompt_ids)} prompt tokens and {start.limit} output tokens exceed "
                f"the context of {info.max_context}"
            )
        if not 0 <= start.cover <= len(start.law_ids) <= start.limit:
            return (
                f"cover {start.cover}, law {len(start.law_ids)} and limit {start.limit} "
                "must not decrease"
            )
        if not self._in_vocabulary(start.prompt_ids) or not self._in_vocabulary(start.law_ids):
            return f"token ids must be within [0, {info.vocab_size})"
        return None

    def _in_vocabulary(self, ids: tuple[int, ...]) -> bool:
        return not ids or (min(ids) >= 0 and max(ids) < self._engine.info.vocab_size)

    def _repeat(self, leg: Leg) -> list[Output]:
        """A start came again: whatever it was answered with may have been lost."""
        out: list[Output] = []
        if leg.landed and leg.start.role is not Role.PREFILL:
            out.append(self._up(leg, self._landed(leg)))
        if len(leg.own) > len(leg.law):
            out += self._runs(leg, len(leg.law))
        return out

    def _refuse(
        self, start: Start, now: float, reason: str, *, retryable: bool = True
    ) -> list[Output]:
        seq = SeqId(start.request, start.epoch)
        self._absent.bury(seq, now, start.gateway, refusal=reason, retryable=retryable)
        out = self._refusal(seq, start.gateway)
        for message in self._absent.unpark(seq):
            out += _ROWS[type(message)](self, message, now)
        return out

    def _refusal(self, seq: SeqId, gateway: str | None) -> list[Output]:
        """What a gateway hears that speaks to an ended leg; nothing if it ended it itself."""
        tombstone = self._absent.tombstone(seq)
        if tombstone is None or tombstone.refusal is None:
            return []
        message = Refused(
            request=seq.request,
            epoch=seq.epoch,
            reason=tombstone.refusal,
            retryable=tombstone.retryable,
        )
        return [Up(gateway=gateway, message=message)]

    def _stop(self, stop: Stop, now: float) -> list[Output]:
        seq = SeqId(stop.request, stop.epoch)
        leg = self._legs.get(seq)
        if leg is not None:
            return self._close(leg, now) + self._feed_starved()
        self._absent.bury(seq, now, None)
        out: list[Output] = []
        for message in self._absent.unpark(seq):
            out += _ROWS[type(message)](self, message, now)
        return out

    def _close(self, leg: Leg, now: float, *, refusal: str | None = None) -> list[Output]:
        """Free all that a leg holds. `refusal`: what to tell its gateway, if it does not know."""
        seq = leg.seq
        self._engine.close(seq)
        del self._legs[seq]
        self._holds.pop(seq, None)
        self._starved.pop(seq, None)
        self._shares.pop(seq, None)
        self._absent.bury(seq, now, leg.gateway, refusal=refusal)
        out: list[Output] = []
        if refusal is not None:
            out += self._refusal(seq, leg.gateway)
        for epoch in list(leg.exports):
            out += self._fail_export(leg, epoch, refusal or "the source was stopped")
        if not leg.landed:
            out += [DropImport(stream=stream) for stream in sorted(leg.imports)]
        return out

    # ---------------------------------------------------------------- law, pause, resync

    def _feed(self, feed: Feed, now: float) -> list[Output]:
        seq = SeqId(feed.request, feed.epoch)
        leg = self._legs.get(seq)
        if leg is None:
            return self._park(seq, feed, now)
        if not self._in_vocabulary(feed.ids):
            return []
        cut = leg.learn(feed)
        out: list[Output] = []
        if cut is not None:
            length = leg.prompt_len + cut
            for epoch in list(leg.spoiled_exports(length, self._engine.computed(seq))):
                out += self._fail_export(leg, epoch, "the source took tokens back")
            if cut < leg.applied:
                leg.applied = leg.cut = cut
        return out + self._aim(leg)

    def _switch(self, message: Pause | Resume, now: float) -> list[Output]:
        seq = SeqId(message.request, message.epoch)
        leg = self._legs.get(seq)
        if leg is None:
            return self._park(seq, message, now)
        if leg.switch(message):
            return self._aim(leg)
        pause = leg.pause
        if pause is not None and pause.seq == message.seq and isinstance(message, Pause):
            return self._paused(leg)
        return []

    def _resync(self, resync: Resync, now: float) -> list[Output]:
        seq = SeqId(resync.request, resync.epoch)
        leg = self._legs.get(seq)
        if leg is not None:
            return self._runs(leg, resync.start)
        tombstone = self._absent.tombstone(seq)
        if tombstone is not None:
            return self._refusal(seq, tombstone.gateway)
        return self._park(seq, resync, now)

    def _park(self, seq: SeqId, message: DownMessage, now: float) -> list[Output]:
        if self._absent.tombstone(seq) is not None:
            return []
        out: list[Output] = []
        for dropped in self._absent.park(seq, message, now):
            out += self._give_up(dropped)
        return out

    def _give_up(self, message: DownMessage) -> list[Output]:
        """A parked message whose start never came: whoever waits for an answer gets one."""
        if isinstance(message, SendKV):
            reason = f"leg {message.epoch} is not known at {self.name}"
            return [self._kv_failed(None, message, reason)]
        if isinstance(message, Resync):
            refused = Refused(
                request=message.request,
                epoch=message.epoch,
                reason=f"leg {message.epoch} is not known at {self.name}",
            )
            return [Up(gateway=None, message=refused)]
        return []

    # ---------------------------------------------------------------- KV

    def _send_kv(self, send: SendKV, now: float) -> list[Output]:
        seq = SeqId(send.request, send.epoch)
        leg = self._legs.get(seq)
        if leg is None:
            tombstone = self._absent.tombstone(seq)
            if tombstone is None:
                return self._park(seq, send, now)
            return [self._kv_failed(tombstone.gateway, send, "the source has ended")]
        if send.to_epoch in leg.failed_exports:
            return [self._kv_failed(leg.gateway, send, leg.failed_exports[send.to_epoch])]
        if send.to_epoch in leg.exports:
            return self._share(SeqId(send.request, send.to_epoch))
        senseless = self._senseless_send(leg, send)
        if senseless is not None:
            return [self._kv_failed(leg.gateway, send, senseless)]
        leg.exports[send.to_epoch] = send
        if send.to_worker == self.name:
            target = SeqId(send.request, send.to_epoch)
            self._shares[target] = seq
            return self._aim(leg) + self._share(target)
        stream = StreamId(send.request, send.epoch, send.to_epoch)
        opened = OpenStream(
            stream=stream,
            seq=seq,
            address=send.address or "",
            start=send.start,
            stop=send.stop,
            codec=send.codec,
            cache_salt=leg.start.cache_salt,
        )
        return [opened, *self._aim(leg)]

    def _senseless_send(self, leg: Leg, send: SendKV) -> str | None:
        """Why this leg can never send that; None: it can."""
        last = len(leg.start.law_ids) if leg.start.role is Role.PREFILL else leg.start.limit
        if not 0 <= send.start < send.stop <= leg.prompt_len + last:
            return f"tokens [{send.start}, {send.stop}) never exist in leg {send.epoch}"
        if send.to_epoch == send.epoch:
            return "a leg cannot be its own source"
        if send.to_worker != self.name and not send.address:
            return f"no address of {send.to_worker} was given"
        return None

    def _share(self, target: SeqId) -> list[Output]:
        """Hand KV over within this worker, once the source has it and the target has started."""
        source = self._legs.get(self._shares.get(target, target))
        leg = self._legs.get(target)
        if source is None or leg is None or source is leg:
            return []
        send = source.exports[target.epoch]
        if leg.landed:
            del source.exports[target.epoch], self._shares[target]
            return [self._up(leg, self._landed(leg))] if leg.start.role is not Role.PREFILL else []
        cover = leg.start.cover
        if send.stop != leg.import_tokens or source.own[:cover] != leg.law[:cover]:
            return self._fail_export(source, target.epoch, "the source holds other tokens")
        if not source.landed or self._engine.computed(source.seq) < send.stop:
            return []
        # The import gives way: what it found or got is a part of what the source has.
        self._engine.close(target)
        self._engine.open(target, leg.spec, reuse=False)
        self._engine.share(source.seq, target, send.stop)
        del source.exports[target.epoch], self._shares[target]
        return self._landed_now(leg)

    def _import_completed(self, stream: StreamId) -> list[Output]:
        leg = self._importing(stream)
        if leg is None:
            return []
        leg.imports.discard(stream)
        missing = self._engine.missing(leg.seq)
        if missing:
            reason = f"the stream ended with {missing} slices missing"
            return [self._import_failed(leg, stream, reason)]
        return self._land(leg)

    def _import_broken(self, stream: StreamId, reason: str) -> list[Output]:
        leg = self._importing(stream)
        if leg is None:
            return []
        leg.imports.discard(stream)
        return [self._import_failed(leg, stream, reason)]

    def _importing(self, stream: StreamId) -> Leg | None:
        leg = self._legs.get(SeqId(stream.request, stream.target))
        return None if leg is None or leg.landed else leg

    def _land(self, leg: Leg) -> list[Output]:
        self._engine.commit_import(leg.seq)
        return self._landed_now(leg)

    def _landed_now(self, leg: Leg) -> list[Output]:
        leg.landed = True
        out: list[Output] = [DropImport(stream=stream) for stream in sorted(leg.imports)]
        leg.imports.clear()
        return [*out, self._up(leg, self._landed(leg)), *self._aim(leg)]

    def _export_completed(self, stream: StreamId) -> list[Output]:
        leg = self._legs.get(SeqId(stream.request, stream.source))
        if leg is not None:
            leg.exports.pop(stream.target, None)
        return []

    def _export_failed(self, stream: StreamId, reason: str) -> list[Output]:
        leg = self._legs.get(SeqId(stream.request, stream.source))
        if leg is None or stream.target not in leg.exports:
            return []
        return self._fail_export(leg, stream.target, reason)

    def _fail_export(self, leg: Leg, to_epoch: int, reason: str) -> list[Output]:
        send = leg.exports.pop(to_epoch)
        leg.failed_exports[to_epoch] = reason
        out: list[Output] = [self._kv_failed(leg.gateway, send, reason)]
        if send.to_worker == self.name:
            self._shares.pop(SeqId(send.request, to_epoch), None)
        else:
            stream = StreamId(send.request, send.epoch, to_epoch)
            out.insert(0, CloseStream(stream=stream))
        return out

    def _difference(self, offer: Offer, leg: Leg) -> str | None:
        """Why the offered KV is not this leg's; None: it is. Both values where they differ."""
        try:
            theirs = json.loads(offer.fingerprint)
        except ValueError:
            theirs = None
        if theirs != self._fingerprint:
            mine = json.dumps(self._fingerprint, sort_keys=True)
            return f"fingerprint here {mine}, offered {offer.fingerprint}"
        rows = 2 * self._engine.info.fingerprint.layers
        if offer.slices_per_token != rows:
            return f"slices per token here {rows}, offered {offer.slices_per_token}"
        if offer.cache_salt != leg.start.cache_salt:
            return f"cache salt here {leg.start.cache_salt!r}, offered {offer.cache_salt!r}"
        if offer.stop != leg.import_tokens:
            return f"tokens wanted here {leg.import_tokens}, offered up to {offer.stop}"
        return None

    # ---------------------------------------------------------------- what runs

    def _aim(self, leg: Leg) -> list[Output]:
        """Tell the engine what this leg wants now; a pause that is reached takes effect."""
        out = self._paused(leg) if leg.settle_pause() else []
        engine, seq = self._engine, leg.seq
        self._starved.pop(seq, None)
        if not self._cut(leg):
            self._wait_for_room(leg)
            return out
        target = leg.target()
        if target is None and leg.landed and self._export_waits(leg):
            target = len(leg.own)
        if target is None:
            self._rest(leg)
            return out
        samples = target > len(leg.own)
        if not self._has_room(leg, leg.prompt_len + len(leg.own) + samples):
            self._wait_for_room(leg)
            return out
        if leg.applied < len(leg.own):
            engine.append(seq, leg.own[leg.applied :])
            leg.applied = len(leg.own)
        leg.goal = min(leg.prompt_len + target, leg.reserved)
        engine.set_goal(seq, leg.goal)
        return out

    def _wait_for_room(self, leg: Leg) -> None:
        self._starved[leg.seq] = None
        self._rest(leg)

    def _rest(self, leg: Leg) -> None:
        leg.goal = None
        self._engine.set_goal(leg.seq, None)

    def _cut(self, leg: Leg) -> bool:
        """Take back what own history lost; False: a shared block had to be copied, no room."""
        if leg.cut is None:
            return True
        try:
            self._engine.truncate(leg.seq, leg.prompt_len + leg.cut)
        except NoRoom:
            return False
        leg.cut = None
        return True

    def _export_waits(self, leg: Leg) -> bool:
        wanted = leg.export_target()
        return wanted is not None and self._engine.computed(leg.seq) < leg.prompt_len + wanted

    def _has_room(self, leg: Leg, tokens: int) -> bool:
        if tokens <= leg.reserved:
            return True
        block = self._engine.info.block_size
        wanted = -(-tokens // block) * block
        try:
            self._engine.grow(leg.seq, wanted)
        except NoRoom:
            return False
        leg.reserved = wanted
        return True

    def _feed_starved(self) -> list[Output]:
        """Blocks may have come free: try the legs that wait for some again, oldest first."""
        out: list[Output] = []
        for seq in list(self._starved):
            out += self._aim(self._legs[seq])
        return out

    def _hold_if_done(self, leg: Leg, computed: int, now: float) -> None:
        """A prefill samples once and then only keeps its KV for a while."""
        if leg.start.role is not Role.PREFILL or leg.held:
            return
        target = leg.target()
        if target is None or len(leg.own) < target:
            return
        if computed < leg.prompt_len + len(leg.start.law_ids):
            return
        leg.held = True
        self._holds[leg.seq] = now + self._hold_s

    # ---------------------------------------------------------------- messages up

    def _do(self, call: Callable[[float], list[Output]], now: float) -> list[Output]:
        if self._step is not None:
            self._inbox.append(call)
            return []
        return call(now)

    def _up(self, leg: Leg, message: UpMessage) -> Up:
        return Up(gateway=leg.gateway, message=message)

    def _runs(self, leg: Leg, start: int) -> list[Output]:
        runs: list[TokenRun] = leg.runs(start)
        return [self._up(leg, run) for run in runs]

    def _landed(self, leg: Leg) -> Landed:
        return Landed(request=leg.seq.request, epoch=leg.seq.epoch, covered=leg.start.cover)

    def _paused(self, leg: Leg) -> list[Output]:
        if leg.pause is None or leg.paused_at is None:
            return []
        request, epoch = leg.seq
        message = Paused(request=request, epoch=epoch, seq=leg.pause.seq, at=leg.paused_at)
        return [self._up(leg, message)]

    def _kv_failed(self, gateway: str | None, send: SendKV, reason: str) -> Up:
        message = KVFailed(
            request=send.request, epoch=send.to_epoch, source=send.epoch, reason=reason
        )
        return Up(gateway=gateway, message=message)

    def _import_failed(self, leg: Leg, stream: StreamId, reason: str) -> Up:
        message = KVFailed(
            request=stream.request, epoch=stream.target, source=stream.source, reason=reason
        )
        return self._up(leg, message)


_ROWS: dict[type, Callable[..., list[Output]]] = {
    Start: Worker._start,
    SendKV: Worker._send_kv,
    Pause: Worker._switch,
    Resume: Worker._switch,
    Stop: Worker._stop,
    Feed: Worker._feed,
    Resync: Worker._resync,
}
