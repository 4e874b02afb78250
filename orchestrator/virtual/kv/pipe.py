"""Frames between two virtual processes: objects on a good day, real bytes when one is damaged."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import NamedTuple, Protocol

from orchestrator.virtual.network import Connection, Network
from orchestrator.virtual.process import Process
from transport.stream.frames import Data, Frame
from transport.stream.framing import (
    PREAMBLE_BYTES,
    Preamble,
    check_body,
    encode,
    parse_head,
    parse_preamble,
)

Carried = Frame | bytes  # bytes: a frame as it is after an accident


class Read(NamedTuple):
    """A frame that came off the wire; `check` says whether its body is intact."""

    frame: Frame
    preamble: Preamble | None  # None: nothing happened to it

    def check(self) -> None:
        """Raises CorruptFrame."""
        if self.preamble is not None and isinstance(self.frame, Data):
            check_body(self.preamble, self.frame.body)


class Reader(Protocol):
    """Who reads at one end of a pipe."""

    def heard(self, pipe: "Pipe", carried: Carried) -> None: ...
    def settle(self) -> None: ...
    def ended(self, pipe: "Pipe", reason: str) -> None: ...


class Pipe:
    """One connection for frames. `listen` gives who reads at the far end, once it is reached."""

    def __init__(
        self,
        network: Network,
        near: Process,
        far: Process,
        reader: Reader,
        listen: Callable[[], Reader | None],
    ) -> None:
        self.near, self.far = near, far
        self._network = network
        self._listen = listen
        self._readers: dict[Process, Reader | None] = {near: reader, far: None}
        near_end, far_end = partial(self._ended, near), partial(self._ended, far)
        self._connection = Connection(network, near, far, near_end=near_end, far_end=far_end)

    def open_at(self, end: Process) -> bool:
        """Whether this end believes that it is open."""
        return self._connection.open_at(end)

    def write(self, end: Process, frames: Sequence[Frame]) -> None:
        """Write frames in one go; they arrive together, those after an accident with it."""
        network = self._network
        lost, corrupt = network.accidents.lost, network.accidents.corrupt
        carried: Sequence[Carried] = frames
        if lost or corrupt:
            if any(network.hits(lost) for _ in frames):
                self._connection.reset("the connection was reset on the way")
                return
            carried = [
                damaged(frame, network.random) if network.hits(corrupt) else frame
                for frame in frames
            ]
        nbytes = sum(len(frame.body) for frame in frames if isinstance(frame, Data))
        self._connection.send(end, self._arrived, end, carried, nbytes=nbytes)

    def close(self, end: Process, reason: str) -> None:
        """One end closes; the other hears of it, after what was written before."""
        self._connection.close(end, reason)

    def _arrived(self, source: Process, frames: Sequence[Carried]) -> None:
        end = self.far if source is self.near else self.near
        reader = self._readers[end]
        if reader is None:
            reader = self._readers[end] = self._listen()
        if reader is None:
            self.close(end, f"nobody listens at {end.name}")
            return
        for carried in frames:
            if self.open_at(end):
                reader.heard(self, carried)
        reader.settle()

    def _ended(self, end: Process, reason: str) -> None:
        reader = self._readers[end]
        if reader is not None:
            reader.ended(self, reason)
            reader.settle()


def damaged(frame: Frame, random: Random) -> bytes:
    """The frame's bytes with one bit flipped."""
    raw = bytearray(b"".join(map(bytes, encode(frame))))
    raw[random.randrange(len(raw))] ^= 1 << random.randrange(8)
    return bytes(raw)


def read(carried: Carried) -> Read:
    """What the transport's own code makes of it. Raises FrameError."""
    if not isinstance(carried, bytes):
        return Read(carried, None)
    preamble = parse_preamble(carried[:PREAMBLE_BYTES])
    split = PREAMBLE_BYTES + preamble.head_bytes
    frame = parse_head(preamble, carried[PREAMBLE_BYTES:split])
    if isinstance(frame, Data):
        frame = replace(frame, body=carried[split:])
    return Read(frame, preamble)
