"""Request metrics, as the client sees them: set by the HTTP surface, one meter per choice."""

from prometheus_client import CollectorRegistry, Counter, Histogram

from orchestrator.metrics.tally import TokenGaps
from orchestrator.state.actions import Emit, Fail, Finish, Summary

LONG_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2, 5, 10)
CANCELLED = "cancelled"
NO_ROUTE = "none"  # the request ended without an account


class RequestMetrics:
    """All request metrics in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def seconds(name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"pdd_{name}_seconds", what, buckets=buckets, registry=registry)

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"pdd_{name}_total", what, labels, registry=registry)

        self.ttft = seconds("ttft", "Arrival to first token, queueing included", LONG_S)
        self.itl = TokenGaps("pdd_itl_seconds", "One gap between tokens; 0 within a group", SHORT_S)
        registry.register(self.itl)
        self.e2e = seconds("e2e", "Arrival to the end of a finished request", LONG_S)
        self.queue = seconds("queue", "Waiting for a place", LONG_S)
        self.prefill = seconds("prefill", "Prefill started to first token", LONG_S)
        self.kv_transfer = seconds("kv_transfer", "First token to KV landed at main", LONG_S)
        self.relay = seconds("relay", "The relay's first to last token", LONG_S)
        self.handoff_gap = seconds("handoff_gap", "Wait at the handoff beyond one step", SHORT_S)
        self.requests = counter("requests", "Requests ended", "route", "outcome")
        tokens = counter("tokens", "Tokens in and out", "kind")
        self.prompt_tokens = tokens.labels("prompt")
        self.completion_tokens = tokens.labels("completion")
        self.relay_tokens = counter("relay_tokens", "Tokens that a relay decoded")
        self.handoffs = counter("handoffs", "Requests that main took over from a relay")
        self.recoveries = counter("recoveries", "Legs lost or failed and replaced")
        kv_bytes = counter("kv_bytes", "KV moved, before and after coding", "kind")
        self.kv_bytes_raw = kv_bytes.labels("raw")
        self.kv_bytes_wire = kv_bytes.labels("wire")

    def arrived(self, prompt_tokens: int, now: float) -> "RequestMeter":
        """A request begins. `now`: seconds on any monotonic clock, the same for its meter."""
        self.prompt_tokens.inc(prompt_tokens)
        return RequestMeter(self, now)


class RequestMeter:
    """One request's watch. It must be told of every action, or at last `gone`."""

    def __init__(self, metrics: RequestMetrics, now: float) -> None:
        self._metrics = metrics
        self._arrived = now
        self._last_token: float | None = None
        self._tokens_seen = 0
        self._ended = False

    def saw(self, action: Emit | Finish | Fail, now: float) -> None:
        """Count one action."""
        if isinstance(action, Emit):
            self._tokens(len(action.ids), now)
        elif isinstance(action, Finish):
            self._metrics.e2e.observe(now - self._arrived)
            self._account(action.summary)
            self._end(action.summary.route, action.reason)
        else:
            self._end(NO_ROUTE, action.failure)

    def gone(self) -> None:
        """The client left; without effect once the request has ended."""
        if not self._ended:
            self._end(NO_ROUTE, CANCELLED)

    def _tokens(self, count: int, now: float) -> None:
        if count == 0:
            return
        self._tokens_seen += count
        if self._last_token is None:
            self._metrics.ttft.observe(now - self._arrived)
        else:
            self._metrics.itl.observe(now - self._last_token)
        for _ in range(count - 1):
            self._metrics.itl.observe(0.0)
        self._last_token = now

    def _account(self, summary: Summary) -> None:
        m = self._metrics
        for histogram, value in (
            (m.queue, summary.queue_s),
            (m.prefill, summary.prefill_s),
            (m.kv_transfer, summary.kv_transfer_s),
            (m.relay, summary.relay_s),
            (m.handoff_gap, summary.handoff_gap_s),
        ):
            if value is not None:
                histogram.observe(value)
        m.relay_tokens.inc(summary.relay_tokens)
        m.recoveries.inc(summary.recoveries)
        if summary.handoff_index is not None:
            m.handoffs.inc()
        m.kv_bytes_raw.inc(summary.kv_bytes_raw)
        m.kv_bytes_wire.inc(summary.kv_bytes_wire)

    def _end(self, route: str, outcome: str) -> None:
        self._ended = True
        self._metrics.completion_tokens.inc(self._tokens_seen)
        self._metrics.requests.labels(route, outcome).inc()
