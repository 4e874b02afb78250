"""How much a line has carried, and when."""

from math import inf

from orchestrator.replay.outcome import Use


class Account:
    """Bytes over a line, summed over every `every_s` seconds from 0 on (0: only in all)."""

    def __init__(self, every_s: float) -> None:
        self.nbytes = 0.0
        self._every_s = every_s or inf
        self._sums: list[float] = []

    def add(self, begin: float, end: float, bytes_per_s: float) -> None:
        """What has been carried; in any order, the past included."""
        self.nbytes += bytes_per_s * (end - begin)
        every_s = self._every_s
        if every_s == inf:
            return
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

    def use(self, line_bytes_per_s: float) -> Use:
        """Over what the line could have carried."""
        most = line_bytes_per_s * self._every_s
        return Use(every_s=self._every_s, samples=[min(1.0, total / most) for total in self._sums])
