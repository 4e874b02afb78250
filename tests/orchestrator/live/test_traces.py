"""Traces of requests that cross two sites, as a real OTLP/HTTP receiver takes them."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from orchestrator.errors import UserError
from orchestrator.live.tracing import open_traces
from orchestrator.topology.schema import Telemetry, Topology
from tests.orchestrator.live.channel_peer import messages_line
from tests.orchestrator.live.gateway_world import TOPOLOGY, World, play
from workers.api.messages import Cause, Landed, Refused

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


class Collector:
    """Takes what is exported. `spans`: each with the service that it is of."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[tuple[str, Span]] = []

    def take(self, body: bytes) -> bytes:
        request = ExportTraceServiceRequest.FromString(body)
        for of in request.resource_spans:
            names = {a.key: a.value.string_value for a in of.resource.attributes}
            for scope in of.scope_spans:
                self.spans += [(names["service.name"], span) for span in scope.spans]
        return ExportTraceServiceResponse().SerializeToString()

    def named(self, name: str) -> list[Span]:
        return [span for _, span in self.spans if span.name == name]


@contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            assert self.headers["content-type"] == "application/x-protobuf"
            body = self.rfile.read(int(self.headers["content-length"]))
            answer = collector.take(body)
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_address[1]}/v1/traces")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


def traced(url: str) -> Topology:
    return TOPOLOGY.model_copy(update={"telemetry": Telemetry(otlp=url)})


def ask(w: World, headers: dict[str, str]) -> "asyncio.Task[Any]":
    w.http.headers.update(headers)
    return w.complete()


async def relayed(w: World, headers: dict[str, str]) -> None:
    """A request whose relay brings one token before main takes over."""
    await w.all_up()
    answer = ask(w, headers)
    starts = {name: await peer.message("start") for name, peer in w.peers.items()}
    main = starts["shenzhen/q/0"]
    w.says("hami/p/0", starts["hami/p/0"], 0, [], 10)
    await w.law_reaches("hami/r/0", 1)
    w.says("hami/r/0", starts["hami/r/0"], 1, [10], 11)
    await w.law_reaches("shenzhen/q/0", 2)
    landed = Landed(request=main["request"], epoch=main["epoch"], covered=0)
    w.writers["shenzhen/q/0"].write(messages_line(landed))
    w.says("shenzhen/q/0", main, 2, [10, 11], 12)
    assert (await answer).status_code == 200


def attributes(span: Span) -> dict[str, Any]:
    """By name; the value of whichever kind it is."""
    return {a.key: getattr(a.value, str(a.value.WhichOneof("value"))) for a in span.attributes}


def test_one_trace_shows_gateway_prefill_relay_transfer_and_main() -> None:
    with collecting() as collector:
        play(lambda w: relayed(w, SAMPLED), traced(collector.url))  # its end sends what is left
    assert {span.trace_id.hex() for _, span in collector.spans} == {TRACE}
    [root] = collector.named("chat smollm2-135m")
    assert root.parent_span_id.hex() == PARENT
    assert root.kind == Span.SPAN_KIND_SERVER
    told = attributes(root)
    assert (told["pdd.route"], told["pdd.outcome"], told["pdd.handoff_index"]) == (
        "relay",
        "length",
        2,
    )
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (3, 3)
    assert [event.name for event in root.events] == ["first token", "handoff"]
    parts = [(service, span) for service, span in collector.spans if span is not root]
    assert sorted((service, span.name) for service, span in parts) == [
        ("pdd gateway", "queue"),
        ("pdd hami", "prefill"),
        ("pdd hami", "relay"),
        ("pdd hami", "transfer"),
        ("pdd hami", "transfer"),
        ("pdd shenzhen", "main"),
    ]
    for _, span in parts:
        assert span.parent_span_id == root.span_id
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= root.end_time_unix_nano
    [prefill], [relay], [main] = map(collector.named, ("prefill", "relay", "main"))
    ways = {
        (attributes(s)["pdd.from"], attributes(s)["pdd.to"]) for s in collector.named("transfer")
    }
    assert ways == {("hami", "hami"), ("hami", "shenzhen")}
    assert prefill.end_time_unix_nano <= relay.start_time_unix_nano <= main.start_time_unix_nano
    assert attributes(main)["pdd.worker"] == "shenzhen/q/0"
    assert attributes(main)["pdd.first_index"] == 2


def test_a_failed_request_has_a_trace_of_its_own_that_says_so() -> None:
    async def scenario(w: World) -> None:
        await w.all_up()
        answer = ask(w, {})
        start = await w.peers["shenzhen/q/0"].message("start")
        refused = Refused(
            request=start["request"], epoch=start["epoch"], reason="no", cause=Cause.SENSELESS
        )
        w.writers["shenzhen/q/0"].write(messages_line(refused))
        assert (await answer).status_code == 400

    with collecting() as collector:
        play(scenario, traced(collector.url))
    [root] = collector.named("chat smollm2-135m")
    assert root.parent_span_id == b""
    assert root.status.code == Status.STATUS_CODE_ERROR
    assert attributes(root)["pdd.outcome"] == root.status.message == "too_long"
    assert [service for service, span in collector.spans if span.name == "prefill"] == ["pdd hami"]


def test_a_collector_that_is_away_disturbs_nobody() -> None:
    play(lambda w: relayed(w, SAMPLED), traced("http://127.0.0.1:9/v1/traces"))


def test_a_client_that_does_not_sample_is_not_traced() -> None:
    with collecting() as collector:
        unsampled = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
        play(lambda w: relayed(w, unsampled), traced(collector.url))
    assert collector.spans == []


def test_without_telemetry_its_libraries_are_not_loaded() -> None:
    code = (
        "import sys, orchestrator.live.gateway as g; "
        "assert not [m for m in sys.modules if m.startswith('opentelemetry')]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=100)
    assert done.returncode == 0, done.stderr.decode()


def test_without_its_libraries_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "orchestrator.live.telemetry", None)
    with pytest.raises(UserError, match=r"pip install 'pdd-orchestrator\[telemetry\]'"):
        open_traces(traced("http://collector:4318/v1/traces"), "m", lambda: 0.0)
    assert open_traces(TOPOLOGY, "m", lambda: 0.0) is None
