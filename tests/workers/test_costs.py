"""The cost model against its own formula, worked by hand."""

import pytest

from workers.costs import Chunk, MeasuredCosts


def test_measured_costs_are_what_was_measured() -> None:
    costs = MeasuredCosts(
        prefill_tokens_per_s=1000.0, decode_step_s=0.02, context_s=1e-6, sequence_s=1e-4
    )
    assert costs.step_s([Chunk(300, 0), Chunk(200, 64)], 0, 0) == pytest.approx(0.5)
    assert costs.step_s([], 8, 4000) == pytest.approx(0.02 + 8e-4 + 4e-3)
    assert costs.step_s([Chunk(300, 0)], 8, 4000) == pytest.approx(0.3 + 0.0248)
    assert costs.step_s([], 0, 0) == 0.0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"prefill_tokens_per_s": 0}, "prefill_tokens_per_s: must be > 0, got 0"),
        ({"decode_step_s": -1}, "decode_step_s: must be > 0, got -1"),
        ({"context_s": -1}, "context_s: must be >= 0, got -1"),
        ({"sequence_s": float("nan")}, "sequence_s: must be >= 0, got nan"),
    ],
)
def test_impossible_costs_are_refused_by_name(change: dict[str, float], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        MeasuredCosts(**{"prefill_tokens_per_s": 1.0, "decode_step_s": 1.0} | change)
