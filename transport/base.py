"""The transport's small interface: what a worker hands over and what it is asked."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np


class StreamId(NamedTuple):
    """One KV stream: a request's leg `source` sends to its leg `target` (epochs)."""

    request: str
    source: int
    target: int


class SliceKey(NamedTuple):
    """Which piece of a cache: layer, part ("k" or "v") and tokens [start, stop)."""

    layer: int
    part: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One piece of a cache, token-major: those of the key's tokens that the sender has kept.

    `data`: [tokens, kv_heads, head_size], an unsigned integer dtype holding the raw bits of the
    pool's dtype. `positions`: RoPE position of each token, [tokens] int32; where some of the key's
    tokens are not held it is their number in the sequence too, ascending.
    """

    key: SliceKey
    positions: np.ndarray
    data: np.ndarray

    def tokens(self, start: int, stop: int) -> "Slice":
        """The part of it that is tokens [start, stop), in place."""
        layer, part, first, end = self.key
        if len(self.positions) == end - first:
            here = slice(start - first, stop - first)
        else:
            low, high = np.searchsorted(self.positions, (start, stop))
            here = slice(int(low), int(high))
        return Slice(
            key=SliceKey(layer, part, start, stop),
            positions=self.positions[here],
            data=self.data[here],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a sender announces before it sends: tokens [start, stop) and what they mean.

    `blocks` names the content of tokens [0, stop) by the hash chain over canonical blocks of 16
    tokens; a tail that fills no block has no name.
    """

    stream: StreamId
    start: int
    stop: int
    slices_per_token: int  # layers x parts
    cache_salt: str
    blocks: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStats:
    """What one stream cost, on the receiver's own clock."""

    bytes_raw: int
    bytes_wire: int
    transfer_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEstimate:
    """A sender's view of the path to one peer; None: not known yet.

    `goodput_bytes_per_s` and `queue_bytes` count coded bytes; `loss` is the share of bytes that
    TCP had to send again.
    """

    goodput_bytes_per_s: float | None
    rtt_s: float | None
    loss: float | None
    queue_bytes: int


class OfferRefused(Exception):
    """The receiver will not take the stream; the text says what it has and what was offered."""


class Sink(Protocol):
    """Where a receiver puts what arrives. Called in the event loop's thread unless said."""

    def offered(self, offer: Offer) -> int | None:
        """Return how many leading tokens of [0, stop) are here already. Raises OfferRefused.

        None: the receiving leg has not started yet; ask again in a moment.
        """

    def put(self, stream: StreamId, piece: Slice) -> None:
        """One decoded slice (may be called in a worker thread). Raises ValueError if foreign."""

    def completed(self, stream: StreamId, stats: StreamStats) -> None:
        """Every slice of [have, stop) has been put."""

    def broken(self, stream: StreamId, reason: str) -> None:
        """The stream will not complete: cancelled, refused, or not resumed in time."""
