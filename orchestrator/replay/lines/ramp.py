"""KV that is there before its prefill ends, and what a line could carry of it by then."""

from collections.abc import Sequence
from math import inf

# (time, bytes of KV that are there by then), linear in between, nothing before the first.
Ramp = tuple[tuple[float, float], ...]

_MOST_GAPS = 16


def layerwise(
    began_at: float, chunks: Sequence[tuple[float, float]], layers: int, *, before: float = 0.0
) -> Ramp:
    """The KV of a prefill that hands over each layer of a chunk as soon as it is computed.

    `chunks`: when each ended (or several alike in a row) and the bytes by then; `before`: bytes
    that were there when it began, from a cache. A layer is late by the time it takes, so of the
    last chunk one layer's bytes are left when the prefill ends. Of several chunks given as one it
    is taken to be a layer of all of them.
    """
    points = [(began_at, before)] if before else []
    start, there = began_at, before
    last = (began_at, before)
    for end, nbytes in chunks:
        points.append((start + (end - start) / layers, there))
        last = (end, nbytes - (nbytes - there) / layers)
        start, there = end, nbytes
    return (*points, last)


class Spare:
    """What a line could have carried and did not, for transfers that are told of late.

    A replay learns of a transfer when its KV is complete. What of it could have gone before is
    claimed here, from what nobody else used: exact on a line with room, and on a full one late by
    the shares it would have taken from others. The claims of prefills that run side by side are
    spread evenly over the gaps. The further back, the more gaps are kept as one of their mean.
    """

    def __init__(self) -> None:
        self._gaps: list[list[float]] = []  # [begin, end, bytes per second]

    def add(self, begin: float, end: float, bytes_per_s: float) -> None:
        gaps = self._gaps
        if gaps and gaps[-1][1] == begin and gaps[-1][2] == bytes_per_s:
            gaps[-1][1] = end
            return
        gaps.append([begin, end, bytes_per_s])
        if len(gaps) >= _MOST_GAPS:
            old = _MOST_GAPS // 2
            gaps[:old] = [_mean(*gaps[at : at + 2]) for at in range(0, old, 2)]

    def claim(
        self, since: float, ramp: Ramp, *, ratio: float, each_bytes_per_s: float
    ) -> list[tuple[float, float, float]]:
        """Take what could have gone from `since` on: [(begin, end, bytes per second)] on the wire.

        `ramp` in raw bytes, `ratio` raw bytes per one on the wire.
        """
        parts = self._since(since)
        sent, could = _carried(parts, ramp, ratio, each_bytes_per_s)
        if sent <= 0:
            return []
        part = sent / could
        claimed = []
        for gap in parts:
            begin, end, spare = gap
            rate = part * (spare if spare < each_bytes_per_s else each_bytes_per_s)
            gap[2] = spare - rate if spare > rate else 0.0
            claimed.append((begin, end, rate))
        return claimed

    def _since(self, since: float) -> list[list[float]]:
        """The gaps from `since` on; one that it falls into becomes two."""
        gaps = self._gaps
        first = len(gaps)
        while first and gaps[first - 1][1] > since:
            first -= 1
        if first < len(gaps) and gaps[first][0] < since:
            begin, end, rate = gaps[first]
            gaps[first : first + 1] = [begin, since, rate], [since, end, rate]
            first += 1
        return gaps[first:]


def _mean(first: list[float], second: list[float]) -> list[float]:
    nbytes = first[2] * (first[1] - first[0]) + second[2] * (second[1] - second[0])
    return [first[0], second[1], nbytes / (second[1] - first[0])]


def _carried(
    gaps: Sequence[list[float]], ramp: Ramp, ratio: float, each_bytes_per_s: float
) -> tuple[float, float]:
    """Bytes on the wire, and what they would be if all of it were there all the time.

    In each piece between two bends of `ramp` and of the gaps, what the gap carries, and never more
    by then than is there.
    """
    sent = could = 0.0
    bend, bends = 0, len(ramp)
    there_at = there = slope = 0.0  # the ramp from its last bend on
    bends_at = ramp[0][0] if ramp else inf
    for begin, end, spare in gaps:
        rate = spare if spare < each_bytes_per_s else each_bytes_per_s
        could += rate * (end - begin)
        while bends_at < end:
            if bends_at > begin:
                most = there + slope * (bends_at - there_at)
                sent = min(sent + rate * (bends_at - begin), most)
                begin = bends_at
            there_at, there = ramp[bend][0], ramp[bend][1] / ratio
            bend += 1
            slope, bends_at = 0.0, inf
            if bend < bends:
                bends_at = ramp[bend][0]
                if bends_at > there_at:
                    slope = (ramp[bend][1] / ratio - there) / (bends_at - there_at)
        sent = min(sent + rate * (end - begin), there + slope * (end - there_at))
    return sent, could
