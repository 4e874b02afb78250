"""Workers' own accounts of themselves, read when Prometheus asks."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from orchestrator.membership.members import Member, Members

LABELS = ("worker", "site", "pool")

Family = TypeVar("Family", CounterMetricFamily, GaugeMetricFamily)

Reading = Callable[[Member], float | None]


def _of_load(field: str) -> Reading:
    def read(member: Member) -> float | None:
        value: float | None = getattr(member.load, field, None)
        return value

    return read


def _blocks(field: str) -> Reading:
    """Tokens of a Load as whole blocks."""

    def read(member: Member) -> float | None:
        if member.load is None or member.hello is None:
            return None
        tokens: int = getattr(member.load, field)
        return -(-tokens // member.hello.block_size)

    return read


GAUGES: dict[str, tuple[str, Reading]] = {
    "running_legs": ("Legs that compute or decode", _of_load("running")),
    "slots": ("Legs that may run at once", lambda m: m.hello.slots if m.hello else None),
    "prefill_backlog_tokens": ("Prompt tokens not yet computed", _of_load("prefill_tokens")),
    "kv_blocks": ("KV blocks of the pool", _blocks("kv_total_tokens")),
    "kv_blocks_used": ("KV blocks that a leg references", _blocks("kv_held_tokens")),
    "kv_free_tokens": ("Tokens that could be reserved now", _of_load("kv_free_tokens")),
    "kv_capacity_tokens": ("Tokens the KV pool holds", _of_load("kv_total_tokens")),
    "kv_held_tokens": ("Tokens in blocks that a leg references", _of_load("kv_held_tokens")),
    "kv_waste_ratio": (
        "Share of empty places in the blocks of legs that have lost tokens",
        _of_load("kv_waste"),
    ),
    "step_seconds": ("Seconds per decode step, moving average", _of_load("step_s")),
    "prefill_tokens_per_second": ("Prefill speed", _of_load("prefill_tokens_per_s")),
}


COUNTERS: dict[str, tuple[str, Reading]] = {
    "kv_evicted_tokens": ("Tokens that have died", _of_load("kv_evicted_tokens")),
    "kv_freed_blocks": ("Blocks that dead tokens have given back", _of_load("kv_freed_blocks")),
}


class WorkerMetrics:
    """A collector: a worker that is not up has no samples, nor has what a worker does not know."""

    def __init__(self, members: Members) -> None:
        self._members = members

    def collect(self) -> Iterator[Metric]:
        for name, (what, read) in GAUGES.items():
            yield self._filled(GaugeMetricFamily(f"pdd_{name}", what, labels=LABELS), read)
        for name, (what, read) in COUNTERS.items():
            yield self._filled(CounterMetricFamily(f"pdd_{name}", what, labels=LABELS), read)

    def _filled(self, family: Family, read: Reading) -> Family:
        for worker, member in sorted(self._members.by_name.items()):
            value = read(member)
            if value is not None:
                family.add_metric((worker, member.site, member.pool), value)
        return family
