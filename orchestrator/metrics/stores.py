"""Sites' stores of KV blocks, as they account for themselves."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

PLACE = ("site", "pool")
TIERED = {
    "hits": re.compile(r"hits_(?P<tier>\w+)"),
    "read_bytes": re.compile(r"read_bytes_(?P<tier>\w+)"),
}
EVICTED = re.compile(r"evicted_(?P<tier>[a-z]+)_(?P<cause>\w+)")


class StoreMetrics:
    """A collector over the last account of each pool's store. One that is away has no samples."""

    def __init__(self) -> None:
        self._accounts: dict[tuple[str, str], Mapping[str, Any]] = {}

    def told(self, site: str, pool: str, account: Mapping[str, Any] | None) -> None:
        """A store's account of itself; None: it is away."""
        if account is None:
            self._accounts.pop((site, pool), None)
        else:
            self._accounts[site, pool] = account

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        counters = {
            "hits": _counter("hits", "Blocks that were asked for and found", "tier"),
            "read_bytes": _counter("read_bytes", "Bytes of them", "tier"),
        }
        evicted = _counter("evictions", "Blocks that had to leave a tier", "tier", "cause")
        events = _counter("events", "What else happened to blocks", "event")
        held = _gauge("held_bytes", "What a tier holds")
        room = _gauge("capacity_bytes", "What a tier may hold")
        for place, account in sorted(self._accounts.items()):
            for name, value in account["counts"].items():
                if (out := EVICTED.fullmatch(name)) is not None:
                    evicted.add_metric((*place, out["tier"], out["cause"]), value)
                    continue
                for family, pattern in TIERED.items():
                    if (found := pattern.fullmatch(name)) is not None:
                        counters[family].add_metric((*place, found["tier"]), value)
                        break
                else:
                    events.add_metric((*place, name), value)
            for tier, there in account["tiers"].items():
                held.add_metric((*place, tier), there["bytes"])
                room.add_metric((*place, tier), there["capacity_bytes"])
        yield from (*counters.values(), evicted, events, held, room)


def _counter(name: str, what: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"pdd_store_{name}", what, labels=(*PLACE, *labels))


def _gauge(name: str, what: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"pdd_store_{name}", what, labels=(*PLACE, "tier"))
