"""KV that is there before its prefill ends, and what a line could carry of it by then."""

from collections.abc import Sequence
from math import inf

# (time, bytes of KV that are there by then), linear in between, nothing before the first.
Ramp = tuple[tuple[float, float], ...]
# A chunk of a prompt: when it had been computed, and its tokens.
Chunk = tuple[float, int]

_MOST_GAPS = 16  # before neighbours are merged
_SMEAR = 0.5  # of the time since; on a full line a quarter changes the mean wait by 0.3 %


def layerwise(
    began_at: float,
    chunks: Sequence[Chunk],
    layers: int,
    *,
    hit: int,
    first: int,
    stop: int,
    token_bytes: float,
) -> Ramp:
    """The KV of tokens [first, stop) of a prefill that hands over each layer of a chunk as soon as
    it is computed; with 1 for `layers`, each chunk.

    `hit`: tokens that were there when it began, from a cache. A layer is late by the time it takes,
    so of the last chunk one layer's bytes are left when the prefill ends.
    """
    start, at = began_at, hit
    there = max(0, min(hit, stop) - first)
    last: tuple[float, float] = (began_at, there)
    points = [last] if there else []
    for ended_at, tokens in chunks:
        after = at + tokens
        if after > first:
            points.append((start + (ended_at - start) / layers, there))
            done = min(after, stop) - first
            last = ended_at, done - min(tokens, done - there) / layers
            there = done
        start, at = ended_at, after
    return tuple((when, token_bytes * tokens) for when, tokens in (*points, last))


class Spare:
    """What a line could have carried and did not, for transfers that are told of late.

    A replay learns of a transfer when its KV is complete. What of it could have gone before is
    claimed here, as early as it could, from what nobody else used. So a line with work is as full
    as if it had been told in time; only who goes first on a full line may differ.

    Gaps are merged into one of their mean where they are short against how long ago they were.
    """

    def __init__(self) -> None:
        self._gaps: list[list[float]] = []  # [begin, end, bytes per second]
        self._most = _MOST_GAPS

    def add(self, begin: float, end: float, bytes_per_s: float) -> None:
        gaps = self._gaps
        if gaps and gaps[-1][1] == begin and gaps[-1][2] == bytes_per_s:
            gaps[-1][1] = end
            return
        gaps.append([begin, end, bytes_per_s])
        if len(gaps) >= self._most:
            self._gaps = _merged(gaps, end)
            self._most = max(_MOST_GAPS, 2 * len(self._gaps))

    def claim(
        self, since: float, ramp: Ramp, *, ratio: float, each_bytes_per_s: float
    ) -> list[tuple[float, float, float]]:
        """Take what could have gone from `since` on: [(begin, end, bytes per second)] on the wire.

        In each piece between two bends of `ramp` and of the gaps, what the gap carries, and never
        more by then than is there. `ramp` in raw bytes, `ratio` raw bytes per one on the wire.
        """
        claimed: list[tuple[float, float, float]] = []
        sent = 0.0
        bend, bends = 0, len(ramp)
        there_at = there = slope = 0.0  # the ramp from its last bend on
        bends_at = ramp[0][0] if ramp else inf
        for gap in self._since(since):
            begin, end, spare = gap
            rate = spare if spare < each_bytes_per_s else each_bytes_per_s
            at, before = begin, sent
            while bends_at < end:
                if bends_at > at:
                    sent = min(sent + rate * (bends_at - at), there + slope * (bends_at - there_at))
                    at = bends_at
                there_at, there = ramp[bend][0], ramp[bend][1] / ratio
                bend += 1
                slope, bends_at = 0.0, inf
                if bend < bends:
                    bends_at = ramp[bend][0]
                    if bends_at > there_at:
                        slope = (ramp[bend][1] / ratio - there) / (bends_at - there_at)
            most = there + slope * (end - there_at)
            sent += rate * (end - at)
            if sent > most:
                sent = most
            if sent > before:
                rate = (sent - before) / (end - begin)
                gap[2] = spare - rate if spare > rate else 0.0
                claimed.append((begin, end, rate))
            if bend == bends and sent >= there:
                break
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


def _merged(gaps: Sequence[list[float]], now: float) -> list[list[float]]:
    """Neighbours as one, as long as that is shorter than _SMEAR of the time since."""
    merged = [gaps[0]]
    for gap in gaps[1:]:
        last = merged[-1]
        begin, end = last[0], gap[1]
        if end - begin <= _SMEAR * (now - end):
            nbytes = last[2] * (last[1] - begin) + gap[2] * (end - gap[0])
            merged[-1] = [begin, end, nbytes / (end - begin)]
        else:
            merged.append(gap)
    return merged
