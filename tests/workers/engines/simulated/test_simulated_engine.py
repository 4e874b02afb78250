"""The simulated engine: the same tokens whatever happens around them, and modelled time."""

from dataclasses import replace
from itertools import product
from time import process_time

import pytest

from tests.workers.engines.simulated.simulated_rig import (
    COSTS,
    MODEL,
    PROMPT,
    TEXT,
    A,
    B,
    computed,
    engine,
    run,
    say,
    spec,
)
from workers.api.messages import Sampling
from workers.engines.base import SeqId
from workers.engines.simulated.engine import SimulatedEngine
from workers.engines.simulated.model import SimulatedModel

# -------------------------------------------------------------------- tokens


@pytest.mark.parametrize("block_size", [1, 5, 16, 64])
@pytest.mark.parametrize("chunk_tokens", [1, 7, 512])
def test_tokens_do_not_depend_on_blocks_or_chunks(block_size: int, chunk_tokens: int) -> None:
    assert say(engine(block_size=block_size, chunk_tokens=chunk_tokens), 20) == TEXT


def test_tokens_do_not_depend_on_the_batch() -> None:
    together = engine()
    for number in range(6):
        seq = SeqId("other", number)
        together.open(seq, spec((number, *PROMPT)), reuse=False)
        together.set_goal(seq, len(PROMPT) + 1 + number)
    assert say(together, 20) == TEXT


def test_tokens_depend_on_every_token_before_and_on_the_model() -> None:
    other = (PROMPT[1], PROMPT[0], *PROMPT[2:])
    assert say(engine(), 3, tokens=other) != TEXT[:3]
    assert say(engine(replace(MODEL, name="other")), 3) != TEXT[:3]


def test_an_extend_says_what_decoding_says() -> None:
    tokens = (*PROMPT, *TEXT[:7])
    assert say(engine(), 13, tokens=tokens, prompt_len=len(PROMPT)) == TEXT[7:]
    later = engine()
    say(later, 3)
    later.append(A, TEXT[3:9])
    later.set_goal(A, len(PROMPT) + 20)
    assert run(later)[A] == TEXT[9:]


def test_truncation_forgets() -> None:
    later = engine()
    say(later, 12)
    later.truncate(A, len(PROMPT) + 4)
    assert later.computed(A) == later.length(A) == len(PROMPT) + 4
    later.set_goal(A, len(PROMPT) + 20)
    assert run(later)[A] == TEXT[4:]
    later.truncate(A, len(PROMPT) + 4)
    later.append(A, (7,))
    later.set_goal(A, len(PROMPT) + 7)
    assert run(later)[A] == say(engine(), 2, tokens=(*PROMPT, *TEXT[:4], 7), prompt_len=50)


def test_a_seed_counts_when_sampling_and_only_then() -> None:
    greedy = [say(engine(), 8, sampling=Sampling(seed=seed)) for seed in (1, 2)]
    assert greedy == [TEXT[:8], TEXT[:8]]
    drawn = [say(engine(), 8, sampling=Sampling(temperature=1, seed=seed)) for seed in (1, 2, 1)]
    assert drawn[0] == drawn[2] != drawn[1]
    assert TEXT[:8] not in drawn


def test_end_of_text_comes_at_its_rate_and_not_before_its_time() -> None:
    ending = replace(MODEL, end_rate=0.2, max_context=8192)
    many = engine(ending, kv_total_tokens=4096)
    said = say(many, 500, stop_ids=(2,), reserve=600)
    assert 70 < said.count(2) < 130
    other = engine(ending, kv_total_tokens=4096)
    held_back = say(other, 200, stop_ids=(2,), min_tokens=100, reserve=300)
    assert 2 not in held_back[:100]
    assert 2 in held_back[100:]
    small = replace(MODEL, vocab_size=4)
    assert 2 not in say(engine(small), 200, tokens=(1, 1, 3), stop_ids=(2,), reserve=300)


def test_engines_with_another_salt_differ_only_where_two_tokens_nearly_tie() -> None:
    one, other = (first_tokens(replace(MODEL, divergence=5, salt=salt), 300) for salt in (0, 1))
    ties = [margin < 0.05 for _, margin in one]
    assert [margin for _, margin in one] == [margin for _, margin in other]
    assert [a[0] != b[0] for a, b in zip(one, other, strict=True)] == ties
    assert 30 < sum(ties) < 90


def first_tokens(model: SimulatedModel, count: int) -> list[tuple[int, float]]:
    """The first token and its margin after `count` different prompts."""
    once = engine(model, chunk_tokens=count * 3, kv_total_tokens=count * 16)
    for number in range(count):
        prompt = (number, 1, 2)
        what = spec(prompt, reserve=4, sampling=Sampling(margins=True))
        once.open(SeqId("x", number), what, reuse=False)
        once.set_goal(SeqId("x", number), 4)
    step = once.begin()
    assert step is not None
    samples = once.finish(step).samples
    assert len(samples) == count
    return [(sample.token, sample.margin or 0.0) for sample in samples]


def test_logprobs_are_as_many_as_were_asked_for_and_fall() -> None:
    for wanted in (0, 1, 4):
        once = engine(chunk_tokens=512)
        once.open(A, spec(sampling=Sampling(logprobs=wanted)), reuse=False)
        once.set_goal(A, len(PROMPT) + 1)
        step = once.begin()
        assert step is not None
        (sample,) = once.finish(step).samples
        assert sample.logprobs is not None
        top = sample.logprobs.top
        assert len(top) == wanted
        assert len({token for token, _ in top}) == wanted
        assert [logprob for _, logprob in top] == sorted((lp for _, lp in top), reverse=True)
        if wanted:
            assert top[0] == (sample.token, sample.logprobs.logprob)


# -------------------------------------------------------------------- steps and time


def test_prefill_is_chunked_and_timed() -> None:
    one = engine()
    one.open(A, spec(), reuse=False)
    one.set_goal(A, len(PROMPT) + 1)
    first = one.begin()
    assert first is not None
    assert first.duration_s == pytest.approx(0.032)
    result = one.finish(first)
    assert (result.samples, result.computed, result.prefill_tokens) == ((), {A: 32}, 31)
    second = one.begin()
    assert second is not None
    assert second.duration_s == pytest.approx(0.018)
    assert len(one.finish(second).samples) == 1


def test_decode_goes_on_beside_a_prefill_and_pays_for_its_context() -> None:
    one = engine()
    say(one, 2)
    one.set_goal(A, len(PROMPT) + 9)
    one.open(B, spec((7,) * 60), reuse=False)
    one.set_goal(B, 61)
    step = one.begin()
    assert step is not None
    assert step.seqs == (A, B)
    assert step.duration_s == pytest.approx(0.032 + 0.02 + 1e-5 * (len(PROMPT) + 2))


def test_an_extend_goes_before_a_prompt() -> None:
    one = engine()
    one.open(B, spec((7,) * 60), reuse=False)
    one.set_goal(B, 61)
    one.open(A, spec((*PROMPT, 1, 2, 3), prompt_len=len(PROMPT)), reuse=False)
    one.set_goal(A, len(PROMPT) + 4)
    step = one.begin()
    assert step is not None
    assert step.seqs == (A,)


def test_without_a_goal_nothing_is_done() -> None:
    one = engine()
    one.open(A, spec(), reuse=False)
    assert one.begin() is None
    one.set_goal(A, len(PROMPT))
    assert run(one) == {}
    assert one.computed(A) == len(PROMPT)
    one.set_goal(A, None)
    one.append(A, (1, 2))
    assert one.begin() is None


def test_a_sequence_that_is_all_computed_computes_its_last_token_again() -> None:
    one = computed()
    one.set_goal(A, len(PROMPT) + 3)
    assert run(one)[A] == TEXT[:3]


def test_cancel_ends_the_work_inside_a_step_too() -> None:
    one = engine()
    one.open(A, spec(), reuse=False)
    one.open(B, spec((7,) * 10), reuse=False)
    one.set_goal(A, len(PROMPT) + 1)
    one.set_goal(B, 11)
    step = one.begin()
    assert step is not None
    one.cancel(A)
    result = one.finish(step)
    assert A not in result.computed
    assert one.computed(A) == 0
    one.set_goal(A, len(PROMPT) + 1)
    assert A not in run(one)


def test_what_was_truncated_inside_a_step_is_void() -> None:
    one = engine()
    one.open(A, spec(), reuse=False)
    one.set_goal(A, len(PROMPT) + 1)
    step = one.begin()
    assert step is not None
    one.truncate(A, 10)
    assert one.finish(step).computed == {}
    assert one.computed(A) == 0


def test_listeners_hear_of_every_layer_once() -> None:
    heard = []
    one = engine()
    one.on_kv = lambda *what: heard.append(what)
    say(one, 2)
    ranges = [(0, 32), (32, 50), (50, 51), (51, 52)]
    assert heard == [(A, layer, *r) for r, layer in product(ranges, range(3))]


def best_step_s(batch: int) -> float:
    """Of many steps: CPU seconds of one that decodes `batch` sequences."""
    one = SimulatedEngine(MODEL, COSTS, kv_total_tokens=16_384)
    for number in range(batch):
        seq = SeqId("x", number)
        one.open(seq, spec((number, 1, 2), reserve=200), reuse=False)
        one.set_goal(seq, 200)
    best = float("inf")
    for _ in range(60):
        began = process_time()
        step = one.begin()
        assert step is not None
        assert len(one.finish(step).samples) in (0, batch)
        best = min(best, process_time() - began)
    return best


def test_a_sequence_in_a_batch_costs_no_more_than_one_alone() -> None:
    assert best_step_s(64) < 64 * best_step_s(1)
