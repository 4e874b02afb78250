"""The sending half of one KV stream, without I/O: frames in, frames out, `now` as an argument."""

from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from transport.base import Offer, SliceKey
from transport.stream.frames import (
    Accept,
    Ack,
    Cancel,
    Data,
    Done,
    Finish,
    Frame,
    Offering,
    Refuse,
)
from transport.stream.ranges import Ranges

MAX_BREAKS = 5  # broken connections in a row without one acknowledgement in between
STALL_S = 60.0  # everything written, nothing acknowledged, connection alive
RESUME_S = 10.0  # how long a sender looks for a connection on which its stream is accepted
CANCELLED = "cancelled by the sender"
_REDIAL_S = (0.05, 0.1, 0.2, 0.5, 1.0)


class StreamBroken(Exception):
    """The stream will not complete; the text says why."""


class Phase(StrEnum):
    """`OFFERED` has a connection and waits for the receiver's answer, `WAITING` has none."""

    WAITING = "waiting"
    OFFERED = "offered"
    OPEN = "open"
    DONE = "done"
    BROKEN = "broken"


def redial_s(tries: int) -> float:
    """How long to wait before dialling again, after that many attempts that came to nothing."""
    return _REDIAL_S[min(tries, len(_REDIAL_S) - 1)]


class Sender:
    """Holds every unacknowledged piece, so that a broken connection loses nothing.

    The driver calls `connected` and `disconnected`, hands over what arrives with `handle`, and
    pulls pieces with `next_data` when it can write. It calls `expire` at `next_deadline()`.
    """

    def __init__(self, offer: Offer, now: float, *, resume_s: float) -> None:
        self.offer = offer
        self.phase = Phase.WAITING
        self.have: int | None = None  # leading tokens the receiver had; None: not yet accepted
        self.reason: str | None = None
        self.unacked_bytes = 0
        self._resume_s = resume_s
        self._give_up_at: float | None = now + resume_s
        self._stall_at: float | None = None
        self._window = 0
        self._unacked: dict[SliceKey, Data] = {}
        self._queue: deque[SliceKey] = deque()
        self._acked: dict[tuple[int, str], Ranges] = {}
        self._breaks = 0
        self._last_break = ""
        self._finishing = False

    @property
    def ended(self) -> bool:
        return self.phase in (Phase.DONE, Phase.BROKEN)

    @property
    def has_room(self) -> bool:
        """Whether another piece fits the receiver's window."""
        return self.have is not None and self.unacked_bytes < self._window

    @property
    def has_data(self) -> bool:
        """Whether `next_data` would give a piece."""
        return self.phase is Phase.OPEN and bool(self._queue)

    def connected(self) -> list[Frame]:
        """A connection is up: offer, or offer again."""
        if self.ended:
            return []
        self.phase = Phase.OFFERED
        return [Offering(self.offer)]

    def disconnected(self, reason: str, now: float) -> None:
        """The connection broke, or none came about; what is unacknowledged may be lost."""
        self._last_break = reason
        if self.phase not in (Phase.OFFERED, Phase.OPEN):
            return
        self.phase = Phase.WAITING
        self._breaks += 1
        self._stall_at = None
        if self._give_up_at is None:
            self._give_up_at = now + self._resume_s
        if self._breaks > MAX_BREAKS:
            self.fail(f"connection broken {self._breaks} times without progress: {reason}")

    def handle(self, frame: Frame, now: float) -> list[Frame]:
        """Take one frame of this stream; returns what to send at once."""
        row = _ROWS.get(type(frame))
        if row is None or self.ended:
            return []
        return row(self, frame, now)

    def push(self, data: Data) -> None:
        """Queue one coded piece. Raises StreamBroken."""
        if self.phase is Phase.BROKEN:
            raise StreamBroken(self.reason)
        # Done before finish: the receiver has all it was offered, so this is a repeat.
        if self.phase is Phase.DONE or data.key in self._unacked:
            return
        self._unacked[data.key] = data
        self._queue.append(data.key)
        self.unacked_bytes += len(data.body)

    def next_data(self, now: float) -> Data | None:
        """The next piece to write; it stays here until it is acknowledged."""
        if not self.has_data:
            return None
        data = self._unacked[self._queue.popleft()]
        self._stall_at = None if self._queue else now + STALL_S
        return data

    def finish(self, now: float) -> list[Frame]:
        """Nothing more will be pushed; `phase` becomes DONE when the receiver says so."""
        self._finishing = True
        return self._finish_if_acked(now)

    def cancel(self, reason: str) -> list[Frame]:
        """Give up; returns what tells the receiver."""
        if self.ended:
            return []
        told = self.phase in (Phase.OFFERED, Phase.OPEN)
        self.fail(reason)
        return [Cancel(self.offer.stream, reason)] if told else []

    def fail(self, reason: str) -> None:
        """The stream is broken; its memory goes at once."""
        if not self.ended:
            self.reason = reason
            self._end(Phase.BROKEN)

    def next_deadline(self) -> float | None:
        """When to call `expire`; None: nothing to wait for."""
        if self.ended:
            return None
        return min((t for t in (self._give_up_at, self._stall_at) if t is not None), default=None)

    def expire(self, now: float) -> list[Frame]:
        """Give up if a deadline has passed."""
        deadline = self.next_deadline()
        if deadline is None or now < deadline:
            return []
        if deadline == self._stall_at:
            return self.cancel(f"nothing acknowledged in {STALL_S:g} s")
        why = f": {self._last_break}" if self._last_break else ""
        return self.cancel(f"not accepted within {self._resume_s:g} s{why}")

    # ---------------------------------------------------------- what arrives

    def _accepted(self, frame: Accept, now: float) -> list[Frame]:
        if self.phase is not Phase.OFFERED:
            return []
        received: dict[tuple[int, str], Ranges] = {}
        for layer, part, start, stop in frame.received:
            received.setdefault((layer, part), Ranges()).add(start, stop)
        none = Ranges()
        for owner, ranges in self._acked.items():
            there = received.get(owner, none)
            if not all(there.covers(a, b) for a, b in ranges):
                return self.cancel("the receiver has lost what it had acknowledged")
        self.phase = Phase.OPEN
        self.have = frame.have if self.have is None else self.have
        self._window = frame.window
        self._give_up_at = None
        for key in list(self._unacked):
            if received.get((key.layer, key.part), none).covers(key.start, key.stop):
                self._settle(key)
        self._queue = deque(self._unacked)
        return self._finish_if_acked(now)

    def _refused(self, frame: Refuse | Cancel, now: float) -> list[Frame]:
        self.fail(frame.reason)
        return []

    def _acknowledged(self, frame: Ack, now: float) -> list[Frame]:
        for key in frame.keys:
            self._settle(key)
        self._breaks = 0
        self._stall_at = now + STALL_S if self._unacked and not self._queue else None
        return self._finish_if_acked(now)

    def _completed(self, frame: Done, now: float) -> list[Frame]:
        self._end(Phase.DONE)
        return []

    def _settle(self, key: SliceKey) -> None:
        data = self._unacked.pop(key, None)
        if data is not None:
            self.unacked_bytes -= len(data.body)
            self._acked.setdefault((key.layer, key.part), Ranges()).add(key.start, key.stop)

    def _finish_if_acked(self, now: float) -> list[Frame]:
        if self._finishing and self.phase is Phase.OPEN and not self._unacked:
            self._stall_at = now + STALL_S
            return [Finish(self.offer.stream)]
        return []

    def _end(self, phase: Phase) -> None:
        self.phase = phase
        self._unacked.clear()
        self._queue.clear()
        self.unacked_bytes = 0


_ROWS: dict[type, Callable[..., list[Frame]]] = {
    Accept: Sender._accepted,
    Refuse: Sender._refused,
    Cancel: Sender._refused,
    Ack: Sender._acknowledged,
    Done: Sender._completed,
}


class Sending(Protocol):
    """A stream as whoever writes it has it."""

    machine: Sender


S = TypeVar("S", bound=Sending)


class Turns(Generic[S]):
    """The streams on one connection: round robin, one piece each."""

    def __init__(self) -> None:
        self._order: deque[S] = deque()

    def add(self, stream: S) -> None:
        self._order.append(stream)

    def remove(self, stream: S) -> None:
        """Raises ValueError when it was not added."""
        self._order.remove(stream)

    @property
    def has_data(self) -> bool:
        """Whether some stream has a piece to write."""
        return any(stream.machine.has_data for stream in self._order)

    def next_data(self, take: Callable[[S], Data | None]) -> Data | None:
        """The next piece of the first stream in turn from which `take` gets one."""
        for _ in range(len(self._order)):
            stream = self._order[0]
            self._order.rotate(-1)
            data = take(stream)
            if data is not None:
                return data
        return None
