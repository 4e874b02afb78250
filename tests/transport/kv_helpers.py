"""Slices that look like KV, and a sink that remembers what it was given."""

import threading
from functools import lru_cache

import numpy as np

from transport.base import Offer, OfferRefused, Slice, SliceKey, StreamId, StreamStats

LAYERS = 3
HEADS = 2
SIZE = 16
MODEL = '{"tensors":"t0"}'
LAYOUT = '{"order":"token-major"}'


def kv_like(rng: np.random.Generator, tokens: int, heads: int, size: int) -> np.ndarray:
    """[tokens, heads, size] uint16: bfloat16 bits of normal values, scaled per channel."""
    scale = np.exp(0.5 * rng.standard_normal((1, heads, size)))
    values = (rng.standard_normal((tokens, heads, size)) * scale).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


@lru_cache
def _whole(seed: int, heads: int, size: int) -> np.ndarray:
    return kv_like(np.random.default_rng(seed), 1024, heads, size)


def token_bytes(layers: int = LAYERS, heads: int = HEADS, size: int = SIZE) -> int:
    """Raw KV of one token."""
    return 2 * layers * heads * size * 2


def make_slice(layer: int, part: str, start: int, stop: int, *, heads=HEADS, size=SIZE) -> Slice:
    """The same bits for the same (layer, part, token), whatever the range."""
    data = _whole(layer * 2 + (part == "v"), heads, size)[start:stop]
    return Slice(
        key=SliceKey(layer, part, start, stop),
        positions=np.arange(start, stop, dtype=np.int32),
        data=data,
    )


def make_offer(request: str = "r", start: int = 0, stop: int = 64, *, layers=LAYERS) -> Offer:
    return Offer(
        stream=StreamId(request, 0, 1),
        start=start,
        stop=stop,
        slices_per_token=2 * layers,
        cache_salt="",
        blocks=tuple(block.to_bytes(16, "big") for block in range(stop // 16)),
    )


class MemorySink:
    """Counts how often each (layer, part, token) arrived and keeps its bits.

    `have` is what it answers an offer (None: ask again), `refusal` why it takes none.
    """

    def __init__(self, have: int | None = 0, *, refusal: str | None = None) -> None:
        self.have = have
        self.refusal = refusal
        self.offers: list[Offer] = []
        self.counts: dict[tuple, int] = {}
        self.rows: dict[tuple, np.ndarray] = {}
        self.completions: dict[StreamId, StreamStats] = {}
        self.breaks: dict[StreamId, str] = {}
        self._lock = threading.Lock()

    def offered(self, offer: Offer) -> int | None:
        if self.refusal is not None:
            raise OfferRefused(self.refusal)
        self.offers.append(offer)
        return self.have

    def put(self, stream: StreamId, piece: Slice) -> None:
        layer, part, start, stop = piece.key
        assert piece.data.shape[0] == stop - start
        assert piece.positions.tolist() == list(range(start, stop))
        with self._lock:
            for token in range(start, stop):
                at = (stream, layer, part, token)
                self.counts[at] = self.counts.get(at, 0) + 1
                self.rows[at] = piece.data[token - start]

    def completed(self, stream: StreamId, stats: StreamStats) -> None:
        assert stream not in self.completions
        self.completions[stream] = stats

    def broken(self, stream: StreamId, reason: str) -> None:
        assert stream not in self.breaks
        self.breaks[stream] = reason

    def check(self, offer: Offer, *, layers=LAYERS, heads=HEADS, size=SIZE) -> None:
        """Every slice of the offer is here, once, with its own bits."""
        first = max(offer.start, self.have or 0)
        for layer in range(layers):
            for part in "kv":
                whole = make_slice(layer, part, 0, offer.stop, heads=heads, size=size).data
                for token in range(first, offer.stop):
                    at = (offer.stream, layer, part, token)
                    assert self.counts.get(at) == 1, at
                    assert (self.rows[at] == whole[token]).all()
