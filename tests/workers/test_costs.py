"""The cost model against its own formula, worked by hand."""

from dataclasses import replace

import pytest

from workers.costs import Chunk, MeasuredCosts, RooflineCosts


def test_measured_costs_are_what_was_measured() -> None:
    costs = MeasuredCosts(
        prefill_tokens_per_s=1000.0, decode_step_s=0.02, context_s=1e-6, sequence_s=1e-4
    )
    assert costs.step_s([Chunk(300, 0), Chunk(200, 64)], 0, 0) == pytest.approx(0.5)
    assert costs.step_s([], 8, 4000) == pytest.approx(0.02 + 8e-4 + 4e-3)
    assert costs.step_s([Chunk(300, 0)], 8, 4000) == pytest.approx(0.3 + 0.0248)
    assert costs.step_s([], 0, 0) == 0.0


def test_a_measured_prefill_step_has_a_price_of_its_own() -> None:
    costs = MeasuredCosts(prefill_tokens_per_s=1000.0, decode_step_s=0.02, chunk_step_s=0.01)
    assert costs.step_s([Chunk(200, 300)], 0, 0) == pytest.approx(0.01 + 0.2)
    # A step that decodes as well reads the weights once.
    assert costs.step_s([Chunk(200, 0)], 2, 0) == pytest.approx(0.02 + 0.2)
    assert costs.step_s([], 0, 0) == 0.0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"prefill_tokens_per_s": 0}, "prefill_tokens_per_s: must be > 0, got 0"),
        ({"decode_step_s": -1}, "decode_step_s: must be > 0, got -1"),
        ({"context_s": -1}, "context_s: must be >= 0, got -1"),
        ({"chunk_step_s": -1}, "chunk_step_s: must be >= 0, got -1"),
        ({"sequence_s": float("nan")}, "sequence_s: must be >= 0, got nan"),
    ],
)
def test_impossible_costs_are_refused_by_name(change: dict[str, float], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        MeasuredCosts(**{"prefill_tokens_per_s": 1.0, "decode_step_s": 1.0} | change)


ROOFLINE = RooflineCosts(
    flops=1e12,
    memory_bytes_per_s=1e9,
    active_params=1e6,
    attention_width=1000,
    kv_bytes_per_token=100,
    weight_bytes=2e6,
    overhead_s=0.001,
    sequence_s=0.0001,
)


def test_prefill_is_arithmetic():
    # 2 x 1e6 x 100 = 2e8 for the weights, 2 x 1000 x 100 x 100 = 2e7 for attention, over 1e12.
    assert ROOFLINE.chunk_s(100, 0) == pytest.approx(2.2e-4)
    # A step reads the weights as well, 2 ms, behind which 0.2 ms of arithmetic hide.
    assert ROOFLINE.step_s([Chunk(100, 0)], 0, 0) == pytest.approx(0.001 + 2e-3 + 2e-5)
    assert ROOFLINE.step_s([Chunk(5000, 0)], 0, 0) == pytest.approx(0.001 + 0.01 + 0.05)


def test_what_is_not_hidden_adds():
    half = replace(ROOFLINE, serial=0.5)
    assert half.step_s([Chunk(100, 0)], 0, 0) == pytest.approx(0.001 + 2e-3 + 1e-4 + 2e-5)
    assert half.step_s([], 100, 0) == pytest.approx(0.001 + 0.01 + 2e-3 + 1e-4)


def test_a_step_reads_the_weights_once():
    # 2000 tokens of arithmetic, 4 ms, hide 2 ms of weights; 4 x 500 contexts of 100 bytes do not
    # hide, nor 0.1 ms for each sequence, nor attention, 2 x 1000 x 1996^2 / 1e12.
    together = ROOFLINE.step_s([Chunk(1996, 0)], 4, 2000)
    assert together == pytest.approx(0.001 + 4e-4 + 4e-3 + 2e-4 + 2e3 * 1996**2 / 1e12)


def test_what_chips_tell_each_other_of_tokens():
    told = replace(ROOFLINE, token_s=1e-3)
    assert told.chunk_s(100, 0) == pytest.approx(2.2e-4 + 0.1)
    assert told.prefill_tokens_per_s == pytest.approx(1 / (2e-6 + 1e-3))


def test_chunks_of_a_prompt_cost_what_it_costs_at_once():
    parts = sum(ROOFLINE.chunk_s(100, at) for at in range(0, 1000, 100))
    assert parts == pytest.approx(ROOFLINE.chunk_s(1000, 0))


def test_decode_reads_weights_and_contexts():
    # 2e6 + 4 x 500 x 100 bytes at 1e9 a second, 1 ms of overhead and 0.1 ms a sequence.
    assert ROOFLINE.step_s([], 4, 2000) == pytest.approx(0.001 + 4e-4 + 2.2e-3)


def test_a_large_batch_is_bound_by_arithmetic():
    assert ROOFLINE.step_s([], 10_000, 0) == pytest.approx(0.001 + 1.0 + 0.02)


def test_an_empty_step_takes_no_time():
    assert ROOFLINE.step_s([], 0, 0) == 0.0


def test_more_tokens_touch_more_experts():
    mixture = replace(ROOFLINE, experts=8, experts_per_token=2, shared_bytes=0.5e6)
    assert mixture.touched_bytes(1) == pytest.approx(0.5e6 + 0.25 * 1.5e6)
    assert mixture.touched_bytes(2) == pytest.approx(0.5e6 + (1 - 0.75**2) * 1.5e6)
    assert mixture.touched_bytes(1000) == pytest.approx(2e6)
    assert replace(mixture, alike=2).touched_bytes(1) == mixture.touched_bytes(2)
    # A chunk of 100 tokens touches all of them: 2 ms, of which its own 0.2 ms are counted apart.
    assert mixture.decode_line(1, 100).fixed_s == pytest.approx(0.0011 + 2e-3 - 2e-4)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [({"flops": 0.0}, "flops"), ({"experts": 4, "experts_per_token": 5}, "5 of 4")],
)
def test_impossible_figures(wrong: dict[str, float], name: str):
    with pytest.raises(ValueError, match=name):
        replace(ROOFLINE, **wrong)
