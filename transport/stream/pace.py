"""What a sender knows and keeps of one peer's path, without I/O: pacing and estimates."""

from collections import deque
from dataclasses import dataclass

# Time lost to a busy event loop is made up for by a burst, small enough for any switch's buffer.
_BURST_S = 0.05
_MAX_BURST_BYTES = 256 << 10
_EWMA = 0.2
_RTT_SAMPLES = 64  # several of each connection: a cut line delays one of all at once


class Pacer:
    """Spaces writes so that all streams to one address stay together below a rate."""

    def __init__(self) -> None:
        self.rate_bytes_per_s: float | None = None  # None: as fast as the socket takes it
        self._next_at = 0.0

    def delay_s(self, nbytes: int, now: float) -> float:
        """Book `nbytes`; how long to wait before writing them."""
        rate = self.rate_bytes_per_s
        if rate is None:
            return 0.0
        burst_s = min(_BURST_S, _MAX_BURST_BYTES / rate)
        start = max(self._next_at, now - burst_s)
        self._next_at = start + nbytes / rate
        return max(0.0, start - now)


@dataclass(frozen=True, slots=True)
class Sent:
    """The state of delivery when a piece was written."""

    acked_at: float  # when `delivered` was last true; the write itself after an idle time
    delivered: int
    starved: bool  # nothing else was waiting, so its rate says little about the path


class DeliveryRate:
    """Goodput from acknowledgements, as BBR measures it: bytes delivered between the last
    acknowledgement before a piece was written and its own."""

    def __init__(self) -> None:
        self.bytes_per_s: float | None = None
        self._delivered = 0
        self._acked_at = 0.0
        self.flying = 0

    def sent(self, now: float, *, starved: bool) -> Sent:
        """A piece is being written."""
        if self.flying == 0:
            self._acked_at = now
        self.flying += 1
        return Sent(self._acked_at, self._delivered, starved)

    def acked(self, sent: Sent, nbytes: int, now: float) -> None:
        self.flying -= 1
        self._delivered += nbytes
        self._acked_at = now
        if now <= sent.acked_at:
            return
        sample = (self._delivered - sent.delivered) / (now - sent.acked_at)
        if self.bytes_per_s is None:
            self.bytes_per_s = sample
        elif not sent.starved or sample > self.bytes_per_s:
            self.bytes_per_s += _EWMA * (sample - self.bytes_per_s)

    def lost(self, pieces: int) -> None:
        """Their connection broke, or their stream ended: no acknowledgement will come."""
        self.flying -= pieces


class RoundTrip:
    """Smallest of the last few round trips: the path without its queues."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=_RTT_SAMPLES)

    @property
    def rtt_s(self) -> float | None:
        return min(self._samples, default=None)

    def add(self, rtt_s: float) -> None:
        self._samples.append(rtt_s)
