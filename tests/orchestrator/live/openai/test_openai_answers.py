"""What answers hold: several choices, logprobs, the extension; the same for any grouping."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.state.actions import Emit, Fail, Failure, FinishReason
from orchestrator.state.events import Arrived

TEXT = "The capital, 巴黎, is lovely 👩‍🚀. User: thanks"


def broken(request: str) -> Fail:
    return Fail(request=request, failure=Failure.UNAVAILABLE, message="all at 10.0.0.1:1 are lost")


def test_several_choices(gateway):
    gateway.service.says("Paris.")
    answer = gateway.complete(prompt=["a", "b c"], n=2, seed=7, stop="!").json()
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert {c["text"] for c in answer["choices"]} == {"Paris."}
    arrived = sorted(gateway.service.arrived, key=lambda a: int(a.request[1:]))
    text = gateway.service.text
    assert [a.prompt_ids for a in arrived] == [text("a"), text("a"), text("b c"), text("b c")]
    assert [a.sampling.seed for a in arrived] == [7, 8, 7, 8]
    assert len({a.request for a in arrived}) == 4
    assert answer["usage"]["prompt_tokens"] == 3  # each prompt once
    assert answer["usage"]["completion_tokens"] == 12


def test_choices_fork_once_their_prompt_is_computed(gateway):
    """Then they find its blocks; a second prompt does not wait for the first."""
    service = gateway.service
    service.says("Paris.", hold_after=0)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(gateway.complete, prompt=["a", "b"], n=3)
        assert service.wait_until(lambda: len(service.open) == 2)
        firsts = [a.prompt_ids for a in service.arrived]
        assert firsts == [service.text("a"), service.text("b")]
        service.script.release.open()
        usage = answer.result().json()["usage"]
    assert len(service.arrived) == 6
    assert usage["completion_tokens"] == 6 * len(service.script.ids)


def test_cached_tokens_are_those_of_each_prompt_once(gateway):
    prompts = [[5] * 40, [6] * 20]
    usage = gateway.complete(prompt=prompts, n=3).json()["usage"]
    assert usage["prompt_tokens"] == 60
    assert usage["prompt_tokens_details"] == {"cached_tokens": 30}  # as the service tells


def test_several_choices_streamed(gateway, sse):
    gateway.service.says("Paris, of course.")
    *data, done = sse(gateway.chat(stream=True, n=3).text)
    assert done == "[DONE]"
    texts, reasons = [""] * 3, [[] for _ in range(3)]
    for chunk in map(json.loads, data):
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
        reasons[choice["index"]].append(choice["finish_reason"])
    assert texts == ["Paris, of course."] * 3
    assert all(r[-1] == "stop" and set(r[:-1]) == {None} for r in reasons)


def test_one_choice_that_fails_ends_them_all(scripted, serve, sse):
    class OneFails(type(scripted)):
        async def actions(self, arrived: Arrived):
            if arrived.sampling.seed == 1:
                yield broken(arrived.request)
                return
            async for action in super().actions(arrived):
                yield action

    service = OneFails(scripted.tokenizer)
    service.says("one two three", hold_after=1)
    with serve(service) as gateway:
        response = gateway.chat(n=2, seed=0)
        assert response.status_code == 503
        assert service.wait_until(lambda: not service.open)


# ---------------------------------------------------------------- logprobs


def test_chat_logprobs(gateway):
    gateway.service.says("你好")
    choice = gateway.chat(logprobs=True, top_logprobs=2).json()["choices"][0]
    content = choice["logprobs"]["content"]
    ids = gateway.service.text("你好")
    assert [t["logprob"] for t in content] == [-id / 1000 for id in ids]
    assert bytes(b for t in content for b in t["bytes"]).decode() == "你好"
    assert all(len(t["top_logprobs"]) == 2 for t in content)
    assert content[0]["top_logprobs"][0]["token"] == content[0]["token"]
    plain = gateway.chat(logprobs=True).json()["choices"][0]["logprobs"]["content"]
    assert all(t["top_logprobs"] == [] for t in plain)
    assert gateway.chat().json()["choices"][0]["logprobs"] is None


def test_completion_logprobs(gateway):
    gateway.service.says("a 你好 b")
    choice = gateway.complete(logprobs=1).json()["choices"][0]
    told = choice["logprobs"]
    ids = gateway.service.text("a 你好 b")
    assert told["token_logprobs"] == [-id / 1000 for id in ids]
    assert len(told["tokens"]) == len(told["top_logprobs"]) == len(told["text_offset"]) == len(ids)
    for token, top, offset in zip(
        told["tokens"], told["top_logprobs"], told["text_offset"], strict=True
    ):
        assert list(top) == [token]
        if not token.startswith("bytes:"):
            assert choice["text"][offset:].startswith(token)
    assert gateway.complete(logprobs=0).json()["choices"][0]["logprobs"]["top_logprobs"][0] == {}


# ---------------------------------------------------------------- the extension

ACCOUNT = {
    "route": "relay",
    "handoff": "catch-up",
    "handoff_index": 3,
    "relay_tokens": 2,
    "queue_s": 0.25,
    "prefill_s": 0.5,
    "kv_transfer_s": 2.5,
    "relay_s": 2.0,
    "handoff_gap_s": 0.0,
    "kv_bytes_raw": 23_040,
    "kv_bytes_wire": 16_000,
    "recoveries": 1,
    "workers": {"prefill": "p0", "relay": "r0", "main": "m0"},
}


def last_chunk(response: httpx.Response, sse) -> dict:
    return json.loads(sse(response.text)[-2])


def test_the_extension_is_off_by_default(gateway):
    for headers in ({}, {"x-pdd-timings": "0"}):
        assert "pdd" not in gateway.chat(headers).json()


@pytest.mark.parametrize(
    ("headers", "fields"), [({"X-PDD-Timings": "1"}, {}), ({}, {"pdd_timings": True})]
)
def test_the_extension(gateway, sse, headers, fields):
    assert gateway.chat(headers, **fields).json()["pdd"] == ACCOUNT
    assert gateway.complete(headers, **fields).json()["pdd"] == ACCOUNT
    chunk = last_chunk(gateway.chat(headers, stream=True, **fields), sse)
    assert chunk["pdd"] == ACCOUNT
    assert chunk["choices"] == []
    assert chunk["usage"]["completion_tokens"] == 3


def test_token_ids_and_margins(gateway, sse):
    ids = list(gateway.service.script.ids)
    answer = gateway.chat(pdd_token_ids=True, pdd_margins=True).json()
    assert answer["pdd"] == ACCOUNT | {"token_ids": ids, "margins": [i / 4 for i in ids]}
    assert gateway.service.arrived[0].sampling.margins
    chunk = last_chunk(gateway.complete(stream=True, pdd_token_ids=True), sse)
    assert chunk["pdd"] == ACCOUNT | {"token_ids": ids}


def test_margins_that_no_engine_reported_are_null(scripted, serve):
    class NoMargins(type(scripted)):
        async def actions(self, arrived: Arrived):
            async for action in super().actions(arrived):
                if isinstance(action, Emit) and action.start == 1:
                    action = Emit(request=arrived.request, start=1, ids=action.ids)
                yield action

    service = NoMargins(scripted.tokenizer)
    service.says("Paris.")
    with serve(service) as gateway:
        assert gateway.chat(pdd_margins=True).json()["pdd"]["margins"] is None


def test_the_extension_through_the_openai_client(gateway):
    with openai.OpenAI(base_url=gateway.url + "/v1", api_key="x") as client:
        messages = [{"role": "user", "content": "x"}]
        stream = client.chat.completions.create(
            model="smollm2-135m", messages=messages, stream=True, extra_body={"pdd_timings": True}
        )
        assert list(stream)[-1].model_extra["pdd"] == ACCOUNT


# ---------------------------------------------------------------- any grouping, one result


def told(data: list[str]) -> dict:
    """All that a stream said, whatever its chunks were."""
    text, content, reasons = "", [], []
    for chunk in map(json.loads, data):
        for choice in chunk["choices"]:
            text += choice["delta"].get("content", "")
            content += (choice["logprobs"] or {"content": []})["content"]
            reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    last = json.loads(data[-1])
    return {"text": text, "logprobs": content, "reasons": reasons, "usage": last["usage"]} | {
        "pdd": last["pdd"]
    }


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    groups=st.lists(st.integers(1, 12), min_size=1, max_size=8).map(tuple),
    stop=st.sampled_from([None, "User:", [" lovely", " is"], "黎", "never"]),
    max_tokens=st.sampled_from([None, 5, 8]),
)
def test_the_result_does_not_depend_on_the_grouping(gateway, sse, groups, stop, max_tokens):
    fields = {"stop": stop, "max_tokens": max_tokens, "logprobs": True, "pdd_token_ids": True}
    gateway.service.says(TEXT, groups=groups)
    *data, done = sse(gateway.chat(stream=True, **fields).text)
    assert done == "[DONE]"
    streamed = told(data)
    gateway.service.says(TEXT, groups=(10_000,))
    whole = gateway.chat(**fields).json()
    (choice,) = whole["choices"]
    assert streamed == {
        "text": choice["message"]["content"],
        "logprobs": choice["logprobs"]["content"],
        "reasons": [choice["finish_reason"]],
        "usage": whole["usage"],
        "pdd": whole["pdd"],
    }
    if stop is None and max_tokens is None:
        assert streamed["text"] == TEXT
        assert streamed["reasons"] == [FinishReason.STOP]
    assert not re.search("\ufffd", streamed["text"]) or max_tokens is not None
    assert len(streamed["pdd"]["token_ids"]) == streamed["usage"]["completion_tokens"]
