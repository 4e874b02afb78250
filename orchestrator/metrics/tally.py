"""Histograms for one thread: plain counts, shown when somebody asks."""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector


class Tally:
    """Counts of one set of labels: a tenth of prometheus_client's time per observation."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def add(self, other: "Tally") -> None:
        """Take over what another of the same bounds has counted."""
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


class Tallies(Collector):
    """A histogram with labels. A set of labels is there once it was asked for."""

    def __init__(
        self, name: str, what: str, bounds: tuple[float, ...], labels: tuple[str, ...]
    ) -> None:
        self._name, self._what, self._bounds, self._labels = name, what, bounds, labels
        self._tallies: dict[tuple[str, ...], Tally] = {}

    def fresh(self) -> Tally:
        """An empty tally of nobody's, to be added later."""
        return Tally(self._bounds)

    def labels(self, *values: str) -> Tally:
        tally = self._tallies.get(values)
        if tally is None:
            tally = self._tallies[values] = self.fresh()
        return tally

    def collect(self) -> Iterable[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._what, labels=self._labels)
        for values, tally in sorted(self._tallies.items()):
            family.add_metric(values, self._buckets(tally), tally.total)
        yield family

    def alias(
        self, name: str, what: str, labels: tuple[str, ...], values: tuple[str, ...]
    ) -> HistogramMetricFamily:
        """The same observations as one histogram of another name, whatever their labels."""
        all_of_it = self.fresh()
        for tally in self._tallies.values():
            all_of_it.add(tally)
        family = HistogramMetricFamily(name, what, labels=labels)
        family.add_metric(values, self._buckets(all_of_it), all_of_it.total)
        return family

    def _buckets(self, tally: Tally) -> list[tuple[str, float]]:
        bounds = [*map(str, map(float, self._bounds)), "+Inf"]
        return list(zip(bounds, map(float, accumulate(tally.counts)), strict=True))
