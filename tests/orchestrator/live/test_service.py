"""The real service: a real model, three worker processes, two sites, an emulated 4000 km line."""

import socket

import httpx
import openai
import pytest

from benchmarks.equality import Verdict, compare
from benchmarks.service import Served
from tests.orchestrator.live.live_service import (
    all_free,
    all_up,
    body_of,
    kill,
    prompts,
    several,
    stream,
    until,
)

pytestmark = pytest.mark.timeout(300)

COMPUTE, RELAY, MAIN = "hami/compute/0", "hami/relay/0", "shenzhen/memory/0"


def chat_client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=served.url, api_key="none", max_retries=0, timeout=90.0)


def test_openai_client_streaming(served: Served) -> None:
    chunks = chat_client(served).chat.completions.create(
        model=served.model,
        messages=[{"role": "user", "content": "Name three colours."}],
        max_tokens=24,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    received = list(chunks)
    text = "".join(c.choices[0].delta.content or "" for c in received if c.choices)
    assert text.strip()
    assert received[-1].usage is not None
    assert 0 < received[-1].usage.completion_tokens <= 24


def test_openai_client_at_once_says_the_same(served: Served) -> None:
    def ask(stream: bool) -> openai.types.chat.ChatCompletion:
        return chat_client(served).chat.completions.create(
            model=served.model,
            messages=[{"role": "user", "content": "Write one sentence about the sea."}],
            max_tokens=24,
            temperature=0,
            stream=stream,
        )

    at_once = ask(False)
    assert at_once.choices[0].finish_reason in ("stop", "length")
    streamed = "".join(c.choices[0].delta.content or "" for c in ask(True) if c.choices)
    assert streamed == at_once.choices[0].message.content


def test_every_route_gives_the_same_tokens(served: Served) -> None:
    prompt = next(prompts(1, 200))
    local = stream(served, prompt, pdd_route="local", cache_salt="local", max_tokens=96)
    assert local.told["route"] == "local"
    for handoff in ("auto", "one-shot", "catch-up"):
        relay = stream(
            served,
            prompt,
            pdd_route="relay",
            pdd_handoff=handoff,
            cache_salt=handoff,
            max_tokens=96,
        )
        assert relay.told["route"] == "relay"
        assert relay.told["relay_tokens"] > 0
        assert relay.told["handoff_index"] is not None, "main never took over"
        assert compare(relay.ids, local.ids, local.told["margins"]) is not Verdict.DIFFERENT


def test_seeded_sampling_crosses_the_handoff(served: Served) -> None:
    prompt = next(prompts(1, 200))
    sampling = {"temperature": 0.8, "seed": 7, "max_tokens": 96}
    local = stream(served, prompt, pdd_route="local", cache_salt="local seeded", **sampling)
    relay = stream(served, prompt, pdd_route="relay", cache_salt="relay seeded", **sampling)
    assert relay.told["handoff_index"] is not None
    assert compare(relay.ids, local.ids, local.told["margins"]) is not Verdict.DIFFERENT


def test_sixteen_streams_at_once(served: Served) -> None:
    jobs = [
        lambda prompt=prompt: stream(served, prompt, max_tokens=16) for prompt in prompts(16, 40)
    ]
    results = several(jobs)
    assert [r.error for r in results] == [None] * 16
    assert all(r.done and r.finish_reason == "length" for r in results)
    assert all(len(r.ids) == 16 for r in results)
    until(lambda: all_free(served), "all KV free after sixteen streams", 2.0)


@pytest.mark.parametrize("after", [1, 3])
def test_a_client_that_leaves_frees_all_kv_within_a_second(served: Served, after: int) -> None:
    prompt = next(prompts(1, 300))
    body = body_of(served, prompt, max_tokens=200, cache_salt=f"leaves {after}")
    with httpx.stream("POST", f"{served.url}/completions", json=body, timeout=90.0) as answer:
        # Not a for loop: leaving one would close the connection already.
        lines, chunks = answer.iter_lines(), 0
        while chunks < after:
            chunks += next(lines).startswith("data: {")
        assert not all_free(served), "nothing was held: the test tests nothing"
    assert until(lambda: all_free(served), "all KV free after the client left", 5.0) < 1.0


def test_a_client_that_leaves_during_prefill(served: Served) -> None:
    body = body_of(served, next(prompts(1, 1500)), cache_salt="leaves early")
    host, port = served.base.removeprefix("http://").split(":")
    request = httpx.Request("POST", f"{served.url}/completions", json=body)
    head = "".join(f"{k}: {v}\r\n" for k, v in request.headers.items())
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(f"POST /v1/completions HTTP/1.1\r\n{head}\r\n".encode() + request.read())
        until(lambda: not all_free(served), "the prefill has begun", 10.0)
    assert until(lambda: all_free(served), "all KV free after the client left", 5.0) < 1.0


def test_a_prompt_longer_than_the_context_is_refused(served: Served) -> None:
    refused = stream(served, next(prompts(1, 9000)))
    assert refused.status == 400
    assert refused.error is not None
    assert refused.error["code"] == "context_length_exceeded"
    assert "8192" in refused.error["message"]


@pytest.mark.parametrize(
    ("victim", "chunk"),
    [(RELAY, 5), (MAIN, 3), (MAIN, 60), (COMPUTE, 4), (COMPUTE, 0)],
    ids=["relay", "main before the handoff", "main after it", "prefill while sending", "prefill"],
)
def test_a_killed_worker_costs_no_token(served: Served, victim: str, chunk: int) -> None:
    until(lambda: all_up(served), "all workers are up")
    length = 300 if chunk < 60 else 100
    prompt = [i + 1 + chunk for i in next(prompts(1, length))]
    tokens = 80 if chunk < 60 else 200  # on a busy machine the kill comes some tokens late
    reference = stream(
        served, prompt, pdd_route="local", max_tokens=tokens, cache_salt=f"ref {victim} {chunk}"
    )

    def strike(count: int) -> None:
        if count == chunk:
            kill(served, victim)

    def struck() -> None:
        until(lambda: served.status()["requests"]["open"] == 1, "the request is there", 10.0)
        until(lambda: not all_free(served), "the prefill has begun", 10.0)
        kill(served, victim)

    salt = f"{victim} {chunk}"
    if chunk:
        result = stream(
            served, prompt, on_token=strike, pdd_route="relay", max_tokens=tokens, cache_salt=salt
        )
    else:
        result, _ = several(
            [
                lambda: stream(
                    served, prompt, pdd_route="relay", max_tokens=tokens, cache_salt=salt
                ),
                lambda: struck() or reference,
            ]
        )
    assert result.error is None
    assert result.done
    assert len(result.ids) == tokens
    margins = reference.told["margins"]
    assert compare(result.ids, reference.ids, margins) is not Verdict.DIFFERENT
    assert result.told["recoveries"] >= 1, "the kill came too late to matter"
    until(lambda: all_up(served), "the killed worker is back")
    until(lambda: all_free(served), "all KV is free", 3.0)
