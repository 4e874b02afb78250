"""The border on real sockets: floods, slow clients, ids, rates, pages of other origins."""

import json
import logging
import socket
import threading
import time
from contextlib import suppress

import pytest

from orchestrator.live.openai.answer.answer import Patience
from orchestrator.live.openai.border import connection as border
from orchestrator.live.openai.border.door import Door, Rates

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def dial(gateway) -> socket.socket:
    address = (gateway.http.base_url.host, gateway.http.base_url.port)
    return socket.create_connection(address, timeout=5)


def request(**fields) -> bytes:
    body = json.dumps({"model": "smollm2-135m", "prompt": "x", **fields}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def everything(client: socket.socket) -> bytes:
    """What comes until the server closes."""
    parts = []
    while part := client.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def refusal(raw: bytes) -> tuple[int, dict]:
    head, _, body = raw.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


# ---------------------------------------------------------------- heads


def flood_of_fields() -> bytes:
    return b"GET /health HTTP/1.1\r\n" + b"".join(b"x-%d: y\r\n" % i for i in range(2000)) + b"\r\n"


def one_endless_field() -> bytes:
    return b"GET /health HTTP/1.1\r\nx-long: " + b"y" * (1 << 20)


def one_endless_target() -> bytes:
    return b"GET /" + b"y" * (1 << 20)


@pytest.mark.parametrize("flood", [flood_of_fields, one_endless_field, one_endless_target])
def test_a_flood_of_headers_is_cut_off(gateway, flood):
    with dial(gateway) as client:
        raw = flood()
        # In parts, or the answer may be lost: what is still unread when it closes resets it.
        try:
            for at in range(0, len(raw), 16 << 10):
                client.sendall(raw[at : at + (16 << 10)])
            answer = everything(client)
        except ConnectionError:
            answer = b""
    if answer:
        status, error = refusal(answer)
        assert (status, error["code"]) == (431, "headers_too_large")
    assert gateway.get("/health").status_code == 200


def test_a_flood_of_trailers_is_cut_off(gateway):
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b'{"model": "smollm2-135m", "prompt": "x"}'
    fields = b"".join(b"x-%d: y\r\n" % i for i in range(border.MAX_HEADERS + 1))
    with dial(gateway) as client:
        client.sendall(head + b"%x\r\n%b\r\n0\r\n" % (len(body), body))
        client.sendall(fields + b"\r\n")
        with suppress(ConnectionError):  # what is still unread when it closes resets it
            everything(client)
    assert gateway.service.arrived == []
    assert gateway.get("/health").status_code == 200


def test_a_head_just_over_the_bound_is_told_so(gateway):
    with dial(gateway) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nx: " + b"y" * border.MAX_HEAD_BYTES + b"\r\n\r\n")
        assert refusal(everything(client))[0] == 431
    with dial(gateway) as client:
        fields = b"".join(b"x-%d: y\r\n" % i for i in range(border.MAX_HEADERS + 1))
        client.sendall(b"GET /health HTTP/1.1\r\n" + fields + b"\r\n")
        assert refusal(everything(client))[0] == 431


def test_what_is_no_http_is_told_so_in_json(gateway):
    with dial(gateway) as client:
        client.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        status, error = refusal(everything(client))
    assert (status, error["code"], error["type"]) == (400, "invalid_http", "invalid_request_error")


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
@pytest.mark.parametrize("size", [1 << 16, 7])
def test_another_protocol_that_is_offered_is_declined(gateway, protocol, size):
    """As Java's client offers HTTP/2: the request is served, its body and the next one too."""
    asked = request(max_tokens=1)
    offer = b"Connection: keep-alive, Upgrade\r\nUpgrade: %b\r\n" % protocol
    raw = asked.replace(b"Host: x\r\n", b"Host: x\r\n" + offer) + asked
    with dial(gateway) as client:
        answers = b""
        for at in range(0, len(raw), size):
            client.sendall(raw[at : at + size])
        while answers.count(b'"finish_reason":"length"') < 2:
            part = client.recv(1 << 16)
            assert part, answers
            answers += part
    assert answers.count(b"HTTP/1.1 200 OK") == 2


def test_offers_in_a_long_row_are_declined_one_by_one(gateway):
    """More of them in one piece than Python would go deep."""
    count = 2_000
    offer = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
    with dial(gateway) as client:
        whole = b"GET /health HTTP/1.1\r\nHost: x\r\n" + offer + b"\r\n"
        sending = threading.Thread(target=client.sendall, args=(whole * count,))
        sending.start()
        answered = 0
        rest = b""
        while answered < count:
            part = client.recv(1 << 16)
            assert part, answered
            rest += part
            answered += rest.count(b"HTTP/1.1 200 OK")
            rest = rest[rest.rfind(b"HTTP/1.1 200 OK") + 15 :]
        sending.join()


def test_close_beside_an_offer_is_kept_to(gateway):
    with dial(gateway) as client:
        offer = b"Connection: Upgrade, close\r\nUpgrade: h2c\r\n"
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n" + offer + b"\r\n")
        assert everything(client).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize(
    "raw", [b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
)
def test_a_tunnel_or_http_2_at_once_is_refused(gateway, raw):
    with dial(gateway) as client:
        client.sendall(raw)
        assert refusal(everything(client))[0] == 400


def test_a_head_that_does_not_end_is_not_waited_for(scripted, serve, monkeypatch):
    monkeypatch.setattr(border, "HEAD_S", 0.1)
    with serve(scripted) as gateway:
        with dial(gateway) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nx: ")
            assert refusal(everything(client))[0] == 408
        with dial(gateway) as client:
            assert everything(client) == b"", "nothing was asked"
        # A connection that is kept for the next request has all the time of a kept connection.
        with dial(gateway) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            client.recv(1 << 16)
            with dial(gateway) as later:
                assert everything(later) == b"", "a head's time is over, even for who came later"
            client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")


def test_a_body_of_ten_megabytes_is_refused(gateway):
    body = b'{"model": "smollm2-135m", "prompt": "' + b"x" * (10 << 20) + b'"}'
    response = gateway.http.post("/v1/completions", content=body)
    assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")
    assert gateway.service.arrived == []


# ---------------------------------------------------------------- clients that read slowly


def small_window(gateway) -> socket.socket:
    """A client whose kernel keeps little for it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.settimeout(5)
    client.connect((gateway.http.base_url.host, gateway.http.base_url.port))
    return client


# Twenty alternatives for each token are more than a kilobyte of JSON.
MUCH = {"stream": True, "logprobs": 20, "max_tokens": 900}
WORDS = "word " * 900


def test_a_client_that_reads_a_byte_at_a_time_is_given_up_and_slows_nobody(scripted, serve):
    scripted.says(WORDS, hold_after=800)
    with serve(scripted, patience=Patience(write_s=0.3)) as gateway:
        with small_window(gateway) as slow:
            slow.sendall(request(**MUCH))
            assert scripted.wait_until(lambda: bool(scripted.open))
            scripted.says("Paris.")
            until = time.perf_counter() + 5
            while not scripted.cancelled and time.perf_counter() < until:
                slow.recv(1)
                assert gateway.complete().json()["choices"][0]["text"] == "Paris."
            assert scripted.cancelled == ["r0"]
        assert gateway.get("/health").status_code == 200


def test_what_waits_for_a_slow_client_is_bounded(scripted, serve, monkeypatch):
    monkeypatch.setattr(border, "BACKLOG_BYTES", 64 << 10)
    scripted.says(WORDS, hold_after=800)
    with serve(scripted, patience=Patience(write_s=60)) as gateway, small_window(gateway) as slow:
        slow.sendall(request(**MUCH))
        # Long before its patience ends it is given up: what it leaves is too much.
        assert scripted.wait_until(lambda: scripted.cancelled == ["r0"])


def test_a_client_that_pauses_and_reads_on_misses_nothing(scripted, serve, sse):
    scripted.says(WORDS)
    with serve(scripted, patience=Patience(write_s=30)) as gateway:
        whole = gateway.complete(logprobs=20, max_tokens=900).json()["choices"][0]["text"]
        with small_window(gateway) as slow:
            slow.sendall(request(**MUCH))
            assert scripted.wait_until(lambda: len(scripted.arrived) == 2 and not scripted.open)
            raw = b""
            while not raw.endswith(b"0\r\n\r\n"):
                raw += slow.recv(1 << 16)
    *data, done = sse(b"".join(chunks(raw)).decode())
    assert done == "[DONE]"
    assert "".join(json.loads(d)["choices"][0]["text"] for d in data) == whole


def chunks(raw: bytes) -> list[bytes]:
    """The parts of an answer as they were sent."""
    parts, rest = [], raw.partition(b"\r\n\r\n")[2]
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        parts.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    assert parts.pop() == b""
    return parts


@pytest.mark.parametrize("at_once", [1, 3])
def test_what_one_turn_brings_leaves_in_one_piece(scripted, serve, at_once):
    scripted.says("one two three four five six seven eight nine ten", at_once=at_once)
    with serve(scripted) as gateway, dial(gateway) as client:
        client.sendall(request(stream=True, max_tokens=8))  # and the end is the ninth
        raw = b""
        while not raw.endswith(b"0\r\n\r\n"):
            raw += client.recv(1 << 16)
    # What came before the headers were out leaves with the first; the last is `[DONE]`.
    frames = [chunk.count(b"data: ") for chunk in chunks(raw)[1:-1]]
    assert frames
    assert set(frames) == {at_once}


# ---------------------------------------------------------------- ids


def test_a_request_id_is_echoed_or_made(gateway):
    assert gateway.chat(headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    own = gateway.chat()
    assert own.headers["x-request-id"] == gateway.service.arrived[-1].request
    for path in ("/health", "/nowhere", "/v1/models"):
        assert gateway.get(path).headers["x-request-id"].startswith("req-")
    for bad in ("", "a b", "x" * 129, "é"):
        headers = {"x-request-id": bad.encode()}
        assert gateway.get("/health", headers=headers).headers["x-request-id"].startswith("req-")
    refused = gateway.chat(headers={"x-request-id": "mine-2"}, temperature=9)
    assert (refused.status_code, refused.headers["x-request-id"]) == (400, "mine-2")


def test_every_request_is_a_line_in_the_log(gateway, caplog):
    caplog.set_level(logging.INFO, "orchestrator.live.openai.border.visit")
    headers = {"traceparent": TRACE, "x-request-id": "mine"}
    gateway.chat(headers=headers, stream=True)
    gateway.get("/health", headers={"traceparent": "nonsense"})
    assert gateway.service.wait_until(lambda: len(caplog.records) == 2)
    told, probe = caplog.records
    assert (told.trace, told.request_id, told.status) == (TRACE, "mine", 200)
    assert (told.path, told.method) == ("/v1/chat/completions", "POST")
    assert told.request == gateway.service.arrived[-1].request
    assert (probe.trace, probe.request, probe.path) == (None, None, "/health")


# ---------------------------------------------------------------- rates and other origins


def test_probes_need_no_key_and_no_rate(scripted, serve):
    door = Door({"k": "default"}, {"default": Rates(requests_per_minute=1)})
    with serve(scripted, door=door) as gateway:
        for path in ("/health", "/ready", "/version"):
            assert [gateway.get(path).status_code for _ in range(3)] == [200] * 3
        assert gateway.get("/version").json()["version"]
        assert gateway.get("/metrics").status_code == 401


@pytest.mark.parametrize(
    ("rates", "of"),
    [(Rates(requests_per_minute=1), "requests"), (Rates(tokens_per_minute=2), "tokens")],
)
def test_beyond_a_rate_is_429_with_retry_after(scripted, serve, rates, of):
    scripted.says("Paris.")
    door = Door({"k": "acme", "other": "default"}, {"acme": rates})
    with serve(scripted, door=door) as gateway:
        key = {"authorization": "Bearer k"}
        assert gateway.chat(headers=key).status_code == 200
        refused = gateway.chat(headers=key)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        error = refused.json()["error"]
        assert (error["type"], error["code"], error["param"]) == (of, "rate_limit_exceeded", None)
        assert len(scripted.arrived) == 1
        assert gateway.get("/v1/models", headers=key).status_code == 200, "it makes no work"
        assert gateway.chat(headers={"authorization": "Bearer other"}).status_code == 200
        assert [arrived.tenant for arrived in scripted.arrived] == ["acme", "default"]


def test_what_is_left_of_the_rates_is_told(scripted, serve):
    scripted.says("Paris.")
    rates = {"acme": Rates(requests_per_minute=2, tokens_per_minute=600)}
    door = Door({"k": "acme", "other": "default"}, rates)
    with serve(scripted, door=door, cors=("*",)) as gateway:
        key = {"authorization": "Bearer k", "origin": "https://app.example"}
        told = gateway.chat(headers=key).headers
        assert told["x-ratelimit-limit-requests"] == "2"
        assert told["x-ratelimit-remaining-requests"] == "1"
        assert told["x-ratelimit-reset-requests"] == "30s"
        assert told["x-ratelimit-limit-tokens"] == told["x-ratelimit-remaining-tokens"] == "600"
        assert told["x-ratelimit-reset-tokens"] == "0ms"
        assert "x-ratelimit-reset-tokens" in told["access-control-expose-headers"]
        used = len(scripted.arrived[0].prompt_ids) + len(scripted.script.ids)
        streamed = gateway.chat(headers=key, stream=True).headers
        assert 0 <= int(streamed["x-ratelimit-remaining-tokens"]) - (600 - used) <= 10
        refused = gateway.chat(headers=key)
        assert refused.status_code == 429
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        for others in (
            gateway.get("/v1/models", headers=key),
            gateway.chat(headers={"authorization": "Bearer other"}),
            gateway.chat(headers={"authorization": "Bearer wrong"}),
        ):
            assert not [name for name in others.headers if name.startswith("x-ratelimit")]


def test_pages_of_named_origins_may_ask(scripted, serve):
    scripted.says("ok")
    door = Door({"k": "default"})
    with serve(scripted, door=door, cors=("https://app.example",)) as gateway:
        asked = {
            "origin": "https://app.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        }
        may = gateway.http.options("/v1/chat/completions", headers=asked)
        assert may.status_code == 200
        assert may.headers["access-control-allow-origin"] == "https://app.example"
        assert "authorization" in may.headers["access-control-allow-headers"]
        headers = {"origin": "https://app.example", "authorization": "Bearer k"}
        told = gateway.chat(headers=headers, stream=True)
        assert told.headers["access-control-allow-origin"] == "https://app.example"
        assert "x-request-id" in told.headers["access-control-expose-headers"].lower()
        refused = gateway.chat(headers={"origin": "https://app.example"})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://app.example"
        asked["origin"] = "https://evil.example"
        assert gateway.http.options("/v1/chat/completions", headers=asked).status_code == 400


def test_no_page_may_ask_unless_it_is_named(gateway):
    told = gateway.chat(headers={"origin": "https://app.example"})
    assert "access-control-allow-origin" not in told.headers
