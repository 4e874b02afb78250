"""The cost model against its own formulas, worked by hand."""

import pytest

from workers.costs import Chip, Chunk, MeasuredCosts, ModelShape, RooflineCosts

H100 = Chip(flops_per_s=989e12, bytes_per_s=3.35e12)
LLAMA_8B = ModelShape(
    parameters=8.0e9,
    active_parameters=8.0e9,
    weight_bytes=16.0e9,
    layers=32,
    attention_width=4096,
    kv_bytes_per_token=131_072,
)
MIXTURE = ModelShape(
    parameters=235e9,
    active_parameters=22e9,
    weight_bytes=470e9,
    layers=94,
    attention_width=8192,
    kv_bytes_per_token=192_512,
    experts=128,
    experts_per_token=8,
)


def test_measured_costs_are_what_was_measured() -> None:
    costs = MeasuredCosts(
        prefill_tokens_per_s=1000.0, decode_step_s=0.02, context_s=1e-6, sequence_s=1e-4
    )
    assert costs.step_s([Chunk(300, 0), Chunk(200, 64)], 0, 0) == pytest.approx(0.5)
    assert costs.step_s([], 8, 4000) == pytest.approx(0.02 + 8e-4 + 4e-3)
    assert costs.step_s([Chunk(300, 0)], 8, 4000) == pytest.approx(0.3 + 0.0248)


def test_a_step_without_work_takes_no_time() -> None:
    roofline = RooflineCosts(chip=H100, model=LLAMA_8B)
    measured = MeasuredCosts(prefill_tokens_per_s=1000.0, decode_step_s=0.02)
    for costs in (roofline, measured):
        assert costs.step_s([], 0, 0) == 0.0


def test_prefill_is_linear_work_plus_attention() -> None:
    costs = RooflineCosts(chip=H100, model=LLAMA_8B, overhead_s=0.003)
    n = 4096
    flops = 2 * 8.0e9 * n + 2 * 32 * 4096 * n**2
    assert costs.step_s([Chunk(n, 0)], 0, 0) == pytest.approx(0.003 + flops / (989e12 * 0.42))


def test_chunks_cost_what_the_whole_prompt_costs_but_for_the_overhead() -> None:
    costs = RooflineCosts(chip=H100, model=LLAMA_8B, overhead_s=0.003)
    chunks = [Chunk(512, at) for at in range(0, 4096, 512)]
    chunked = sum(costs.step_s([chunk], 0, 0) for chunk in chunks)
    assert chunked == pytest.approx(costs.step_s([Chunk(4096, 0)], 0, 0) + 7 * 0.003)


def test_decode_is_bound_by_memory_and_then_by_arithmetic() -> None:
    costs = RooflineCosts(chip=H100, model=LLAMA_8B, overhead_s=0.0)
    assert costs.step_s([], 1, 1000) == pytest.approx((16e9 + 1000 * 131_072) / (3.35e12 * 0.7))
    assert costs.step_s([], 1000, 0) == pytest.approx(2 * 8.0e9 * 1000 / (989e12 * 0.42))


def test_a_mixed_step_pays_its_overhead_once() -> None:
    costs = RooflineCosts(chip=H100, model=LLAMA_8B, overhead_s=0.003, parallel_overhead_s=0.001)
    chunk = Chunk(512, 0)
    apart = costs.step_s([chunk], 0, 0) + costs.step_s([], 8, 8000)
    assert costs.step_s([chunk], 8, 8000) == pytest.approx(apart - 0.003)


def test_parallel_chips_share_the_work() -> None:
    one = RooflineCosts(chip=H100, model=LLAMA_8B, overhead_s=0.0)
    eight = RooflineCosts(chip=H100, model=LLAMA_8B, parallel=8, overhead_s=0.0)
    assert eight.step_s([Chunk(4096, 0)], 0, 0) == pytest.approx(
        one.step_s([Chunk(4096, 0)], 0, 0) / 8
    )
    assert eight.step_s([], 4, 4000) == pytest.approx(one.step_s([], 4, 4000) / 8)


def test_a_mixture_of_experts_touches_more_weights_in_a_larger_batch() -> None:
    touched = [MIXTURE.touched_bytes(batch) for batch in (1, 2, 8, 64, 10_000)]
    assert touched == sorted(touched)
    assert touched[0] == pytest.approx(470e9 * 22 / 235)  # one sequence: the active share
    assert touched[-1] == pytest.approx(470e9)
    assert LLAMA_8B.touched_bytes(1) == LLAMA_8B.touched_bytes(64) == 16e9


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Chip(flops_per_s=0, bytes_per_s=1), "flops_per_s: must be > 0, got 0"),
        (
            lambda: MeasuredCosts(prefill_tokens_per_s=1, decode_step_s=-1),
            "decode_step_s: must be > 0, got -1",
        ),
        (
            lambda: MeasuredCosts(prefill_tokens_per_s=1, decode_step_s=1, context_s=-1),
            "context_s: must be >= 0, got -1",
        ),
        (
            lambda: RooflineCosts(chip=H100, model=LLAMA_8B, parallel=0),
            "parallel: must be > 0, got 0",
        ),
        (
            lambda: ModelShape(
                parameters=1,
                active_parameters=1,
                weight_bytes=1,
                layers=1,
                attention_width=1,
                kv_bytes_per_token=1,
                experts=8,
            ),
            "experts and experts_per_token belong together",
        ),
    ],
)
def test_what_cannot_be_is_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]
