"""Every refusal is OpenAI's error object with the right status, and tells no secrets."""

import json
import socket

import httpx
import openai
import pytest

from orchestrator.live.openai.app import parse_body
from orchestrator.live.openai.errors import FAILURES, ApiError, from_fail, scrub
from orchestrator.state.actions import Fail, Failure

TOOL = {"type": "function", "function": {"name": "f"}}
CALLED = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SCHEMA = "response_format.json_schema.schema"


def named(name: str) -> dict:
    return {"type": "function", "function": {"name": name}}


def schema(schema: dict, **more: bool) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": schema, **more}}


def error_of(response: httpx.Response, status: int) -> dict:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    return body["error"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [TOOL] * 129}, "tools"),
        ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": named("g")}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": named("f")}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_object"}, "min_tokens": 3}, "min_tokens"),
        ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"),
        ({"response_format": schema({"not": {}}, strict=True)}, SCHEMA),
        ({"response_format": schema({"$ref": "http://far/away"})}, SCHEMA),
        ({"response_format": schema({"type": "objekt"})}, SCHEMA),
        ({"response_format": schema({"enum": ["x" * 300_000]})}, SCHEMA),
        ({"logit_bias": {"word": 1}}, "logit_bias"),
        ({"logit_bias": {"50": 101}}, "logit_bias"),
        ({"logit_bias": {"50": True}}, "logit_bias"),
        ({"logit_bias": {"49152": 1}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"echo": True}, "echo"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"store": True}, "store"),
        ({"priority": 1.5}, "priority"),
        ({"priority": 2**63}, "priority"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "12"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"seed": 2**63}, "seed"),
        ({"seed": "a"}, "seed"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"cache_salt": "s" * 257}, "cache_salt"),
        ({"pdd_route": "scenic"}, "pdd_route"),
        ({"pdd_weight": 0}, "pdd_weight"),
        ({"pdd_weight": -1}, "pdd_weight"),
        ({"pdd_weight": 100.5}, "pdd_weight"),
        ({"pdd_weight": "2"}, "pdd_weight"),
        ({"pdd_weight": True}, "pdd_weight"),
        ({"pdd_handoff": "never"}, "pdd_handoff"),
        ({"pdd_timings": True, "n": 2}, "pdd_timings"),
        ({"temprature": 1}, "temprature"),
        ({"prompt": "x"}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [5]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": "x", "tool_calls": [CALLED]}]},
            "messages[0].tool_calls",
        ),
        ({"messages": [{"role": "user", "content": "x", "mood": "y"}]}, "messages[0].mood"),
        (
            {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]},
            "messages[0].tool_calls[0].id",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content",
        ),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content"),
        ({"model": None}, "model"),
        ({"model": 5}, "model"),
    ],
)
def test_chat_fields_are_refused_by_name(gateway, fields, param):
    error = error_of(gateway.chat(**fields), 400)
    assert error["param"] == param
    assert error["message"].startswith(param)
    assert error["type"] == "invalid_request_error"
    assert gateway.service.arrived == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"echo": True, "logprobs": 1}, "logprobs"),
        ({"echo": 1}, "echo"),
        ({"tools": [TOOL]}, "tools"),
        ({"response_format": schema({"not": {}}, strict=True)}, SCHEMA),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [49152]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["a"] * 17}, "prompt"),
        ({"prompt": ["a"] * 9, "n": 2}, "n"),
        ({"prompt": {"text": "a"}}, "prompt"),
        ({"messages": []}, "messages"),
        ({"max_completion_tokens": 5}, "max_completion_tokens"),
    ],
)
def test_completion_fields_are_refused_by_name(gateway, fields, param):
    assert error_of(gateway.complete(**fields), 400)["param"] == param
    assert gateway.service.arrived == []


def test_fields_that_ask_for_nothing_pass(gateway):
    response = gateway.chat(
        tools=[],
        tool_choice="auto",
        response_format={"type": "text"},
        logit_bias={},
        modalities=["text"],
        audio=None,
        service_tier="auto",
        store=False,
        prompt_logprobs=None,
        user="u",
        metadata={"a": "b"},
        parallel_tool_calls=True,
        temperature=None,
        stop=None,
        n=1,
    )
    assert response.status_code == 200


def test_an_unknown_field_names_the_nearest(gateway):
    error = error_of(gateway.chat(temprature=1), 400)
    assert error["message"] == "temprature: unknown field; did you mean temperature?"
    assert error["code"] == "unknown_parameter"


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b'"x"', b"\xff", b'{"model": "\\ud800"}'])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_bodies_that_are_no_json_objects(gateway, path, raw):
    error_of(gateway.http.post(path, content=raw), 400)


def test_unknown_model(gateway):
    error = error_of(gateway.chat(model="gpt-4"), 404)
    assert error == {
        "message": "the model 'gpt-4' does not exist",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }
    error_of(gateway.complete(model="gpt-4"), 404)
    error_of(gateway.get("/v1/models/org/other"), 404)


def test_unknown_path_and_method(gateway):
    assert error_of(gateway.get("/v1/embeddings"), 404)["code"] == "not_found"
    response = gateway.get("/v1/chat/completions")
    assert error_of(response, 405)["code"] == "method_not_allowed"
    assert response.headers["allow"] == "POST"


def test_too_large_a_body(gateway):
    limit = (1 << 20) + 32 * gateway.service.model.max_context
    head = b'{"model": "smollm2-135m", "prompt": "'
    error = error_of(gateway.http.post("/v1/completions", content=head + b"x" * limit), 413)
    assert error["code"] == "request_too_large"

    def parts():
        yield head
        for _ in range(limit // 65536 + 1):
            yield b"x" * 65536

    error_of(gateway.http.post("/v1/completions", content=parts()), 413)
    assert gateway.chat().status_code == 200


def test_a_body_that_says_it_is_too_large_is_not_waited_for(gateway):
    address = (gateway.http.base_url.host, gateway.http.base_url.port)
    with socket.create_connection(address, timeout=5) as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99000000\r\n\r\n"
        )
        assert client.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_a_prompt_longer_than_the_context(gateway):
    error = error_of(gateway.complete(prompt=[5] * 1024), 400)
    assert error["code"] == "context_length_exceeded"
    assert "1024 tokens. However, your prompt has 1024" in error["message"]
    error = error_of(gateway.complete(prompt=[5] * 1000, max_tokens=25), 400)
    assert error["code"] == "context_length_exceeded"
    assert "1024" in error["message"]
    assert "1025 tokens (1000 in the prompt, 25 in max_tokens)" in error["message"]
    error = error_of(gateway.chat(max_completion_tokens=1024), 400)
    assert error["param"] == "max_completion_tokens"
    assert gateway.service.arrived == []


FAILS = [
    (Failure.OVERLOADED, 503, openai.InternalServerError),
    (Failure.UNAVAILABLE, 503, openai.InternalServerError),
    (Failure.TOO_LONG, 400, openai.BadRequestError),
    (Failure.TIMED_OUT, 504, openai.InternalServerError),
    (Failure.INTERNAL, 500, openai.InternalServerError),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("failure", "status", "kind"), FAILS)
def test_an_early_failure_has_its_real_status(gateway, script, failure, status, kind, stream):
    def fail(request: str) -> Fail:
        return Fail(request=request, failure=failure, message="no luck", retry_after_s=2.5)

    gateway.service.script = script(fail=fail)
    response = gateway.chat(stream=stream)
    assert error_of(response, status)["message"] == "no luck"
    assert response.headers["retry-after"] == "3"
    with openai.OpenAI(base_url=gateway.url + "/v1", api_key="x", max_retries=0) as client:
        with pytest.raises(kind) as caught:
            client.chat.completions.create(
                model="smollm2-135m", messages=[{"role": "user", "content": "x"}], stream=stream
            )
        assert caught.value.status_code == status
        assert caught.value.code == FAILURES[failure].code


@pytest.mark.parametrize("after", [0, 2])
def test_a_grammar_that_no_engine_keeps_to_is_told_by_its_field(gateway, script, sse, after):
    """Before the first byte as a status, after it as an error frame: never as an end."""

    def fail(request: str) -> Fail:
        return Fail(request=request, failure=Failure.GRAMMAR, message="too many states")

    ids = gateway.service.text('{"a": 1')
    gateway.service.script = script(ids=ids, fail=fail, fail_after=after)
    response = gateway.chat(stream=True, response_format={"type": "json_object"})
    if after == 0:
        error = error_of(response, 400)
    else:
        *chunks, last, done = sse(response.text)
        assert done == "[DONE]"
        assert all(c["choices"][0]["finish_reason"] is None for c in map(json.loads, chunks))
        error = json.loads(last)["error"]
    assert error["param"] == "response_format"
    assert error["message"] == "response_format: too many states"
    assert error["code"] == "grammar_refused"


def test_every_failure_has_a_status_and_503_says_when_to_come_again():
    for failure in Failure:
        error = from_fail(Fail(request="r", failure=failure, message="m"))
        assert ("retry-after" in error.headers()) == (error.status == 503)


@pytest.mark.parametrize("stream", [False, True])
def test_a_service_that_breaks_is_an_internal_error(scripted, serve, stream):
    class Broken(type(scripted)):
        def submit(self, arrived, told, trace=None):
            raise ConnectionError("worker at 10.1.2.3:4567 is lost")

        def leave(self, request):
            self.cancelled.append(request)

    service = Broken(scripted.tokenizer)
    with serve(service) as gateway:
        error = error_of(gateway.chat(stream=stream), 500)
        assert error["message"] == "internal error"
        assert service.cancelled == ["r0"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("worker m0 at http://10.0.0.3:4711/x is lost", "worker m0 at <address> is lost"),
        ("connect to 127.0.0.1:80 failed", "connect to <address> failed"),
        ("[::1]:9000 and localhost:9", "<address> and <address>"),
        ("no file /srv/models/a.gguf", "no file <path>"),
        ("reading ~/.cache/pdd/x.bin: gone", "reading <path>: gone"),
        ("20 tokens/s, prefill/relay, 1/2", "20 tokens/s, prefill/relay, 1/2"),
        ("use /v1/completions", "use <path>"),
    ],
)
def test_what_the_inside_says_loses_paths_and_addresses(text, told):
    assert scrub(text) == told


DEEP = '{"a":' * 900 + "1" + "}" * 900


@pytest.mark.parametrize(
    "field",
    [
        '"response_format": {"type": "json_schema", "json_schema": '
        f'{{"name": "s", "schema": {DEEP}}}}}',
        f'"tools": [{{"type": "function", "function": {{"name": "f", "parameters": {DEEP}}}}}]',
        f'"tools": {DEEP}',
        f'"stop": {"[" * 900 + "]" * 900}',
    ],
)
def test_what_nests_deeper_than_printers_bear_is_a_400(field: str) -> None:
    """A schema's printer gave up at a depth that its parser had taken, and the answer was 500."""
    with pytest.raises(ApiError, match="nested deeper than 200") as refused:
        parse_body(f'{{"model": "m", "messages": [], {field}}}'.encode())
    assert (refused.value.status, refused.value.code) == (400, "invalid_json")


def test_many_brackets_are_not_deep() -> None:
    value = {"tools": [{"a": [{}]}] * 1000, "deep": json.loads("[" * 199 + "]" * 199)}
    assert parse_body(json.dumps(value).encode()) == value
