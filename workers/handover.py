"""KV from leg to leg: exports, imports and the short way within one worker."""

from transport.base import Offer, OfferRefused, StreamId
from workers import answers
from workers.absent import Absent
from workers.api.messages import Role, SendKV
from workers.engines.base import SeqId
from workers.kv.prefix import CANONICAL_TOKENS, block_names
from workers.legs import Leg
from workers.outputs import CloseStream, DropImport, OpenStream, Output
from workers.runner import Runner

# Why a stream to a leg that has ended is refused. Its gateway has stopped that leg, or hears from
# the leg's own worker why it is gone: its source has nothing to tell.
LEG_ENDED = "its leg has ended"


class NotYet(Exception):
    """The leg that an offer names has not started here, or not learnt what it has; ask again."""


class Handover:
    """Which leg sends KV to which, and which legs' KV has landed."""

    def __init__(self, name: str, runner: Runner, absent: Absent) -> None:
        self._name = name
        self._runner = runner
        self._absent = absent
        self._shares: dict[SeqId, SeqId] = {}  # target -> source, both on this worker
        self._fingerprint = runner.engine.info.fingerprint.canonical

    # ---------------------------------------------------------------- out

    def send(self, leg: Leg, send: SendKV) -> list[Output]:
        """Begin an export; repeated, say again what became of it."""
        if send.to_epoch in leg.failed_exports:
            return [answers.send_failed(leg.gateway, send, leg.failed_exports[send.to_epoch])]
        target = SeqId(send.request, send.to_epoch)
        if send.to_epoch in leg.exports:
            return self.share(target)
        if send.to_worker == self._name and self._absent.tombstone(target) is not None:
            return []
        senseless = self._senseless(leg, send)
        if senseless is not None:
            return [answers.send_failed(leg.gateway, send, senseless)]
        leg.exports[send.to_epoch] = send
        if send.to_worker == self._name:
            self._shares[target] = leg.seq
            return self._runner.aim(leg) + self.share(target)
        opened = OpenStream(
            stream=StreamId(send.request, send.epoch, send.to_epoch),
            seq=leg.seq,
            address=send.address or "",
            start=send.start,
            stop=send.stop,
            codec=send.codec,
            weight=send.weight,
            cache_salt=leg.start.cache_salt,
            blocks=self._blocks(leg, send.stop),
        )
        return [opened, *self._runner.aim(leg)]

    def computed(self, seqs: dict[SeqId, int]) -> list[Output]:
        """A step computed tokens of `seqs`: shares that waited for them go through."""
        out: list[Output] = []
        for target in [t for t, source in self._shares.items() if source in seqs]:
            out += self.share(target)
        return out

    def share(self, target: SeqId) -> list[Output]:
        """Hand KV over within this worker, once the source has it and the target has started."""
        source = self._runner.legs.get(self._shares.get(target, target))
        leg = self._runner.legs.get(target)
        if source is None or leg is None or source is leg:
            return []
        if leg.landed:
            del source.exports[target.epoch], self._shares[target]
            return [answers.landed(leg)] if leg.start.role is not Role.PREFILL else []
        send = source.exports[target.epoch]
        if not _same_tokens(source, leg) or send.stop != leg.import_tokens:
            return self.fail_export(source, target.epoch, "the source holds other tokens")
        engine = self._runner.engine
        if not source.landed or source.cut is not None or engine.sendable(source.seq) < send.stop:
            return []
        self._runner.share(source, leg)
        del source.exports[target.epoch], self._shares[target]
        return self._land(leg)

    def export_completed(self, stream: StreamId) -> list[Output]:
        leg = self._runner.legs.get(SeqId(stream.request, stream.source))
        if leg is not None:
            leg.exports.pop(stream.target, None)
        return []

    def export_failed(self, stream: StreamId, reason: str) -> list[Output]:
        leg = self._runner.legs.get(SeqId(stream.request, stream.source))
        if leg is None or stream.target not in leg.exports:
            return []
        if reason == LEG_ENDED:
            return self.export_completed(stream)
        return self.fail_export(leg, stream.target, reason)

    def fail_export(self, leg: Leg, to_epoch: int, reason: str) -> list[Output]:
        send = leg.exports.pop(to_epoch)
        leg.failed_exports[to_epoch] = reason
        out: list[Output] = [answers.send_failed(leg.gateway, send, reason)]
        if send.to_worker == self._name:
            self._shares.pop(SeqId(send.request, to_epoch), None)
        else:
            stream = StreamId(send.request, send.epoch, to_epoch)
            out.insert(0, CloseStream(stream=stream))
        return out

    def _senseless(self, leg: Leg, send: SendKV) -> str | None:
        """Why this leg can never send that; None: it can."""
        last = len(leg.start.law_ids) if leg.start.role is Role.PREFILL else leg.start.limit
        if not 0 <= send.start < send.stop <= leg.prompt_len + last:
            return f"tokens [{send.start}, {send.stop}) never exist in leg {send.epoch}"
        if send.to_epoch == send.epoch:
            return "a leg cannot be its own source"
        if send.weight <= 0:
            return f"weight {send.weight:g}: must be above 0"
        if send.to_worker == self._name:
            return None
        return None if send.address else f"no address of {send.to_worker} was given"

    # ---------------------------------------------------------------- in

    def started(self, leg: Leg) -> list[Output]:
        """A new leg may have all its KV already, or a source on this worker that waits for it."""
        if not leg.landed and self._runner.engine.missing(leg.seq) == 0:
            return self._commit(leg)
        return self.share(leg.seq)

    def loaded(self, leg: Leg) -> list[Output]:
        """Blocks have come from the site's stores, perhaps all that a leg waited for."""
        if leg.landed:
            return self._runner.aim(leg) + self.computed({leg.seq: leg.have})
        return self.started(leg)

    def offered(self, offer: Offer) -> int:
        """See `Worker.offered`."""
        stream = offer.stream
        seq = SeqId(stream.request, stream.target)
        leg = self._runner.legs.get(seq)
        if leg is None:
            if self._absent.tombstone(seq) is None:
                raise NotYet(f"leg {seq.epoch} of {seq.request} has not started")
            raise OfferRefused(LEG_ENDED)
        refusal = self._difference(offer, leg)
        if refusal is not None:
            raise OfferRefused(refusal)
        if leg.loading and not leg.landed:
            raise NotYet(f"leg {seq.epoch} of {seq.request} is being looked up in its site")
        if leg.landed:
            return offer.stop
        leg.imports.add(stream)
        return leg.have

    def import_completed(self, stream: StreamId) -> list[Output]:
        leg = self._importing(stream)
        if leg is None:
            return []
        missing = self._runner.engine.missing(leg.seq)
        if missing:
            return self.import_broken(stream, f"it ended with {missing} slices missing")
        leg.imports.discard(stream)
        return self._commit(leg)

    def import_broken(self, stream: StreamId, reason: str) -> list[Output]:
        leg = self._importing(stream)
        if leg is None:
            return []
        leg.imports.discard(stream)
        return [answers.kv_failed(leg.gateway, stream, reason)]

    def closed(self, leg: Leg, reason: str) -> list[Output]:
        """A leg has ended: its streams end too, and whoever waits for its KV hears of it."""
        source = self._shares.pop(leg.seq, None)
        if source is not None:
            del self._runner.legs[source].exports[leg.seq.epoch]
        out: list[Output] = []
        for epoch in list(leg.exports):
            out += self.fail_export(leg, epoch, reason)
        return out + [DropImport(stream=stream) for stream in sorted(leg.imports)]

    def _importing(self, stream: StreamId) -> Leg | None:
        leg = self._runner.legs.get(SeqId(stream.request, stream.target))
        return None if leg is None or leg.landed else leg

    def _commit(self, leg: Leg) -> list[Output]:
        self._runner.engine.commit_import(leg.seq)
        return self._land(leg)

    def _land(self, leg: Leg) -> list[Output]:
        leg.landed = True
        out: list[Output] = [DropImport(stream=stream) for stream in sorted(leg.imports)]
        leg.imports.clear()
        return [*out, answers.landed(leg), *self._runner.aim(leg)]

    def _difference(self, offer: Offer, leg: Leg) -> str | None:
        """Why the offered KV is not this leg's; None: it is. Both values where they differ."""
        if leg.start.role is Role.PREFILL:
            return f"leg {leg.seq.epoch} of {leg.seq.request} is a prefill: it imports nothing"
        rows = 2 * self._runner.engine.info.fingerprint.layers
        if offer.slices_per_token != rows:
            return f"slices per token here {rows}, offered {offer.slices_per_token}"
        if offer.cache_salt != leg.start.cache_salt:
            return f"cache salt here {leg.start.cache_salt!r}, offered {offer.cache_salt!r}"
        if offer.stop != leg.import_tokens:
            return f"tokens wanted here {leg.import_tokens}, offered up to {offer.stop}"
        if offer.start > leg.have and not leg.landed:
            return f"tokens here {leg.have}, offered from {offer.start}"
        # A source may not know its last tokens yet: what both can name must be the same.
        pairs = zip(self._blocks(leg, offer.stop), offer.blocks, strict=False)
        for block, (ours, theirs) in enumerate(pairs):
            if ours != theirs:
                first = block * CANONICAL_TOKENS
                names = f"here {ours.hex()}, offered {theirs.hex()}"
                return f"content of tokens {first}-{first + CANONICAL_TOKENS}: {names}"
        return None

    def _blocks(self, leg: Leg, stop: int) -> tuple[bytes, ...]:
        """The names of the content of a leg's tokens [0, stop), as far as they are known."""
        start = leg.start
        tokens = [*start.prompt_ids, *leg.own][:stop]
        return block_names(self._fingerprint, start.cache_salt, tokens)


def _same_tokens(source: Leg, leg: Leg) -> bool:
    """Whether what `leg` imports is what `source` has or will have."""
    ours, theirs = source.start, leg.start
    cover = theirs.cover
    return (
        ours.prompt_ids == theirs.prompt_ids
        and ours.cache_salt == theirs.cache_salt
        and source.own[:cover] == leg.own[: min(cover, len(source.own))]
    )
