"""KV out, without I/O: how far each streamed sequence is computed, and what to send of it next."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from transport.base import Offer, Slice, SliceKey, StreamId
from workers.api.info import Part
from workers.engines.base import Engine, KVSlice, SeqId
from workers.outputs import OpenStream

# One slice's tokens: small enough that streams share the line fairly, large enough for few frames.
SLICE_TOKENS = 256


class Piece(NamedTuple):
    """One slice to read and send."""

    layer: int
    part: Part
    start: int
    stop: int


@dataclass(slots=True)
class _Followed:
    seq: SeqId
    ready: list[int]  # layer by layer


class Exports:
    """The streams a worker sends, and how many leading tokens of each are in the pool, per layer.

    `follow`, `refresh` and `computed` belong to the engine's thread; another may read `ready` and
    `forget`: whole values are swapped, so no lock is needed.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._layers = engine.info.fingerprint.layers
        self._followed: dict[StreamId, _Followed] = {}

    def offer(self, order: OpenStream) -> Offer:
        """What the receiver is told first."""
        return Offer(
            stream=order.stream,
            start=order.start,
            stop=order.stop,
            slices_per_token=self._layers * len(Part),
            cache_salt=order.cache_salt,
            blocks=order.blocks,
        )

    def follow(self, order: OpenStream) -> None:
        """Follow a sequence from what is computed now; every layer is equally far here.

        What it keeps stays as it is until it is forgotten.
        """
        try:
            self._engine.pin(order.seq)
            computed = self._engine.sendable(order.seq)
        except KeyError:
            computed = 0  # closed in the same turn: reading it will fail and say so
        self._followed[order.stream] = _Followed(order.seq, [computed] * self._layers)

    def forget(self, stream: StreamId) -> None:
        followed = self._followed.pop(stream, None)
        if followed is not None:
            self._engine.unpin(followed.seq)

    def ready(self, stream: StreamId) -> Sequence[int]:
        """Leading tokens whose KV is in the pool, layer by layer."""
        return self._followed[stream].ready

    def refresh(self) -> bool:
        """Note what became computed without a step, or in one: imported, shared, found, prefilled.

        True: there is something to send that was not there before.
        """
        changed = False
        for followed in list(self._followed.values()):
            try:
                computed = self._engine.sendable(followed.seq)
            except KeyError:
                continue
            if min(followed.ready) < computed:
                followed.ready = [max(layer, computed) for layer in followed.ready]
                changed = True
        return changed

    def computed(self, seq: SeqId, layer: int, start: int, stop: int) -> bool:
        """Tokens [start, stop) of one layer are in the pool, the step still runs. See `refresh`."""
        changed = False
        for followed in list(self._followed.values()):
            if followed.seq == seq and start <= followed.ready[layer] < stop:
                followed.ready[layer] = stop
                changed = True
        return changed


class Unsent:
    """What of one stream is still to be sent: tokens [start, stop) of every layer, K and V."""

    def __init__(self, layers: int, start: int, stop: int) -> None:
        self._sent = [start] * layers
        self._stop = stop
        self._second: Piece | None = None  # V of what was taken last

    @property
    def empty(self) -> bool:
        return self._second is None and min(self._sent) >= self._stop

    def take(self, ready: Sequence[int]) -> Piece | None:
        """The next piece of what is in the pool; None: all that is there was taken.

        Earlier tokens first; within one range of tokens the layers come in order, as prefill
        computes them. K is followed by its V.
        """
        second, self._second = self._second, None
        if second is not None:
            return second
        open_layers = [n for n, at in enumerate(self._sent) if at < min(ready[n], self._stop)]
        if not open_layers:
            return None
        layer = min(open_layers, key=lambda n: (self._sent[n], n))
        start = self._sent[layer]
        stop = min(ready[layer], self._stop, start + SLICE_TOKENS)
        self._sent[layer] = stop
        self._second = Piece(layer, Part.VALUE, start, stop)
        return Piece(layer, Part.KEY, start, stop)


def as_slice(kv: KVSlice) -> Slice:
    """An engine's slice as the transport has it."""
    key = SliceKey(kv.layer, kv.part.value, kv.start, kv.stop)
    return Slice(key=key, positions=kv.positions, data=kv.data)


def why_failed(error: Exception) -> str:
    """What the core hears of a stream that could not be sent."""
    return "its source is gone" if isinstance(error, KeyError) else str(error)
