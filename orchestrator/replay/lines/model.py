"""What one direction of a path between two sites does to KV: rates, delays, codec."""

from dataclasses import dataclass
from enum import StrEnum
from math import ceil, inf, log2, sqrt
from statistics import NormalDist
from zlib import crc32

from orchestrator.replay.lines.shares import Ranked, Share, Shared
from transport.codecs.choose import SPEEDS, choose
from transport.stream.schedule import ageing_bytes_per_s

SEGMENT_BYTES = 1460  # of TCP, on Ethernet
FIRST_WINDOW_BYTES = 10 * SEGMENT_BYTES  # RFC 6928
IDLE_S = 0.2  # a connection silent for longer starts slowly again (RFC 2861, Linux's least timeout)
BBR_LOSS = 0.02  # up to here BBR does not slow down
PIECE_BYTES = 1 << 20  # raw KV that is coded and sent as one

_NORMAL = NormalDist()


class Sharing(StrEnum):
    """Whose bytes go when several transfers want the line.

    OURS: the lowest `transport.stream.schedule.rank`; FAIR: all at once, equal shares; FIFO: one
    after the other. POOL: a connection per transfer out of `connections`, none faster than one
    connection is; over the other three every transfer is striped over all of them.
    """

    OURS = "ours"
    FAIR = "fair"
    FIFO = "fifo"
    POOL = "pool"


class Congestion(StrEnum):
    CUBIC = "cubic"
    BBR = "bbr"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecModel:
    """Raw bytes per one on the wire, and raw bytes per second of what codes at each end.

    `wait_s`: that a transfer's KV waits for whoever codes it, before and after the wire.
    """

    ratio: float = 1.0
    encode_bytes_per_s: float = inf
    decode_bytes_per_s: float = inf
    wait_s: float = 0.0


def codec_model(policy: str, *, line_bytes_per_s: float, cores: float) -> CodecModel:
    """As `transport.codecs` measures and chooses it, with so many cores at each end.

    Raises ValueError for a policy it does not know.
    """
    speed = SPEEDS[choose(policy, goodput_bytes_per_s=line_bytes_per_s, free_cores=cores)]
    return CodecModel(
        ratio=speed.ratio,
        encode_bytes_per_s=cores * speed.encode_bytes_per_s,
        decode_bytes_per_s=cores * speed.decode_bytes_per_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LineModel:
    """One direction of a path. All bytes are those on the wire.

    `connection_bytes_per_s`, `window_bytes`: what one connection may carry, and have on its way
    (None: no such limit). `slow_start`: connections are not kept warm. `jitter_s`: standard
    deviation of the delay, which only widens it.
    """

    bytes_per_s: float
    delay_s: float
    share: Sharing = Sharing.OURS
    connections: int = 8
    connection_bytes_per_s: float | None = None
    window_bytes: float | None = None
    congestion: Congestion = Congestion.BBR
    loss: float = 0.0
    jitter_s: float = 0.0
    slow_start: bool = False
    codec: CodecModel = CodecModel()
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError for a path over which nothing could go."""
        if not self.bytes_per_s > 0 or self.connections < 1 or not 0 <= self.loss < 1:
            raise ValueError(
                f"a line of {self.bytes_per_s:g} bytes/s, {self.connections} connections and a "
                f"loss of {self.loss:g} carries nothing"
            )

    def each_bytes_per_s(self) -> float:
        """What one connection carries at most; infinite when only the line limits it."""
        limits = [inf]
        if self.connection_bytes_per_s is not None:
            limits.append(self.connection_bytes_per_s)
        if self.delay_s:
            if self.window_bytes is not None:
                limits.append(self.window_bytes / (2 * self.delay_s))
            if self.loss > (BBR_LOSS if self.congestion is Congestion.BBR else 0.0):
                limits.append(mathis_bytes_per_s(self.loss, 2 * self.delay_s))
        return min(limits)

    def goodput_bytes_per_s(self, factor: float = 1.0) -> float:
        """What the line carries of KV's bytes, at a part of its rate.

        What is lost is sent again, so a share of the line as large as the loss is wasted. Coding
        and sending overlap: the slowest of encoding, wire and decoding sets the pace.
        """
        codec = self.codec
        return min(
            factor * self.bytes_per_s * (1 - self.loss),
            self.connections * self.each_bytes_per_s(),
            codec.encode_bytes_per_s / codec.ratio,
            codec.decode_bytes_per_s / codec.ratio,
        )

    def sharing(self) -> Share:
        rate = self.goodput_bytes_per_s()
        return _SHARES[self.share](self, rate)

    def starting_s(self, nbytes: float) -> float:
        """Seconds that a slow start costs a transfer of that many bytes on the wire.

        Windows double every round trip until they hold what the line has on its way, or all has
        gone. After r round trips first x (2^r - 1) bytes have gone, which the line alone would have
        carried in less.
        """
        rtt_s, rate = 2 * self.delay_s, self.goodput_bytes_per_s()
        first = self.connections * FIRST_WINDOW_BYTES
        full = max(0, ceil(log2(max(1.0, rate * rtt_s / first))))
        trips = min(full, max(0, ceil(log2(1 + nbytes / first)) - 1))
        return trips * rtt_s - first * ((1 << trips) - 1) / rate

    def arriving_s(self, nbytes: float, name: str) -> float:
        """From when a transfer's last byte leaves until all of it is decoded at the far end.

        Its jitter is drawn from its name, so it is the same under every way to share the line.
        `nbytes` are raw: the codec's share is its last piece, coded before and after the wire.
        """
        seconds = self.delay_s + self.codec.wait_s
        if self.jitter_s:
            # |z| of a normal z: the upper half of its distribution.
            drawn = (crc32(f"{self.seed} {name}".encode()) + 0.5) / 2**32
            seconds += self.jitter_s * _NORMAL.inv_cdf((1 + drawn) / 2)
        codec = self.codec
        piece = min(nbytes, PIECE_BYTES)
        return seconds + piece / codec.encode_bytes_per_s + piece / codec.decode_bytes_per_s


def mathis_bytes_per_s(loss: float, rtt_s: float) -> float:
    """What loss leaves one connection of Reno's kind (Mathis and others 1997, periodic loss).

    28 Mbps at 50 ms and 1e-4. Cubic does about that well on long lines with that much loss.
    """
    return SEGMENT_BYTES / rtt_s * sqrt(1.5 / loss)


def _ours(model: LineModel, rate: float) -> Share:
    return Ranked(rate, ageing_bytes_per_s=ageing_bytes_per_s(rate))


def _pool(model: LineModel, rate: float) -> Share:
    return Shared(rate, each_bytes_per_s=model.each_bytes_per_s(), at_once=model.connections)


_SHARES = {
    Sharing.OURS: _ours,
    Sharing.FAIR: lambda model, rate: Shared(rate),
    Sharing.FIFO: lambda model, rate: Shared(rate, at_once=1),
    Sharing.POOL: _pool,
}
