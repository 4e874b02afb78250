"""What vLLM is asked, and how its answers are read."""

import json

import pytest

from workers.api.messages import Sampling, TokenLogprobs
from workers.engines.base import SequenceSpec
from workers.engines.vllm.asking import Ask, completion, read_chunk
from workers.engines.vllm.inside.plan import Run
from workers.engines.vllm.inside.wanted import Wanted

ASK = Ask(
    model="pdd",
    pool="p",
    row=2,
    run=7,
    have=3,
    blocks=[4, 9],
    block_size=16,
    tokens=[5, 6, 7, 8],
    count=10,
)


def spec(**more: object) -> SequenceSpec:
    values = {"tokens": (5, 6), "prompt_len": 2, "reserve": 20, "sampling": Sampling()} | more
    return SequenceSpec(**values)  # type: ignore[arg-type]


def test_a_plain_request_is_vllms_own_greedy() -> None:
    body = completion(spec(), ASK)
    assert body["prompt"] == [5, 6, 7, 8]
    assert (body["max_tokens"], body["temperature"], body["ignore_eos"]) == (10, 0.0, True)
    assert not {"vllm_xargs", "cache_salt", "logprobs"} & body.keys()
    assert json.loads(json.dumps(body)) == body


def test_the_connector_understands_what_it_is_told() -> None:
    run = Run.of(completion(spec(), ASK)["kv_transfer_params"]["pdd"])
    assert run == Run("p", 2, 7, 3, (4, 9), 16)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.7, seed=5),
        Sampling(margins=True),
        Sampling(presence_penalty=0.1),
        Sampling(frequency_penalty=-0.1),
        Sampling(repetition_penalty=1.2),
        Sampling(logit_bias=((3, 5.0),)),
    ],
)
def test_all_else_is_our_samplers_which_knows_where_the_output_began(sampling: Sampling) -> None:
    """Penalties count the tokens that other legs emitted, for they are in the prompt it sees."""
    body = completion(spec(sampling=sampling), ASK)
    assert body["temperature"] == 0.0
    wanted = Wanted.of(body["vllm_xargs"]["pdd"])
    assert wanted == Wanted(sampling=sampling, prompt_len=2, pool="p", row=2, run=7)


@pytest.mark.parametrize(("wanted", "left"), [(0, 0), (2, 0), (5, 3), (50, 10)])
def test_stops_are_held_back_from_where_the_output_is(wanted: int, left: int) -> None:
    body = completion(spec(min_tokens=wanted, stop_ids=(1, 2)), ASK)
    assert (body["min_tokens"], body["stop_token_ids"]) == (left, [1, 2])


@pytest.mark.parametrize("salt", ["s", "a/b@c\\d\0", "s" * 1000])
def test_a_salt_and_logprobs_go_along(salt: str) -> None:
    """vLLM refuses salts longer than 128 characters, and some characters."""
    body = completion(spec(cache_salt=salt, sampling=Sampling(logprobs=0)), ASK)
    assert body["cache_salt"].isalnum()
    assert len(body["cache_salt"]) == 32
    assert body["cache_salt"] != completion(spec(cache_salt=f"{salt}x"), ASK)["cache_salt"]
    assert body["logprobs"] == 0


def test_a_chunk_is_read() -> None:
    choice = {"token_ids": [5, 9], "finish_reason": None, "logprobs": None, "text": "x"}
    assert read_chunk({"choices": [choice]}) == ([(5, None), (9, None)], None)
    over = {"token_ids": [], "finish_reason": "length"}
    assert read_chunk({"choices": [over]}) == ([], "length")


def test_logprobs_are_ranked_and_the_token_itself_is_no_alternative_too_many() -> None:
    logprobs = {
        "token_logprobs": [-2.0],
        "top_logprobs": [{"token_id:5": -2.0, "token_id:7": -0.5, "token_id:8": -1.0}],
    }
    choice = {"token_ids": [5], "finish_reason": "stop", "logprobs": logprobs}
    ((id, told),), finish = read_chunk({"choices": [choice]})
    assert (id, finish) == (5, "stop")
    assert told == TokenLogprobs(logprob=-2.0, top=((7, -0.5), (8, -1.0), (5, -2.0)))


@pytest.mark.parametrize("chunk", [{}, {"choices": []}, {"choices": [{"token_ids": ["x"]}]}])
def test_what_is_no_answer_is_refused(chunk: dict) -> None:
    with pytest.raises((KeyError, IndexError, ValueError)):
        read_chunk(chunk)
