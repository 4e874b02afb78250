"""The real service: a real model, three worker processes, two sites, an emulated 4000 km line."""

import functools
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import openai
import pytest

from benchmarks.equality import Verdict, compare
from benchmarks.service import Served
from tests.orchestrator.live.live_service import (
    WAIT_S,
    Race,
    Streamed,
    all_free,
    all_up,
    body_of,
    legs,
    prompts,
    several,
    stream,
    until,
)

pytestmark = pytest.mark.timeout(300)

COMPUTE, RELAY, MAIN = "hami/compute/0", "hami/relay/0", "shenzhen/memory/0"
# Tokens at the client: the relay tells the first ones; when it is held still from then on, and
# what it was ahead has come too, only main can have told the later ones.
EARLY, TAKEN_OVER = 3, 24


@pytest.fixture
def race(served: Served) -> Iterator[Race]:
    """Line and relay are as usual again after the test."""
    race = Race(served, RELAY)
    yield race
    race.end()


def relayed(served: Served, race: Race, prompt: Sequence[int], **fields: Any) -> Streamed:
    """Stream on the relay's route: it tells the first tokens, main takes over, both go on."""

    def steer(count: int) -> None:
        if count == EARLY:
            race.hold_relay()
            race.usual_line()
        elif count == TAKEN_OVER:
            race.end()

    race.begin()
    return stream(served, prompt, on_token=steer, pdd_route="relay", **fields)


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


def test_every_route_gives_the_same_tokens(served: Served, race: Race) -> None:
    prompt = next(prompts(1, 140))
    local = stream(served, prompt, pdd_route="local", cache_salt="local", max_tokens=96)
    assert local.told["route"] == "local"
    for handoff in ("auto", "one-shot", "catch-up"):
        relay = relayed(
            served, race, prompt, pdd_handoff=handoff, cache_salt=handoff, max_tokens=96
        )
        assert relay.told["route"] == "relay"
        assert relay.told["relay_tokens"] > 0
        assert relay.told["handoff_index"] is not None, "main never took over"
        assert compare(relay.ids, local.ids, local.told["margins"]) is not Verdict.DIFFERENT


def test_seeded_sampling_crosses_the_handoff(served: Served, race: Race) -> None:
    prompt = next(prompts(1, 140))
    sampling = {"temperature": 0.8, "seed": 7, "max_tokens": 96}
    local = stream(served, prompt, pdd_route="local", cache_salt="local seeded", **sampling)
    relay = relayed(served, race, prompt, cache_salt="relay seeded", **sampling)
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
    until(lambda: all_free(served), "all KV free after sixteen streams", 5.0)


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
    assert until(lambda: all_free(served), "all KV free after the client left") < 1.0


def test_a_client_that_leaves_during_prefill(served: Served) -> None:
    body = body_of(served, next(prompts(1, 4000)), cache_salt="leaves early")
    host, port = served.base.removeprefix("http://").split(":")
    request = httpx.Request("POST", f"{served.url}/completions", json=body)
    head = "".join(f"{k}: {v}\r\n" for k, v in request.headers.items())
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(f"POST /v1/completions HTTP/1.1\r\n{head}\r\n".encode() + request.read())
        until(lambda: not all_free(served), "the prefill has begun", 10.0)
    assert until(lambda: all_free(served), "all KV free after the client left") < 1.0


def test_a_prompt_longer_than_the_context_is_refused(served: Served) -> None:
    refused = stream(served, next(prompts(1, 9000)))
    assert refused.status == 400
    assert refused.error is not None
    assert refused.error["code"] == "context_length_exceeded"
    assert "8192" in refused.error["message"]


def at_once(race: Race, victim: str, count: int) -> None:
    if count == EARLY:
        race.kill(victim)


def before_the_handoff(race: Race, victim: str, count: int) -> None:
    """The relay could answer alone before the loss is noticed, so it is held still meanwhile."""
    if count == EARLY:
        race.hold_relay()
        race.kill(victim)


def after_the_handoff(race: Race, victim: str, count: int) -> None:
    if count == EARLY:
        race.hold_relay()
        race.usual_line()
    elif count == TAKEN_OVER:
        race.kill(victim)


def all_there(served: Served, result: Streamed, reference: Streamed) -> None:
    """The killed worker cost no token, and is back."""
    assert result.error is None
    assert result.done
    assert len(result.ids) == len(reference.ids)
    margins = reference.told["margins"]
    assert compare(result.ids, reference.ids, margins) is not Verdict.DIFFERENT
    assert result.told["recoveries"] >= 1, "the kill came too late to matter"
    until(lambda: all_up(served), "the killed worker is back")
    until(lambda: all_free(served), "all KV is free", 5.0)


@pytest.mark.parametrize(
    ("victim", "strike"),
    [
        (RELAY, at_once),
        (MAIN, before_the_handoff),
        (MAIN, after_the_handoff),
        (COMPUTE, before_the_handoff),
    ],
    ids=["relay", "main before the handoff", "main after it", "prefill while sending"],
)
def test_a_killed_worker_costs_no_token(
    served: Served, race: Race, victim: str, strike: Callable[[Race, str, int], None]
) -> None:
    until(lambda: all_up(served), "all workers are up")
    prompt, tokens = next(prompts(1, 200)), 100
    salt = f"{victim} {strike.__name__}"
    reference = stream(
        served, prompt, pdd_route="local", max_tokens=tokens, cache_salt=f"ref {salt}"
    )
    race.begin()
    result = stream(
        served,
        prompt,
        on_token=functools.partial(strike, race, victim),
        pdd_route="relay",
        max_tokens=tokens,
        cache_salt=salt,
    )
    all_there(served, result, reference)


def test_a_worker_killed_during_prefill_costs_no_token(served: Served, race: Race) -> None:
    until(lambda: all_up(served), "all workers are up")
    prompt, tokens = next(prompts(1, 1000)), 80
    reference = stream(served, prompt, pdd_route="local", max_tokens=tokens, cache_salt="ref dies")
    race.begin()

    def strike() -> None:
        until(lambda: legs(served, COMPUTE) > 0, "the prefill has begun", 20.0)
        race.kill(COMPUTE)

    striking = threading.Thread(target=strike)
    striking.start()
    result = stream(served, prompt, pdd_route="relay", max_tokens=tokens, cache_salt="dies")
    striking.join(WAIT_S)
    all_there(served, result, reference)
