"""Rules of the stream, of failures on the way and of clients that leave."""

import asyncio
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import openai
import pytest

from orchestrator.live.openai.answer.answer import Patience
from orchestrator.state.actions import Emit, Fail, Failure
from orchestrator.state.events import Arrived


def broken(request: str) -> Fail:
    return Fail(request=request, failure=Failure.UNAVAILABLE, message="all at 10.0.0.1:1 are lost")


@contextmanager
def opened(gateway, **fields) -> Iterator[Iterator[str]]:
    """An open stream's events as they come, comments included."""
    body = {
        "model": "smollm2-135m",
        "messages": [{"role": "user", "content": "x"}],
        "stream": True,
        **fields,
    }
    with gateway.http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        yield (line for line in response.iter_lines() if line)


# ---------------------------------------------------------------- the order of frames


def test_the_order_of_chat_frames(gateway, sse):
    gateway.service.says("Paris.")
    response = gateway.chat(stream=True, stream_options={"include_usage": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-request-id"] == gateway.service.arrived[0].request
    *data, done = sse(response.text)
    assert done == "[DONE]"
    role, *deltas, final, usage = map(json.loads, data)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(d["choices"][0]["delta"].keys() == {"content"} for d in deltas)
    assert all(d["choices"][0]["finish_reason"] is None for d in deltas)
    assert "".join(d["choices"][0]["delta"]["content"] for d in deltas) == "Paris."
    assert final["choices"] == [
        {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    ]
    prompt, completion = len(gateway.service.arrived[0].prompt_ids), 3
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": prompt // 2},
    }
    assert "pdd" not in usage
    assert all(chunk["usage"] is None for chunk in (role, *deltas, final))
    for chunk in map(json.loads, data):
        assert chunk["object"] == "chat.completion.chunk"
        assert chunk["model"] == "smollm2-135m"
        assert chunk["id"] == f"chatcmpl-{gateway.service.arrived[0].request}"


def test_the_order_of_completion_frames(gateway, sse):
    gateway.service.says(" Paris.")
    *data, done = sse(gateway.complete(stream=True).text)
    assert done == "[DONE]"
    *deltas, final = (json.loads(d)["choices"][0] for d in data)
    assert "".join(d["text"] for d in deltas) == " Paris."
    assert final == {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}
    assert not any("usage" in json.loads(d) for d in data)


@pytest.mark.parametrize("fields", [{}, {"stream_options": {"include_usage": False}}])
def test_no_usage_unless_asked(gateway, sse, fields):
    *data, _ = sse(gateway.chat(stream=True, **fields).text)
    assert all("usage" not in json.loads(d) for d in data)


def test_text_comes_as_its_tokens_come(gateway):
    gateway.service.says("one two three", hold_after=2)
    with opened(gateway) as lines:
        assert '"content":""' in next(lines)
        assert '"content":"one"' in next(lines)
        assert '"content":" two"' in next(lines)
        gateway.service.script.release.open()
        assert '"content":" three"' in next(lines)


def test_a_partial_stop_string_is_held_back(gateway):
    gateway.service.says("one two three four", hold_after=2)
    with opened(gateway, stop=[" two three"]) as lines:
        next(lines)
        assert '"content":"one"' in next(lines)
        gateway.service.script.release.open()
        assert '"finish_reason":"stop"' in next(lines)


@pytest.mark.parametrize(
    ("stop", "told"),
    [
        ([" two three four"], "one"),  # over three chunks
        ([" two three five"], "one two three four"),  # held back to the last, and told
        ([" two three four", " two three"], "one"),  # one is the other's prefix
        ([" three four", " two three four five"], "one two"),  # the first that is complete
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_may_come_in_any_number_of_chunks(gateway, sse, stop, told, stream):
    gateway.service.says("one two three four")
    answer = gateway.complete(stop=stop, stream=stream)
    if stream:
        chunks = [json.loads(data)["choices"][0] for data in sse(answer.text)[:-1]]
        assert "".join(chunk["text"] for chunk in chunks) == told
    else:
        chunks = answer.json()["choices"]
        assert chunks[0]["text"] == told
    assert chunks[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize("text", ["巴黎是法国的首都", "👩‍🚀👍🏽🏳️‍🌈", "x́ ﷽ नमस्ते"])
def test_every_chunk_is_whole_characters(gateway, sse, text):
    """However many tokens one of them takes; what a client puts together is the text."""
    gateway.service.says(text)
    assert len(gateway.service.script.ids) > len(text) / 2
    with gateway.http.stream(
        "POST", "/v1/completions", json={"model": "smollm2-135m", "prompt": "x", "stream": True}
    ) as response:
        raw = b"".join(response.iter_raw())
    chunks = [json.loads(data)["choices"][0]["text"] for data in sse(raw.decode())[:-1]]
    assert "".join(chunks) == text
    assert "\ufffd" not in raw.decode()


@pytest.mark.parametrize("n", [1, 2])
def test_usage_counts_the_prompt_once_and_every_choice(gateway, sse, n):
    gateway.service.says("one two three")
    options = {"include_usage": True}
    *data, done = sse(gateway.chat(stream=True, n=n, stream_options=options).text)
    chunks = [json.loads(d) for d in data]
    prompt, completion = len(gateway.service.arrived[0].prompt_ids), n * 4
    assert [chunk["choices"] for chunk in chunks].count([]) == 1, "one usage, after all choices"
    usage = chunks[-1]["usage"]
    assert chunks[-1]["choices"] == []
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (prompt, completion)
    assert usage == gateway.chat(n=n).json()["usage"]
    assert done == "[DONE]"


def test_the_headers_wait_for_the_first_token(gateway):
    gateway.service.says("Paris.", hold_after=0)
    body = {"model": "smollm2-135m", "prompt": "x", "stream": True}
    with ThreadPoolExecutor(1) as pool:
        with gateway.http.stream("GET", "/health"):
            pass
        answer = pool.submit(gateway.http.post, "/v1/completions", json=body)
        assert gateway.service.wait_until(lambda: bool(gateway.service.arrived))
        assert not answer.done()
        gateway.service.script.release.open()
        assert answer.result(5).status_code == 200


def test_an_idle_stream_is_kept_alive(scripted, serve):
    scripted.says("one two", hold_after=1)
    with (
        serve(scripted, patience=Patience(keep_alive_s=0.05)) as gateway,
        opened(gateway) as lines,
    ):
        seen = [next(lines) for _ in range(5)]
        assert seen[2:] == [": keep-alive"] * 3
        scripted.script.release.open()
        rest = [line for line in lines if line != ": keep-alive"]
        assert '"content":" two"' in rest[0]
        assert rest[-1] == "data: [DONE]"


# ---------------------------------------------------------------- failures on the way


def test_a_failure_after_the_first_byte_is_an_error_frame(gateway, sse, script):
    gateway.service.script = script(ids=(5, 6, 7), fail=broken, fail_after=2)
    response = gateway.chat(stream=True, stream_options={"include_usage": True})
    assert response.status_code == 200
    *data, error, done = sse(response.text)
    assert done == "[DONE]"
    assert json.loads(error) == {
        "error": {
            "message": "all at <address> are lost",
            "type": "server_error",
            "param": None,
            "code": "unavailable",
        }
    }
    assert not any(c["finish_reason"] for d in data for c in json.loads(d)["choices"])
    with openai.OpenAI(base_url=gateway.url + "/v1", api_key="x", max_retries=0) as client:
        stream = client.completions.create(model="smollm2-135m", prompt="x", stream=True)
        with pytest.raises(openai.APIError, match="are lost"):
            list(stream)


def test_a_failure_on_the_way_of_a_whole_answer_has_its_status(gateway, script):
    gateway.service.script = script(ids=(5, 6, 7), fail=broken, fail_after=2)
    assert gateway.chat().status_code == 503


@pytest.mark.parametrize("start", [0, 2])
def test_a_repeated_or_missing_token_is_never_told(scripted, serve, sse, start):
    class Wrong(type(scripted)):
        async def actions(self, arrived: Arrived):
            yield Emit(request=arrived.request, start=0, ids=(5,))
            await asyncio.sleep(0.02)
            yield Emit(request=arrived.request, start=start, ids=(6,))

    service = Wrong(scripted.tokenizer)
    with serve(service) as gateway:
        *_, error, done = sse(gateway.chat(stream=True).text)
        assert json.loads(error)["error"]["code"] == "internal_error"
        assert done == "[DONE]"
        assert gateway.chat().status_code == 500


# ---------------------------------------------------------------- clients that leave


@pytest.mark.parametrize("hold_after", [0, 2])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_cancels(gateway, hold_after, stream):
    gateway.service.says("one two three", hold_after=hold_after)
    running = 2 if hold_after else 1  # the second choice waits for a token of the first
    body = {"model": "smollm2-135m", "prompt": "x", "stream": stream, "n": 2}
    raw = json.dumps(body).encode()
    address = (gateway.http.base_url.host, gateway.http.base_url.port)
    with socket.create_connection(address, timeout=5) as client:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
        client.sendall(head.encode() + raw)
        if stream and hold_after:
            assert client.recv(4096).startswith(b"HTTP/1.1 200 OK")
        assert gateway.service.wait_until(lambda: len(gateway.service.open) == running)
    assert gateway.service.wait_until(lambda: not gateway.service.open, timeout_s=3.0)
    assert len(gateway.service.cancelled) == running
    scraped = gateway.get("/metrics").text
    assert 'pdd_requests_total{model="smollm2-135m",outcome="cancelled",route="relay"}' in scraped


def test_closing_the_openai_client_cancels(gateway):
    gateway.service.says("one two three", hold_after=2)
    with openai.OpenAI(base_url=gateway.url + "/v1", api_key="x") as client:
        stream = client.completions.create(model="smollm2-135m", prompt="x", stream=True)
        assert next(iter(stream)).choices[0].text == "one"
        stream.close()
    assert gateway.service.wait_until(lambda: bool(gateway.service.cancelled), timeout_s=3.0)
