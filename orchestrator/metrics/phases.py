"""The phases of requests that have ended, by the sites they ran at: told by the driver."""

from prometheus_client import CollectorRegistry, Counter

from orchestrator.lifecycle.timeline import LegTimes, Timeline
from orchestrator.metrics.requests import LONG_S, NO_ROUTE, SHORT_S
from orchestrator.metrics.tally import Tallies
from workers.api.messages import Role


class PhaseMetrics:
    """Of every request, also of one that failed or whose client left, as far as it came."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        def seconds(name: str, what: str, bounds: tuple[float, ...], *labels: str) -> Tallies:
            made = Tallies(f"pdd_{name}_seconds", what, bounds, ("model", *labels))
            registry.register(made)
            return made

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"pdd_{name}_total", what, ("model", *labels), registry=registry)

        self._model = model
        self.queue = seconds("queue", "Arrival to the route's choice", LONG_S, "route")
        self.prefill = seconds("prefill", "Prefill's start to first token", LONG_S, "route", "site")
        self.kv_transfer = seconds(
            "kv_transfer", "First token to KV landed at main", LONG_S, "from", "to"
        )
        self.relay = seconds("relay", "The relay's first to last token", LONG_S, "site")
        self.handoff_gap = seconds(
            "handoff_gap", "Wait at the handoff beyond one step", SHORT_S, "handoff"
        )
        self._handoffs = counter("handoffs", "Requests main took over from a relay", "handoff")
        self._decoded = counter("decoded_tokens", "Accepted tokens of legs", "role", "site")
        self._lost = counter("legs_lost", "Legs that failed and were replaced", "role", "site")
        self._asked = counter("prefix_cache_query_tokens", "Prompt tokens looked for", "site")
        self._found = counter("prefix_cache_hit_tokens", "Of them, those a cache had", "site")
        self.prefix_cache = (0, 0)  # tokens looked for, and found
        self._bytes = counter("kv_bytes", "KV moved to main, before and after coding", "kind")

    def ended(self, told: Timeline) -> None:
        """Count a request's phases and legs."""
        model, summary = self._model, told.summary
        if told.routed_at is not None:
            self.queue.labels(model, told.route or NO_ROUTE).observe(summary.queue_s)
        if summary.handoff is not None and summary.handoff_index is not None:
            self._handoffs.labels(model, summary.handoff).inc()
            if summary.handoff_gap_s is not None:
                self.handoff_gap.labels(model, summary.handoff).observe(summary.handoff_gap_s)
        self._bytes.labels(model, "raw").inc(summary.kv_bytes_raw)
        self._bytes.labels(model, "wire").inc(summary.kv_bytes_wire)
        for leg in told.legs:
            if leg.role is Role.PREFILL and leg.first_index == 0:
                self._prefilled(told, leg)
            if leg.role is Role.RELAY and leg.first_at is not None and leg.last_at is not None:
                self.relay.labels(model, leg.site).observe(leg.last_at - leg.first_at)
            if leg.role is Role.MAIN and leg.kv_from is not None:
                self._landed(told, leg, leg.kv_from)
            if leg.tokens:
                self._decoded.labels(model, leg.role, leg.site).inc(leg.tokens)
            if leg.lost:
                self._lost.labels(model, leg.role, leg.site).inc()

    def _prefilled(self, told: Timeline, leg: LegTimes) -> None:
        summary = told.summary
        if summary.prefill_s is not None:
            labels = (self._model, told.route or NO_ROUTE, leg.site)
            self.prefill.labels(*labels).observe(summary.prefill_s)
        self._asked.labels(self._model, leg.site).inc(summary.prompt_tokens)
        self._found.labels(self._model, leg.site).inc(summary.cached_tokens)
        asked, found = self.prefix_cache
        self.prefix_cache = asked + summary.prompt_tokens, found + summary.cached_tokens

    def _landed(self, told: Timeline, leg: LegTimes, kv_from: str) -> None:
        if leg.landed_at is not None and told.first_token_at is not None:
            waited_s = max(0.0, leg.landed_at - told.first_token_at)
            self.kv_transfer.labels(self._model, kv_from, leg.site).observe(waited_s)
