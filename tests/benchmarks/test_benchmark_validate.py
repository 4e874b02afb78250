"""vLLM's scheduler by hand, the search for constants, and the errors that were reached."""

import random

import pytest

from benchmarks.validate import runs, tables
from benchmarks.validate.fit import errors, search
from benchmarks.validate.run import DATA
from benchmarks.validate.skipping import _Engine, event_skipping
from benchmarks.validate.stepping import Ask, step_by_step
from benchmarks.validate.tables import Size
from benchmarks.validate.vllm import Limits, new_leg
from workers.costs import MeasuredCosts, RooflineCosts

needs_data = pytest.mark.skipif(
    not DATA.exists(), reason="what others measured is not beside the project"
)
COSTS = MeasuredCosts(prefill_tokens_per_s=1000, decode_step_s=0.01)
LIMITS = Limits(budget=100, slots=4)
ROOFLINE = RooflineCosts(
    flops=1e12,
    memory_bytes_per_s=1e9,
    active_params=1e6,
    attention_width=1000,
    kv_bytes_per_token=100,
    weight_bytes=2e6,
    overhead_s=0.001,
)
# What `pdd bench validate` finds on the run that it fits.
CARD = {"mfu": 0.7, "mbu": 0.9, "serial": 0.65, "layer_s": 39.8e-6}


def test_a_prompt_is_prefilled_in_chunks_and_decoded():
    [timing] = event_skipping([Ask(0.0, 150, 3)], COSTS, LIMITS)
    # 100 tokens, then 50; each of the other two tokens takes a step.
    assert (timing.first_at, timing.last_at) == (pytest.approx(0.15), pytest.approx(0.17))
    assert (timing.ttft_s, timing.tpot_s) == (pytest.approx(0.15), pytest.approx(0.01))


def test_what_comes_in_a_step_is_computed_in_the_one_after_the_next():
    first, second = event_skipping([Ask(0.0, 150, 10), Ask(0.155, 10, 2)], COSTS, LIMITS)
    # It comes in the step that ends at 0.16; the next is planned, so it is in [0.17, 0.19).
    assert second.first_at == pytest.approx(0.19)
    assert second.last_at == pytest.approx(0.20)
    assert first.last_at == pytest.approx(0.15 + 9 * 0.01 + 0.01)


def test_who_decodes_leaves_less_for_prompts():
    _, second = event_skipping([Ask(0.0, 100, 50), Ask(0.105, 100, 2)], COSTS, LIMITS)
    # From 0.12 on 99 tokens, then 1, each with a token for the first.
    assert second.first_at == pytest.approx(0.12 + 0.099 + 0.01 + 0.001 + 0.01)


def test_a_slot_is_free_for_the_step_after_the_next():
    limits = Limits(budget=100, slots=1)
    first, second = event_skipping([Ask(0.0, 100, 2), Ask(0.0, 100, 1)], COSTS, limits)
    assert first.last_at == pytest.approx(0.11)
    assert second.first_at == pytest.approx(0.21)  # nothing else to do: there is no step between


def test_where_kv_is_full_the_newest_computes_again():
    # Blocks of 16: the older one has three from its first token on, the newer two.
    limits = Limits(budget=100, slots=4, kv_blocks=5)
    older, newer = event_skipping([Ask(0.0, 32, 10), Ask(0.0, 32, 10)], COSTS, limits)
    assert older.first_at == pytest.approx(0.032)
    assert newer.first_at == pytest.approx(0.042 + 0.032 + 0.01)
    assert older.last_at == pytest.approx(0.084 + 7 * 0.01)
    # Its 33 tokens again, which give the second of ten.
    assert newer.last_at == pytest.approx(0.154 + 0.033 + 8 * 0.01)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kv_blocks", [None, 300])
def test_skipping_events_and_single_steps_agree(seed: int, kv_blocks: int | None):
    draw = random.Random(seed)
    at, asks = 0.0, []
    for _ in range(60):
        at += draw.expovariate(draw.choice((5.0, 100.0)))
        asks.append(Ask(at, draw.randrange(10, 2000), draw.randrange(2, 300)))
    limits = Limits(budget=512, slots=16, kv_blocks=kv_blocks)
    fast, slow = event_skipping(asks, ROOFLINE, limits), step_by_step(asks, ROOFLINE, limits)
    for a, b in zip(fast, slow, strict=True):
        assert b.asked_at < b.first_at < b.last_at
        assert (a.first_at, a.last_at) == pytest.approx((b.first_at, b.last_at), abs=1e-6)


def test_events_are_skipped():
    engine = _Engine(ROOFLINE, LIMITS)
    engine.scheduler.timings["0"] = timing = step_by_step([Ask(0.0, 50, 1000)], ROOFLINE, LIMITS)[0]
    engine.arrive(new_leg(0, 50, 1000))
    engine.schedule.run(1e9)
    assert timing.last_at > 1.0
    assert engine.schedule.done < 10


def test_ranks_begin_and_end_each_step_together():
    asks = [Ask(0.0, 100, 20), Ask(0.105, 100, 2)]
    alone = step_by_step(asks, COSTS, LIMITS)
    together = step_by_step(asks, COSTS, LIMITS, ranks=2)
    # The second is another rank's, and still takes the first as long as its prompt.
    assert together[0].last_at == pytest.approx(0.10 + 19 * 0.01 + 0.1 - 0.01)
    assert together[1].first_at < alone[1].first_at


def test_errors_by_hand():
    found = errors([1.1, 2.0, 2.0], [1.0, 2.0, 4.0])
    assert (found.n, found.mean) == (3, pytest.approx(0.2))
    assert (found.p50, found.p90) == (pytest.approx(0.1), pytest.approx(0.5))


def test_the_search_finds_the_least():
    def loss(constants: dict[str, float]) -> float:
        return abs(constants["mfu"] - 0.42) + abs(constants["overhead_s"] - 0.003) * 100

    found = search({"mfu": 0.9, "overhead_s": 0.02}, loss)
    assert found == pytest.approx({"mfu": 0.42, "overhead_s": 0.003}, rel=0.02)
    assert search({"mfu": 0.5}, lambda constants: -constants["mfu"]) == {"mfu": 1.0}


def test_sizes_of_splitwise():
    assert Size(512, 1, 128).fitted
    assert Size(2048, 1, 128).fitted
    assert not Size(512, 2, 128).fitted
    assert not Size(1024, 1, 128).fitted
    # Two prompts of 100: 4e8 of weights in 0.4 ms behind 2 ms of reading, attention 4e7 in 40 us.
    assert tables.prompt_s(ROOFLINE, Size(100, 2, 10)) == pytest.approx(0.001 + 0.002 + 4e-5)
    assert tables.token_s(ROOFLINE, Size(100, 2, 10)) == pytest.approx(0.001 + 0.002 + 210e-7)


@needs_data
@pytest.mark.parametrize(("which", "ttft"), [(runs.JUDGED[0], 0.10), (runs.JUDGED[1], 0.17)])
def test_other_models_on_a_known_card(which: tuple[str, str, str], ttft: float):
    found = runs.rows(runs.read_run(DATA, *which), CARD, "")
    mean = {row.metric: row.errors.mean for row in found}
    assert mean["e2e, per request"] < 0.05
    assert mean["tpot, per request"] < 0.05
    assert mean["ttft, per request"] < ttft
    assert mean["ttft, of the mean"] < 0.15


@needs_data
def test_an_overloaded_card_step_by_step():
    assert runs.fast_vs_step_s(runs.read_run(DATA, *runs.OTHER_CARD), CARD) < 1e-6
