"""Request metrics, as the client sees them: set by the HTTP surface, one meter per choice.

Definitions as vLLM's `benchmark_serving` has them: TTFT is arrival to first token, ITL one gap
between tokens, TPOT the mean of a request's gaps, end to end arrival to the last token. Ours
besides: the exposed stall is by how much the second token is later than a later one would be,
(second - first) - (last - second) / (tokens - 2), never below 0.
"""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from orchestrator.metrics.tally import Tallies, Tally
from orchestrator.state.actions import Emit, Fail, Finish, FinishReason

LONG_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2, 5, 10)
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)
CANCELLED = "cancelled"
NO_ROUTE = "none"  # the request ended before it had one
LABELS = ("model", "route")

RouteOf = Callable[[], str | None]  # a request's route, as far as it has one


class RequestMetrics:
    """What clients felt, by model and route, in one registry."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        def histogram(name: str, what: str, bounds: tuple[float, ...]) -> Tallies:
            made = Tallies(f"pdd_{name}", what, bounds, LABELS)
            registry.register(made)
            return made

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"pdd_{name}_total", what, ("model", *labels), registry=registry)

        self.model = model
        self.ttft = histogram("ttft_seconds", "Arrival to first token, queueing included", LONG_S)
        self.itl = histogram("itl_seconds", "One gap between tokens; 0 within a group", SHORT_S)
        self.tpot = histogram("tpot_seconds", "Mean gap between a request's tokens", SHORT_S)
        self.second_token = histogram("second_token_seconds", "Arrival to second token", LONG_S)
        self.exposed_stall = histogram(
            "exposed_stall_seconds", "Wait for the second token beyond that for a later one", LONG_S
        )
        self.e2e = histogram("e2e_seconds", "Arrival to the end of a finished request", LONG_S)
        self.decode = histogram("decode_seconds", "First to last token", LONG_S)
        self.prompt_size = histogram("prompt_tokens", "Tokens of a prompt", TOKENS)
        self.output_size = histogram("output_tokens", "Tokens of an answer", TOKENS)
        self.finished = dict.fromkeys(FinishReason, 0)
        self._requests = counter("requests", "Requests ended", "route", "outcome")
        self._failures = counter("request_failures", "Requests that failed", "route", "cause")
        self.tokens = Tokens(model)
        registry.register(self.tokens)

    def arrived(self, prompt_tokens: int, now: float, route: RouteOf) -> "RequestMeter":
        """A request begins. `now`: seconds on any monotonic clock, the same for its meter."""
        meter = RequestMeter(self, prompt_tokens, now, route)
        self.tokens.prompt += prompt_tokens
        self.tokens.open.add(meter)
        return meter

    def ended(self, meter: "RequestMeter", route: str, outcome: str, *, failed: bool) -> None:
        """Count a request's end, however it came."""
        self.tokens.completion += meter.tokens
        self.tokens.open.discard(meter)
        self._requests.labels(self.model, route, outcome).inc()
        if failed:
            self._failures.labels(self.model, route, outcome).inc()


class Tokens(Collector):
    """Tokens in and out; those of requests that are still open are counted when somebody asks."""

    def __init__(self, model: str) -> None:
        self._model = model
        self.prompt = self.completion = 0
        self.open: set[RequestMeter] = set()

    @property
    def told(self) -> int:
        """Tokens out."""
        return self.completion + sum(meter.tokens for meter in self.open)

    def collect(self) -> Iterable[CounterMetricFamily]:
        family = CounterMetricFamily("pdd_tokens", "Tokens in and out", labels=("model", "kind"))
        family.add_metric((self._model, "prompt"), self.prompt)
        family.add_metric((self._model, "completion"), self.told)
        yield family


class RequestMeter:
    """One request's watch. It must be told of every action, or at last `gone`.

    What comes with every token is two additions; the rest is reckoned once. A request's route may
    not be known before its end, when all of it comes at once.
    """

    __slots__ = (
        "_arrived",
        "_ended",
        "_first",
        "_gaps",
        "_last",
        "_metrics",
        "_prompt",
        "_route",
        "_route_of",
        "_second",
        "tokens",
    )

    def __init__(
        self, metrics: RequestMetrics, prompt_tokens: int, now: float, route: RouteOf
    ) -> None:
        self._metrics = metrics
        self._prompt = prompt_tokens
        self._arrived = now
        self._route_of = route
        self._route: str | None = None
        self._gaps: Tally | None = None
        self._first: float | None = None
        self._second: float | None = None
        self._last = now
        self.tokens = 0
        self._ended = False

    def saw(self, action: Emit | Finish | Fail, now: float) -> None:
        """Count one action."""
        if isinstance(action, Emit):
            if self._gaps is not None and self._second is not None and len(action.ids) == 1:
                # Told for most tokens: the third and on, one at a time.
                self._gaps.observe(now - self._last)
                self.tokens += 1
                self._last = now
            else:
                self._more(len(action.ids), now)
        elif isinstance(action, Finish):
            self._metrics.finished[action.reason] += 1
            self._end(action.summary.route, action.reason, now)
        else:
            self._end(None, action.failure, now)

    def gone(self) -> None:
        """The client left; without effect once the request has ended."""
        if not self._ended:
            self._end(None, CANCELLED, self._last)

    def _more(self, count: int, now: float) -> None:
        if count == 0:
            return
        gaps = self._gaps
        if gaps is None:
            gaps = self._begin(now)
        else:
            gaps.observe(now - self._last)
            if self._second is None:
                self._second = now
        for _ in range(count - 1):
            gaps.observe(0.0)
        if count > 1 and self._second is None:
            self._second = now
        self.tokens += count
        self._last = now

    def _begin(self, now: float) -> Tally:
        """The first token has come."""
        m, self._first = self._metrics, now
        self._route = self._route_of()
        if self._route is None:
            self._gaps = m.itl.fresh()
        else:
            self._gaps = m.itl.labels(m.model, self._route)
            m.ttft.labels(m.model, self._route).observe(now - self._arrived)
        return self._gaps

    def _end(self, told: str | None, outcome: str, now: float) -> None:
        self._ended = True
        m, tokens = self._metrics, self.tokens
        route = self._route or told or self._route_of() or NO_ROUTE
        if self._route is None and self._gaps is not None and self._first is not None:
            m.itl.labels(m.model, route).add(self._gaps)
            m.ttft.labels(m.model, route).observe(self._first - self._arrived)
        if told is not None:
            labels = (m.model, route)
            m.e2e.labels(*labels).observe(now - self._arrived)
            m.prompt_size.labels(*labels).observe(self._prompt)
            m.output_size.labels(*labels).observe(tokens)
        self._pace(route)
        failed = told is None and outcome != CANCELLED
        m.ended(self, route, outcome, failed=failed)

    def _pace(self, route: str) -> None:
        """How fast the tokens came, of a request that has two or more; also of one that failed."""
        first, second, tokens = self._first, self._second, self.tokens
        if first is None or second is None:
            return
        labels, m = (self._metrics.model, route), self._metrics
        m.decode.labels(*labels).observe(self._last - first)
        m.tpot.labels(*labels).observe((self._last - first) / (tokens - 1))
        m.second_token.labels(*labels).observe(second - self._arrived)
        later = (self._last - second) / (tokens - 2) if tokens > 2 else 0.0
        m.exposed_stall.labels(*labels).observe(max(0.0, second - first - later))
