"""What a line is, and what it has done: the nouns of the lab."""

import math
from dataclasses import dataclass

_BUFFER_S = 0.05  # the default buffer before the line: what it sends in this time
_LARGEST_BYTES = 65536  # what the kernel hands over at once where it may
_LARGEST_S = 0.001
MIN_MTU, MAX_MTU = 576, 65535  # below 576 IPv4 itself does not promise to work


@dataclass(frozen=True, slots=True, kw_only=True)
class LabLine:
    """Both directions of a line, each with a buffer, a rate and a delay of its own.

    `delay_s`: one way. `rate_bytes_per_s` counts whole IP packets. `jitter_s`: sigma of what is
    added to the delay, the absolute value of a normal distribution; packets stay in order.
    `loss`: share of packets of at most `mtu` bytes that vanish on the line. `buffer_bytes`: what
    may wait before the line, more is dropped; None: what the line sends in 50 ms.
    Raises ValueError.
    """

    delay_s: float
    rate_bytes_per_s: float
    loss: float = 0.0
    jitter_s: float = 0.0
    buffer_bytes: int | None = None
    mtu: int = 9000

    def __post_init__(self) -> None:
        if not (self.rate_bytes_per_s > 0 and math.isfinite(self.rate_bytes_per_s)):
            raise ValueError(f"rate_bytes_per_s: must be > 0, got {self.rate_bytes_per_s}")
        for name, value in (("delay_s", self.delay_s), ("jitter_s", self.jitter_s)):
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name}: must be >= 0, got {value}")
        if not 0 <= self.loss < 1:
            raise ValueError(f"loss: must be in [0, 1), got {self.loss}")
        if not MIN_MTU <= self.mtu <= MAX_MTU:
            raise ValueError(f"mtu: must be in [{MIN_MTU}, {MAX_MTU}], got {self.mtu}")
        if self.buffer_bytes is not None and self.buffer_bytes < self.mtu:
            raise ValueError(
                f"buffer_bytes: must hold a packet of {self.mtu} bytes, got {self.buffer_bytes}"
            )

    @property
    def queue_limit_bytes(self) -> int:
        """The buffer, given or by default; never less than one packet."""
        if self.buffer_bytes is not None:
            return self.buffer_bytes
        return max(self.mtu, int(self.rate_bytes_per_s * _BUFFER_S))

    @property
    def takes_large(self) -> bool:
        """Whether the kernel may hand over TCP's packets several at a time.

        They arrive together, with the last of them: only where they take no longer than 1 ms.
        """
        return self.rate_bytes_per_s * _LARGEST_S >= _LARGEST_BYTES

    @property
    def under_way_bytes(self) -> int:
        """The most that waits and flies in one direction at a time."""
        flight_s = self.delay_s + 6 * self.jitter_s
        return int(self.rate_bytes_per_s * flight_s) + self.queue_limit_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectionStats:
    """One direction since the start. `packets` and `nbytes` arrived, headers included.

    `lost` by chance, `no_room` in the buffer, `cut` while the line was cut, `refused` by the
    device at the far end: packets that did not arrive. `queue_bytes` wait for the line now.
    """

    packets: int
    nbytes: int
    lost: int
    no_room: int
    cut: int
    refused: int
    queue_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LabStats:
    """Both directions; `cpu_s`: processor time of the shuttle, receiving in the kernel included."""

    near_to_far: DirectionStats
    far_to_near: DirectionStats
    cpu_s: float
