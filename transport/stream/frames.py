"""The frames of the KV protocol, as frozen dataclasses; `framing` turns them into bytes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise

import numpy as np

from transport.base import Offer, SliceKey, StreamId

MAX_BODY_BYTES = 8 << 20
MAX_TOKENS = 1 << 28

Buffer = bytes | bytearray | memoryview
Range = tuple[int, str, int, int]  # layer, part, start, stop
Run = tuple[int, int]  # first position, count


class FrameError(Exception):
    """What arrived is not a frame we take; the connection it came on is of no more use."""


class NotAFrame(FrameError):
    """The magic is wrong: some other protocol, or the reader lost its place."""


class WrongVersion(FrameError):
    """Another version of this protocol."""


class UnknownKind(FrameError):
    """A kind of frame this version does not have, or not here."""


class FrameTooLarge(FrameError):
    """A declared length is above its cap."""


class TruncatedFrame(FrameError):
    """The head ends before what it declares."""


class CorruptFrame(FrameError):
    """A checksum does not match."""


class MalformedFrame(FrameError):
    """Read in full, but the content contradicts itself."""


class OverCredit(FrameError):
    """More was sent than the receiver had given credit for."""


class Kind(IntEnum):
    HELLO = 1
    PROOF = 2
    GOODBYE = 3
    OFFER = 4
    ACCEPT = 5
    REFUSE = 6
    DATA = 7
    ACK = 8
    FINISH = 9
    DONE = 10
    CANCEL = 11
    PING = 12
    PONG = 13
    TERMS = 14
    AGAIN = 15


@dataclass(frozen=True, slots=True)
class Hello:
    """First frame from either end: its name, and a nonce for the other's proof.

    `session` is the sending end's: connections that name the same one carry the same streams.
    """

    name: str
    nonce: bytes
    session: bytes


@dataclass(frozen=True, slots=True)
class Proof:
    """HMAC over both hellos under the deployment's secret."""

    digest: bytes


@dataclass(frozen=True, slots=True)
class Terms:
    """What this end serves, told only to a peer that has proved itself.

    `model` is the fingerprint's canonical text and must be the same at both ends, `layout` is
    how the cache lies in this end's memory, and `window` is the credit: the coded bytes of KV
    that the other end may have sent and not seen acknowledged, over all its connections.
    """

    model: str
    layout: str
    window: int


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The connection ends, for this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Offering:
    """The sender wants to send, or to go on after a broken connection.

    Each attempt is answered once, on however many connections it comes.
    """

    offer: Offer
    attempt: int


@dataclass(frozen=True, slots=True)
class Accept:
    """Tokens [0, have) were here before, and every range in `received` has come since."""

    stream: StreamId
    attempt: int
    have: int
    received: tuple[Range, ...] = ()


@dataclass(frozen=True, slots=True)
class Refuse:
    """The receiver does not take the stream, or does not know it."""

    stream: StreamId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """One coded piece: `shape` of unsigned integers `itemsize` bytes wide, in `body`.

    `body_crc` is the body's crc32 where somebody has taken it already.
    """

    stream: StreamId
    key: SliceKey
    heads: tuple[int, int]  # half-open
    head_size: int
    itemsize: int
    positions: tuple[Run, ...]
    codec: str
    codec_version: int
    body: Buffer = b""
    body_crc: int | None = field(default=None, compare=False)

    @property
    def shape(self) -> tuple[int, int, int]:
        tokens = sum(count for _, count in self.positions)
        return tokens, self.heads[1] - self.heads[0], self.head_size

    @property
    def raw_bytes(self) -> int:
        tokens, heads, size = self.shape
        return tokens * heads * size * self.itemsize


@dataclass(frozen=True, slots=True)
class Ack:
    """These pieces are stored."""

    stream: StreamId
    keys: tuple[SliceKey, ...]


@dataclass(frozen=True, slots=True)
class Again:
    """These pieces came damaged: their heads were read, their bodies do not match."""

    stream: StreamId
    keys: tuple[SliceKey, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """The sender has sent all it means to send, and all of it is acknowledged."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class Done:
    """The receiver has everything it was offered."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class Cancel:
    """Either end gives the stream up."""

    stream: StreamId
    reason: str


@dataclass(frozen=True, slots=True)
class Ping:
    """`stamp` comes back in the pong; only the one who sent it reads it."""

    stamp: int


@dataclass(frozen=True, slots=True)
class Pong:
    stamp: int


Frame = (
    Hello
    | Proof
    | Terms
    | Goodbye
    | Offering
    | Accept
    | Refuse
    | Data
    | Ack
    | Again
    | Finish
    | Done
    | Cancel
    | Ping
    | Pong
)


def runs_of(positions: np.ndarray) -> tuple[Run, ...]:
    """Consecutive positions as (first, count); `positions` is [tokens] of any integer type."""
    wide = positions.astype(np.int64)
    breaks = np.flatnonzero(wide[1:] - wide[:-1] != 1) + 1
    if not len(breaks):  # nearly always
        return ((int(wide[0]), len(wide)),) if len(wide) else ()
    edges = [0, *breaks.tolist(), len(positions)]
    return tuple((int(positions[a]), b - a) for a, b in pairwise(edges) if b > a)


def expand_runs(runs: Sequence[Run]) -> np.ndarray:
    """[tokens] int32, the inverse of `runs_of`."""
    if not runs:
        return np.zeros(0, np.int32)
    if len(runs) == 1:
        ((first, count),) = runs
        return np.arange(first, first + count, dtype=np.int32)
    return np.concatenate([np.arange(a, a + n, dtype=np.int32) for a, n in runs])
