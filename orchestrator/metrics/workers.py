"""Worker metrics, set from the workers' own Load messages."""

from prometheus_client import CollectorRegistry, Gauge

from orchestrator.metrics.links import KVSent
from workers.api.messages import Load

LABELS = ("worker", "site", "pool")


class WorkerMetrics:
    """One gauge per number of a Load message, counters of what the worker sends.

    A number a worker does not know has no sample.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, what: str) -> Gauge:
            return Gauge(f"pdd_{name}", what, LABELS, registry=registry)

        self._gauges = {
            "running": gauge("running_legs", "Legs that compute or decode"),
            "prefill_tokens": gauge("prefill_backlog_tokens", "Prompt tokens not yet computed"),
            "kv_free_tokens": gauge("kv_free_tokens", "Tokens that could be reserved now"),
            "kv_total_tokens": gauge("kv_capacity_tokens", "Tokens the KV pool holds"),
            "kv_held_tokens": gauge("kv_held_tokens", "Tokens in blocks that a leg references"),
            "step_s": gauge("step_seconds", "Seconds per decode step, moving average"),
            "prefill_tokens_per_s": gauge("prefill_tokens_per_second", "Prefill speed"),
        }
        self._kv_sent = KVSent(registry)
        self._places: dict[str, tuple[str, str]] = {}

    def load(self, worker: str, site: str, pool: str, load: Load) -> None:
        """Take over one worker's account of itself."""
        if self._places.get(worker) != (site, pool):
            self.forget(worker)
            self._places[worker] = (site, pool)
        self._kv_sent.load(site, load)
        for field, gauge in self._gauges.items():
            value = getattr(load, field)
            if value is not None:
                gauge.labels(worker, site, pool).set(value)

    def forget(self, worker: str) -> None:
        """Drop a lost worker's samples; harmless for one that is not known."""
        place = self._places.pop(worker, None)
        if place is None:
            return
        for gauge in self._gauges.values():
            gauge.remove_by_labels({"worker": worker})
