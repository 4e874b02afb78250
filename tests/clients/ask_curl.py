"""curl: what is on the wire, byte by byte, and HTTP's own rules."""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from checks import BEGUN_S, LONG, MESSAGES, TOOL, WEATHER, Service, is_weather, run, until

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def curl(service: Service, path: str, *options: str, key: str | None = None) -> Answer:
    """One request; `key` None: the service's own, "": none at all."""
    key = service.key if key is None else key
    with tempfile.TemporaryDirectory() as folder:
        head, body = Path(folder, "head"), Path(folder, "body")
        command = [
            *("curl", "--silent", "--show-error", "--no-buffer", "--max-time", "60"),
            *("--dump-header", str(head), "--output", str(body)),
            *(("-H", f"Authorization: Bearer {key}") if key else ()),
            *options,
            service.url.removesuffix("/v1") + path,
        ]
        subprocess.run(command, check=True, timeout=90)
        # The last head: before it there may be a "100 Continue".
        lines = head.read_text().strip().split("\r\n\r\n")[-1].splitlines()
        if not lines:
            lines = head.read_text().splitlines()
        fields = dict(line.lower().split(": ", 1) for line in lines[1:])
        return Answer(int(lines[0].split()[1]), fields, body.read_bytes() if body.exists() else b"")


def post(service: Service, path: str, *options: str, key: str | None = None, **fields) -> Answer:
    body = json.dumps({"model": service.model, **fields})
    return curl(service, path, "--json", body, *options, key=key)


def chat(service: Service, *options: str, key: str | None = None, **fields) -> Answer:
    fields = {"messages": MESSAGES, "max_tokens": 24, "temperature": 0} | fields
    return post(service, "/v1/chat/completions", *options, key=key, **fields)


def frames(raw: bytes) -> list[str]:
    """The stream's data; every event is `data:` or a comment, and is ended by an empty line."""
    *events, rest = raw.decode().split("\n\n")
    assert rest == "", "the stream ends inside an event"
    assert all(event.startswith(("data: ", ":")) for event in events), events
    return [event.removeprefix("data: ") for event in events if event.startswith("data: ")]


def probes_need_no_key(service: Service) -> str:
    for path, told in (("/health", "ok"), ("/ready", "ready")):
        answer = curl(service, path, key="")
        assert (answer.status, answer.json) == (200, {"status": told})
    version = curl(service, "/version", key="").json["version"]
    for path in ("/v1/models", "/metrics", "/status", "/openapi.json"):
        assert curl(service, path, key="").status == 401, path
        assert curl(service, path).status == 200, path
    return f"version {version}"


def models(service: Service) -> str:
    data = curl(service, "/v1/models").json["data"]
    assert [model["id"] for model in data] == [service.model]
    assert curl(service, f"/v1/models/{service.model}").json == data[0]
    assert curl(service, "/v1/models/gpt-4").status == 404
    return f"{data[0]['id']}, {data[0]['max_model_len']} tokens of context"


def chat_at_once(service: Service) -> str:
    answer = chat(service)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert answer.json["usage"]["completion_tokens"] == 24
    return f"{len(answer.body)} bytes"


def chat_streamed(service: Service) -> str:
    answer = chat(service, stream=True, stream_options={"include_usage": True})
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "content-length" not in answer.headers
    *data, done = frames(answer.body)
    assert done == "[done]".upper()
    role, *_, final, usage = map(json.loads, data)
    assert role["choices"][0]["delta"]["role"] == "assistant"
    assert final["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 24
    text = "".join(json.loads(d)["choices"][0]["delta"].get("content", "") for d in data[:-1])
    assert text == chat(service).json["choices"][0]["message"]["content"]
    return f"{len(data)} frames and [DONE]"


def tokens(service: Service) -> str:
    text = "东风夜放花千树 👩‍🚀 quelle belle journée"
    told = post(service, "/tokenize", prompt=text).json
    assert told["count"] == len(told["tokens"])
    assert post(service, "/detokenize", tokens=told["tokens"]).json == {"prompt": text}
    answer = post(service, "/v1/completions", prompt=told["tokens"], max_tokens=1, echo=True).json
    assert answer["choices"][0]["text"].startswith(text)
    assert answer["usage"]["prompt_tokens"] == told["count"]
    return f"{told['count']} tokens and back"


def tools_and_formats(service: Service) -> str:
    called = chat(service, tools=[TOOL], tool_choice="required", max_tokens=200).json
    (choice,) = called["choices"]
    assert choice["finish_reason"] == "tool_calls", choice
    is_weather(choice["message"]["tool_calls"][0]["function"]["arguments"])
    form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER}}
    held = chat(service, response_format=form, max_tokens=200).json
    return str(is_weather(held["choices"][0]["message"]["content"]))


def logprobs(service: Service) -> str:
    (choice,) = chat(service, logprobs=True, top_logprobs=2).json["choices"]
    entries = choice["logprobs"]["content"]
    assert len(entries) == 24
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    return f"{len(entries)} tokens"


def errors(service: Service) -> str:
    wanted = [
        (chat(service, key=""), 401, "invalid_api_key", None),
        (chat(service, key="wrong"), 401, "invalid_api_key", None),
        (chat(service, model="gpt-4"), 404, "model_not_found", "model"),
        (chat(service, temperature=9), 400, None, "temperature"),
        (chat(service, stop=["a"] * 5, stream=True), 400, None, "stop"),
        (chat(service, messages="hello"), 400, None, "messages"),
        (curl(service, "/v1/completions", "--json", "{"), 400, "invalid_json", None),
        (curl(service, "/v1/nowhere"), 404, "not_found", None),
        (curl(service, "/v1/completions"), 405, "method_not_allowed", None),
    ]
    for answer, status, code, param in wanted:
        assert answer.status == status, (answer, status)
        error = answer.json["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert (error["code"], error["param"]) == (code, param), error
        assert answer.headers["x-request-id"]
    return f"{len(wanted)} refusals: " + ", ".join(sorted({str(w[1]) for w in wanted}))


def a_body_of_ten_megabytes(service: Service) -> str:
    with tempfile.NamedTemporaryFile() as file:
        file.write(b'{"model": "x", "prompt": "' + b"x" * (10 << 20) + b'"}')
        file.flush()
        # curl asks first whether it may ("Expect: 100-continue") and is refused at once.
        answer = curl(service, "/v1/completions", "--json", f"@{file.name}")
        assert (answer.status, answer.json["error"]["code"]) == (413, "request_too_large")
        forced = curl(service, "/v1/completions", "-H", "Expect:", "--json", f"@{file.name}")
        assert forced.status == 413
    return "413, also where it is sent without asking"


def http_in_other_ways(service: Service) -> str:
    answer = chat(service, "-H", "Transfer-Encoding: chunked", "--http1.1")
    assert answer.status == 200, "a chunked body"
    assert chat(service, "--http2").status == 200, "an offer of HTTP/2 that is declined"
    assert chat(service, "--http1.0").status == 200
    streamed = chat(service, "--http1.0", stream=True)
    assert frames(streamed.body)[-1] == "[DONE]"
    assert curl(service, "/health", "--head").status in (200, 405)
    return "chunked, offered HTTP/2, HTTP/1.0, HEAD"


def ids(service: Service) -> str:
    answer = chat(service, "-H", "X-Request-Id: mine-1", "-H", f"traceparent: {TRACE}")
    assert answer.headers["x-request-id"] == "mine-1"
    own = chat(service).headers["x-request-id"]
    assert own != chat(service).headers["x-request-id"]
    return own


def leaving(service: Service) -> str:
    body = {"model": service.model, "messages": MESSAGES, "max_tokens": LONG, "ignore_eos": True}
    for stream in (True, False):
        command = [
            *("curl", "--silent", "--no-buffer", "--output", "/dev/null"),
            *("-H", f"Authorization: Bearer {service.key}"),
            *("--json", json.dumps(body | {"stream": stream})),
            f"{service.url}/chat/completions",
        ]
        running = subprocess.Popen(command)
        until(lambda: service.open_requests() == 1, "it is under way", BEGUN_S)
        running.terminate()
        running.wait()
        left = service.left()
    return left


if __name__ == "__main__":
    run(
        subprocess.run(["curl", "--version"], capture_output=True, text=True, check=True)
        .stdout.splitlines()[0]
        .split()[1],
        [
            probes_need_no_key,
            models,
            chat_at_once,
            chat_streamed,
            tokens,
            tools_and_formats,
            logprobs,
            errors,
            a_body_of_ten_megabytes,
            http_in_other_ways,
            ids,
            leaving,
        ],
    )
