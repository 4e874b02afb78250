"""One trace per request, across sites: sent to an OpenTelemetry collector over OTLP/HTTP.

The gateway makes all spans, at a request's end, from what its core has noted: every moment is of
the gateway's own clock, so no two machines' clocks are ever compared, and what travels to a worker
and back counts to the span that waits for it. Wall time comes in once per request, to place it.
Exporting is in a thread of its own; what a collector does not take in time is dropped.

Imported only where a topology asks for it: its libraries are an extra.
"""

import time
from collections.abc import Callable, Mapping

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from orchestrator.lifecycle.timeline import LegTimes, Timeline
from orchestrator.state.actions import Fail, Finish
from workers.api.messages import Role

Attribute = str | int | float | bool
EVERY_MS = 1000
# Moments of a request that are no span of their own.
FIRST_TOKEN, HANDOFF = "first token", "handoff"


class Traces:
    """Watches the driver. `clock`: the gateway's, in seconds; `url`: where OTLP/HTTP is taken.

    Each site is a service of its own, so that a trace shows where its parts ran.
    """

    def __init__(
        self,
        *,
        url: str,
        model: str,
        gateway_site: str,
        clock: Callable[[], float],
        exporter: SpanExporter | None = None,
    ) -> None:
        self._model, self._gateway_site, self._clock = model, gateway_site, clock
        self._spans = BatchSpanProcessor(
            exporter or OTLPSpanExporter(endpoint=url), schedule_delay_millis=EVERY_MS
        )
        self._services: dict[str, Tracer] = {}

    def ended(self, told: Timeline | None, end: Finish | Fail | None, trace: str | None) -> None:
        """A request's end; see `driver.Watcher`. One that was refused as it came has no trace."""
        if told is not None:
            _Request(self, told, end, trace).record()

    def close(self) -> None:
        """Send what is left. May take as long as the exporter waits for a collector."""
        self._spans.shutdown()  # type: ignore[no-untyped-call]

    @property
    def gateway(self) -> Tracer:
        return self.service("pdd gateway", self._gateway_site)

    def site(self, site: str) -> Tracer:
        return self.service(f"pdd {site}", site)

    def service(self, name: str, site: str) -> Tracer:
        tracer = self._services.get(name)
        if tracer is None:
            resource = Resource.create({"service.name": name, "pdd.site": site})
            provider = TracerProvider(resource=resource, shutdown_on_exit=False)
            provider.add_span_processor(self._spans)
            tracer = self._services[name] = provider.get_tracer("pdd-orchestrator")
        return tracer

    def wall_ns(self) -> Callable[[float], int]:
        """From the gateway's clock to wall time, as both are now."""
        offset = time.time_ns() - round(self._clock() * 1e9)
        return lambda at: offset + round(at * 1e9)

    @property
    def model(self) -> str:
        return self._model


class _Request:
    """The spans of one request."""

    def __init__(
        self, traces: Traces, told: Timeline, end: Finish | Fail | None, parent: str | None
    ) -> None:
        self._traces, self._told, self._end, self._parent = traces, told, end, parent
        self._wall = traces.wall_ns()

    def record(self) -> None:
        told, summary = self._told, self._told.summary
        carrier = {} if self._parent is None else {"traceparent": self._parent}
        root = self._traces.gateway.start_span(
            f"chat {self._traces.model}",
            TraceContextTextMapPropagator().extract(carrier),
            SpanKind.SERVER,
            self._attributes(),
            start_time=self._wall(told.arrived_at),
        )
        if told.first_token_at is not None:
            root.add_event(FIRST_TOKEN, timestamp=self._wall(told.first_token_at))
        self._context = trace.set_span_in_context(root)
        queued_until = told.now if told.routed_at is None else told.routed_at
        self._span(self._traces.gateway, "queue", told.arrived_at, queued_until, {})
        for leg in told.legs:
            self._leg(leg)
            if leg.first_at is not None and leg.first_index == summary.handoff_index:
                root.add_event(
                    HANDOFF, {"pdd.index": leg.first_index or 0}, self._wall(leg.first_at)
                )
        if isinstance(self._end, Fail):
            root.set_status(Status(StatusCode.ERROR, self._end.failure))
        root.end(self._wall(told.now))

    def _attributes(self) -> dict[str, Attribute]:
        """Names of OpenTelemetry's conventions for generative AI where it has one."""
        told, summary = self._told, self._told.summary
        found: dict[str, Attribute | None] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": self._traces.model,
            "gen_ai.usage.input_tokens": summary.prompt_tokens,
            "gen_ai.usage.output_tokens": summary.completion_tokens,
            "pdd.request": told.request,
            "pdd.route": told.route,
            "pdd.outcome": _outcome(self._end),
            "pdd.handoff": summary.handoff,
            "pdd.handoff_index": summary.handoff_index,
            "pdd.handoff_gap_s": summary.handoff_gap_s,
            "pdd.cached_tokens": summary.cached_tokens,
            "pdd.recoveries": summary.recoveries,
        }
        return {name: value for name, value in found.items() if value is not None}

    def _leg(self, leg: LegTimes) -> None:
        """What it waited for, and what it brought."""
        ended_at = self._told.now if leg.ended_at is None else leg.ended_at
        site = self._traces.site(leg.site)
        told: dict[str, Attribute] = {"pdd.worker": leg.worker, "pdd.lost": leg.lost}
        tokens: dict[str, Attribute] = {"pdd.tokens": leg.tokens}
        if leg.first_index is not None:
            tokens["pdd.first_index"] = leg.first_index
        if leg.role is Role.PREFILL:
            until = ended_at if leg.first_at is None else leg.first_at
            self._span(site, "prefill", leg.opened_at, until, told | tokens, failed=leg.lost)
            return
        if leg.kv_at is not None and leg.kv_from is not None:
            landed = leg.landed_at is not None
            until = leg.landed_at if leg.landed_at is not None else ended_at
            way: dict[str, Attribute] = {"pdd.from": leg.kv_from, "pdd.to": leg.site}
            more = told | way | {"pdd.role": leg.role, "pdd.landed": landed}
            self._span(self._traces.site(leg.kv_from), "transfer", leg.kv_at, until, more)
        if leg.first_at is not None and leg.last_at is not None:
            more = told | tokens
            self._span(site, leg.role, leg.first_at, leg.last_at, more, failed=leg.lost)

    def _span(
        self,
        service: Tracer,
        name: str,
        began_at: float,
        ended_at: float,
        attributes: Mapping[str, Attribute],
        *,
        failed: bool = False,
    ) -> None:
        span = service.start_span(
            name, self._context, attributes=attributes, start_time=self._wall(began_at)
        )
        if failed:
            span.set_status(Status(StatusCode.ERROR, "lost"))
        span.end(self._wall(ended_at))


def _outcome(end: Finish | Fail | None) -> str:
    if end is None:
        return "cancelled"
    return end.reason if isinstance(end, Finish) else end.failure
