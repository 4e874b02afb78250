"""Sites' stores of KV blocks, as they account for themselves."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

PLACE = ("site", "pool")


class _Counted(NamedTuple):
    """A family, and what a store calls its counters; their named groups are its labels."""

    name: str
    what: str
    pattern: re.Pattern[str]


# The first pattern that fits takes a counter.
COUNTED = tuple(
    _Counted(name, what, re.compile(pattern))
    for name, what, pattern in (
        ("hits", "Blocks that were asked for and found", r"hits_(?P<tier>[a-z]+)"),
        ("misses", "Blocks that were asked for and not found", r"misses"),
        ("read_bytes", "Bytes of blocks that were found", r"read_bytes_(?P<tier>[a-z]+)"),
        ("written_bytes", "Bytes of blocks taken in", r"written_bytes_(?P<tier>[a-z]+)"),
        ("written", "Blocks that a tier has taken in", r"written_(?P<tier>[a-z]+)"),
        (
            "evictions",
            "Blocks that had to leave a tier",
            r"evicted_(?P<tier>[a-z]+)_(?P<cause>[a-z_]+)",
        ),
        (
            "defects",
            "What went wrong and was survived",
            r"defect_(?P<kind>[a-z]+)_(?P<cause>[a-z0-9_]+)",
        ),
        ("events", "What else happened to blocks", r"(?P<event>[a-z_]+)"),
    )
)


class StoreMetrics:
    """A collector over the last account of each pool's store. One that is away is down, and has
    no other samples.
    """

    def __init__(self) -> None:
        self._accounts: dict[tuple[str, str], Mapping[str, Any] | None] = {}

    def told(self, site: str, pool: str, account: Mapping[str, Any] | None) -> None:
        """A store's account of itself; None: it is away."""
        self._accounts[site, pool] = account

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        counters = {
            family.name: CounterMetricFamily(
                f"pdd_store_{family.name}", family.what, labels=(*PLACE, *family.pattern.groupindex)
            )
            for family in COUNTED
        }
        up = _gauge("up", "Whether a pool's store answers its site's agent")
        unwritten = _gauge("unwritten_bytes", "What waits to be written to files")
        held = _gauge("held_bytes", "What a tier holds", "tier")
        room = _gauge("capacity_bytes", "What a tier may hold", "tier")
        for place, account in sorted(self._accounts.items()):
            up.add_metric(place, account is not None)
            if account is None:
                continue
            for name, value in account["counts"].items():
                for family in COUNTED:
                    if (found := family.pattern.fullmatch(name)) is not None:
                        counters[family.name].add_metric((*place, *found.groups()), value)
                        break
            unwritten.add_metric(place, account["unwritten_bytes"])
            for tier, there in account["tiers"].items():
                held.add_metric((*place, tier), there["bytes"])
                room.add_metric((*place, tier), there["capacity_bytes"])
        yield from counters.values()
        yield from (up, unwritten, held, room)


def _gauge(name: str, what: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"pdd_store_{name}", what, labels=(*PLACE, *labels))
