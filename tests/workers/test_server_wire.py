"""Messages survive JSON, and what is malformed is refused in one line that names the field."""

import orjson
import pytest

from workers.api.messages import (
    Cause,
    Feed,
    KVFailed,
    KVStats,
    Landed,
    LinkLoad,
    Load,
    NextTokens,
    Pause,
    Paused,
    Refused,
    Resume,
    Resync,
    Role,
    Sampling,
    SendKV,
    Start,
    Stop,
    TokenLogprobs,
    TokenRun,
)
from workers.api.wire import CONTROL, KINDS, TOKENS, UP, WireError, decode, encode

START = Start(
    request="r",
    epoch=1,
    gateway="g",
    role=Role.RELAY,
    prompt_ids=(5, 2**32 - 1),
    limit=8,
    sampling=Sampling(
        temperature=0.8,
        seed=-3,
        top_k=4,
        logprobs=2,
        logit_bias=((5, -100.0), (6, 0.5)),
        grammar='start: "a"',
    ),
    reserve=20,
)
MESSAGES = [
    START,
    SendKV(request="r", epoch=1, to_worker="w", to_epoch=2, start=0, stop=9),
    Pause(request="r", epoch=1, seq=1),
    Pause(request="r", epoch=1, seq=1, at=4),
    Resume(request="r", epoch=1, seq=2),
    Stop(request="r", epoch=1),
    Feed(request="r", epoch=1, law=3, start=1, ids=(7, 8)),
    Resync(request="r", epoch=1, start=0),
    TokenRun(
        request="r",
        epoch=1,
        index=0,
        ids=(1,),
        hist=2**32 - 1,
        fed=0,
        logprobs=(TokenLogprobs(logprob=-0.5, top=((1, -0.5), (2, -1.0))),),
        margins=(0.25,),
    ),
    NextTokens(
        requests=("r", "s"), epochs=(1, 2), indices=(5, 0), ids=(8, 9), hists=(1, 0), feds=(5, 0)
    ),
    Landed(request="r", epoch=1, covered=0),
    Paused(request="r", epoch=1, seq=1, at=3),
    Refused(request="r", epoch=1, reason="full", cause=Cause.GRAMMAR),
    KVFailed(request="r", epoch=2, source=1, reason="cut"),
    KVStats(request="r", epoch=2, bytes_raw=9, bytes_wire=6, transfer_s=0.5),
    Load(
        worker="w",
        running=1,
        prefill_tokens=0,
        kv_free_tokens=9,
        kv_total_tokens=10,
        kv_held_tokens=1,
        step_s=None,
        prefill_tokens_per_s=12.0,
        links=(
            LinkLoad(
                site="s",
                goodput_bytes_per_s=1e6,
                rtt_s=0.05,
                loss=None,
                queue_bytes=4,
                uncoded_bytes=3,
                sent_bytes=2,
                resent_bytes=1,
            ),
        ),
    ),
]


def test_every_message_survives_json():
    assert {type(m) for m in MESSAGES} == set(KINDS.values())
    for message in MESSAGES:
        body = orjson.loads(orjson.dumps(encode(message)))
        assert decode(body, CONTROL + TOKENS + UP) == message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "begin"}, "kind"),
        ({"kind": ["start"]}, "kind"),
        ({"kind": "tok"}, "not accepted here"),
        ({"epoch": "1"}, "epoch: must be an integer"),
        ({"epoch": True}, "epoch"),
        ({"limit": -1}, "limit"),
        ({"role": "boss"}, "prefill, relay, main"),
        ({"prompt_ids": [1, -1]}, "prompt_ids"),
        ({"prompt_ids": [1, 2**32]}, "prompt_ids"),
        ({"prompt_ids": [1.5]}, "prompt_ids"),
        ({"prompt_ids": "abc"}, "prompt_ids"),
        ({"sampling": {"heat": 1}}, "unknown field 'heat'"),
        ({"sampling": {"top_p": "high"}}, "top_p"),
        ({"sampling": 3}, "sampling"),
        ({"rank": 1}, "unknown field 'rank'"),
    ],
)
def test_a_malformed_message_is_refused_in_one_line(change, words):
    body = orjson.loads(orjson.dumps(encode(START))) | change
    with pytest.raises(WireError) as refused:
        decode(body, CONTROL)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ids": [8]}, "columns of different lengths"),
        ({"requests": []}, "columns of different lengths"),
        ({"ids": [8, -9]}, "ids"),
        ({"requests": ["r", 5]}, "requests: must be a string"),
    ],
)
def test_columns_are_of_one_length_and_hold_what_they_should(change, words):
    (step,) = [message for message in MESSAGES if isinstance(message, NextTokens)]
    body = orjson.loads(orjson.dumps(encode(step))) | change
    with pytest.raises(WireError, match=words):
        decode(body, UP)


def test_missing_fields_are_named():
    with pytest.raises(WireError, match="epoch, request missing"):
        decode({"kind": "stop"}, CONTROL)


@pytest.mark.parametrize("deep", ["[" * 1020 + "]" * 1020, '{"a":' * 1020 + "1" + "}" * 1020])
@pytest.mark.parametrize("field", ["request", "epoch", "role", "kind", "prompt_ids", "sampling"])
def test_what_nests_as_deep_as_json_may_is_refused_in_one_line(field: str, deep: str) -> None:
    """Python's own repr gives up before that, and the worker would with it."""
    body = orjson.loads(orjson.dumps(encode(START))) | {field: orjson.loads(deep)}
    for message in (body, orjson.loads(deep)):
        with pytest.raises(WireError) as refused:
            decode(message, CONTROL)
        assert len(str(refused.value)) < 200
        assert "\n" not in str(refused.value)
