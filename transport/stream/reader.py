"""Bytes as they come off a connection, to frames: bounds before memory, bodies without a copy."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from transport.stream.frames import Buffer, Data, Frame, Kind, UnknownKind
from transport.stream.framing import (
    PREAMBLE_BYTES,
    Preamble,
    check_body,
    parse_head,
    parse_preamble,
)

# All that a stranger can make us hold, and the most of a body that is copied.
_SCRATCH_BYTES = 64 << 10

# Whether the body that follows this head is wanted. May raise FrameError.
Admit = Callable[[Data, int], bool]


def uncleared(nbytes: int) -> memoryview:
    """Memory for a body, which will be written over: clearing it first would take as long."""
    return np.empty(nbytes, np.uint8).data


@dataclass(frozen=True, slots=True)
class Arrived:
    """A frame off the wire. Of a piece, `body` is what was read and `check` says if it is intact.

    A piece that was not admitted has no body.
    """

    frame: Frame
    preamble: Preamble
    body: Buffer | None = None

    def check(self) -> None:
        """Raises CorruptFrame."""
        if self.body is not None:
            check_body(self.preamble, self.body)


class FrameReader:
    """Fill `buffer()` from the wire, then tell `received` how much.

    Nothing that a frame asks for is allocated before its head has passed its checksum and, for a
    piece, `admit`. `only` names the kinds that are taken now; None: all.
    """

    def __init__(self, admit: Admit, only: frozenset[Kind] | None = None) -> None:
        self.only = only
        self._admit = admit
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._held = 0  # bytes at the start of the scratch that are not yet understood
        self._head = bytearray()  # gathered so far
        self._whole: Arrived | None = None
        self._preamble: Preamble | None = None
        self._data: Data | None = None  # whose body is being read or skipped
        self._body: memoryview | None = None
        self._left = 0

    @property
    def unread(self) -> tuple[Data, int] | None:
        """The admitted piece whose body is being read, and the size of that body."""
        if self._data is None or self._body is None:
            return None
        return self._data, len(self._body)

    def buffer(self) -> memoryview:
        """Where the next bytes belong."""
        if self._body is not None:
            return self._body[len(self._body) - self._left :]
        return memoryview(self._scratch)[self._held :]

    def received(self, nbytes: int) -> Iterator[Arrived]:
        """`nbytes` were put where `buffer()` said; take all that is given. Raises FrameError."""
        if self._body is not None:
            self._left -= nbytes
            if self._left == 0:
                yield self._end_body()
            return
        self._held += nbytes
        at = 0
        while (took := self._understand(self._held - at, at)) is not None:
            at += took
            if self._whole is not None:
                whole, self._whole = self._whole, None
                yield whole
        if at:
            self._scratch[: self._held - at] = self._scratch[at : self._held]
            self._held -= at

    def _understand(self, there: int, at: int) -> int | None:
        """How many of the `there` bytes of the scratch from `at` on the next step took.

        None: more must come. A frame that is whole by then is in `_whole`.
        """
        if self._data is not None:
            return self._take_body(there, at)
        if self._preamble is None:
            if there < PREAMBLE_BYTES:
                return None
            self._preamble = parse_preamble(bytes(self._scratch[at : at + PREAMBLE_BYTES]))
            if self.only is not None and self._preamble.kind not in self.only:
                raise UnknownKind(f"{self._preamble.kind.name} before the handshake")
            return PREAMBLE_BYTES
        missing = self._preamble.head_bytes - len(self._head)
        if there < missing and at + there < _SCRATCH_BYTES:
            return None  # a longer head than the scratch is gathered piece by piece
        took = min(missing, there)
        self._head += self._scratch[at : at + took]
        if took == missing:
            self._end_head(self._preamble)
        return took or None

    def _end_head(self, preamble: Preamble) -> None:
        frame = parse_head(preamble, bytes(self._head))
        self._head.clear()
        if not isinstance(frame, Data):
            self._preamble = None
            self._whole = Arrived(frame, preamble)
            return
        self._data, self._left = frame, preamble.body_bytes
        if self._admit(frame, preamble.body_bytes):
            self._body = uncleared(preamble.body_bytes)
        if not self._left:
            self._whole = self._end_body()

    def _take_body(self, there: int, at: int) -> int | None:
        took = min(there, self._left)
        if self._body is not None:
            start = len(self._body) - self._left
            self._body[start : start + took] = self._scratch[at : at + took]
        self._left -= took
        if self._left == 0:
            self._whole = self._end_body()
        return took or None

    def _end_body(self) -> Arrived:
        assert self._preamble is not None
        assert self._data is not None
        whole = Arrived(self._data, self._preamble, self._body)
        self._preamble = self._data = self._body = None
        return whole
