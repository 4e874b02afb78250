"""What the pure core counts, read when Prometheus asks."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily


class CoreEvents:
    """A collector over the core's own counts: `pdd_core_events_total{event="main_lost"}`.

    The names are those that the core's code writes, so there are only so many.
    """

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(
            "pdd_core_events", "Losses, late legs, cuts and repairs", labels=("event",)
        )
        for event, count in sorted(self._counts.items()):
            family.add_metric((event,), count)
        yield family
