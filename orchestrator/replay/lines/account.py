"""How much a line has carried, and when."""

from collections.abc import Sequence
from math import ceil, inf

from orchestrator.replay.outcome import Use


class Account:
    """Bytes over a line, summed over every `every_s` seconds from 0 on (0: only in all)."""

    def __init__(self, every_s: float) -> None:
        self.nbytes = 0.0
        self._every_s = every_s or inf
        self._sums = [0.0]

    def add(self, begin: float, end: float, bytes_per_s: float) -> None:
        """What has been carried; in any order, the past included."""
        self.nbytes += bytes_per_s * (end - begin)
        every_s = self._every_s
        sums = self._sums
        first, last = int(begin / every_s), int(end / every_s)
        if len(sums) <= last:
            sums.extend([0.0] * (last + 1 - len(sums)))
        if first == last:
            sums[first] += bytes_per_s * (end - begin)
            return
        sums[first] += bytes_per_s * ((first + 1) * every_s - begin)
        for number in range(first + 1, last):
            sums[number] += bytes_per_s * every_s
        sums[last] += bytes_per_s * (end - last * every_s)

    def add_parts(self, parts: Sequence[tuple[float, float, float]]) -> float:
        """Several of them, in order of time; the bytes of all."""
        every_s, sums = self._every_s, self._sums
        total = here = 0.0
        number = int(parts[0][0] / every_s)
        ends_at = (number + 1) * every_s if number < len(sums) else 0.0
        for begin, end, bytes_per_s in parts:
            nbytes = bytes_per_s * (end - begin)
            if end <= ends_at:
                here += nbytes
            else:
                self.add(begin, end, bytes_per_s)
            total += nbytes
        if here:
            sums[number] += here
            self.nbytes += here
        return total

    def use(self, until: float, line_bytes_per_s: float) -> Use:
        """Over what the line could have carried, up to `until`."""
        every_s = self._every_s
        samples = []
        for number in range(ceil(until / every_s)):
            carried = self._sums[number] if number < len(self._sums) else 0.0
            could = line_bytes_per_s * min(every_s, until - number * every_s)
            samples.append(min(1.0, carried / could))
        return Use(every_s=every_s, samples=samples)
