"""KV that is there before its prefill ends, and what a line could carry of it by then."""

from collections import deque
from collections.abc import Sequence

# (time, bytes of KV that are there by then), linear in between, nothing before the first.
Ramp = tuple[tuple[float, float], ...]

_MOST_GAPS = 64


def layerwise(began_at: float, chunks: Sequence[tuple[float, float]], layers: int) -> Ramp:
    """The KV of a prefill that hands over each layer of a chunk as soon as it is computed.

    `chunks`: when each ended (or several alike in a row) and the bytes by then. A layer is late by
    the time it takes, so of the last chunk one layer's bytes are left when the prefill ends. Of
    several chunks given as one it is taken to be a layer of all of them.
    """
    points = []
    start, there = began_at, 0.0
    for end, nbytes in chunks:
        points.append((start + (end - start) / layers, there))
        last = (end, nbytes - (nbytes - there) / layers)
        start, there = end, nbytes
    return (*points, last) if points else ()


class Spare:
    """What a line could have carried and did not, for transfers that are told of late.

    A replay learns of a transfer when its KV is complete. What of it could have gone before is
    claimed here, from what nobody else used: exact on a line with room, and on a full one late by
    the shares it would have taken from others. The claims of prefills that run side by side are
    spread evenly over the gaps. Of the distant past only a mean is kept.
    """

    def __init__(self) -> None:
        self._gaps: deque[list[float]] = deque()  # [begin, end, bytes per second]

    def add(self, begin: float, end: float, bytes_per_s: float) -> None:
        gaps = self._gaps
        if gaps and gaps[-1][1] == begin and gaps[-1][2] == bytes_per_s:
            gaps[-1][1] = end
            return
        gaps.append([begin, end, bytes_per_s])
        if len(gaps) > _MOST_GAPS:
            first, second = gaps.popleft(), gaps[0]
            nbytes = first[2] * (first[1] - first[0]) + second[2] * (second[1] - second[0])
            second[0] = first[0]
            second[2] = nbytes / (second[1] - second[0])

    def claim(
        self, since: float, ramp: Ramp, *, ratio: float, each_bytes_per_s: float
    ) -> list[tuple[float, float, float]]:
        """Take what could have gone from `since` on: [(begin, end, bytes per second)] on the wire.

        `ramp` in raw bytes, `ratio` raw bytes per one on the wire.
        """
        parts = self._since(since)
        if not parts:
            return []
        spare = [min(each_bytes_per_s, gap[2]) for gap in parts]
        could = sum(rate * (gap[1] - gap[0]) for gap, rate in zip(parts, spare, strict=True))
        sent = min(could, _carried(parts, spare, ramp, ratio))
        if sent <= 0:
            return []
        part = sent / could
        claimed = []
        for gap, rate in zip(parts, spare, strict=True):
            claimed.append((gap[0], gap[1], rate * part))
            gap[2] = max(0.0, gap[2] - rate * part)
        return claimed

    def _since(self, since: float) -> list[list[float]]:
        """The gaps from `since` on; one that it falls into becomes two."""
        gaps = self._gaps
        parts: list[list[float]] = []
        for gap in reversed(gaps):
            if gap[1] <= since:
                break
            parts.append(gap)
        parts.reverse()
        if parts and parts[0][0] < since:
            begin, _, rate = parts[0]
            parts[0][0] = since
            gaps.insert(len(gaps) - len(parts), [begin, since, rate])
        return parts


def _carried(
    gaps: Sequence[list[float]], rates: Sequence[float], ramp: Ramp, ratio: float
) -> float:
    """Bytes on the wire: in each piece between two bends of `ramp` and of the gaps, what the gap
    carries, and never more by then than is there."""
    sent = 0.0
    bend, bends = 0, len(ramp)
    for (begin, end, _), rate in zip(gaps, rates, strict=True):
        at = begin
        while at < end:
            while bend < bends and ramp[bend][0] <= at:
                bend += 1
            until = min(end, ramp[bend][0]) if bend < bends else end
            if bend:  # before the first point nothing is there
                sent = min(sent + rate * (until - at), _there(ramp, bend, until) / ratio)
            at = until
    return sent


def _there(ramp: Ramp, bend: int, at: float) -> float:
    """Bytes at a time that the points before and at `bend` enclose."""
    before_at, before = ramp[bend - 1]
    if bend == len(ramp):
        return before
    after_at, after = ramp[bend]
    return before + (after - before) * (at - before_at) / (after_at - before_at)
