"""A histogram that is told of every token: plain counts, shown when somebody asks."""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector


class TokenGaps(Collector):
    """As prometheus_client's Histogram, for one thread: a tenth of its time per observation."""

    def __init__(self, name: str, what: str, buckets: tuple[float, ...]) -> None:
        self._name, self._what = name, what
        self._bounds = buckets
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterable[HistogramMetricFamily]:
        bounds = [*map(str, map(float, self._bounds)), "+Inf"]
        counts = accumulate(self._counts)
        yield HistogramMetricFamily(
            self._name,
            self._what,
            buckets=[(bound, float(count)) for bound, count in zip(bounds, counts, strict=True)],
            sum_value=self._sum,
        )
