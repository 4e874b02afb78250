"""DESIGN's rule for equal tokens, case by case."""

import pytest

from benchmarks.equality import NEAR_TIE, Verdict, compare

A = [5, 6, 7, 8]


@pytest.mark.parametrize(
    ("ids", "margins", "verdict"),
    [
        (A, None, Verdict.EQUAL),
        (A, [0.0] * 4, Verdict.EQUAL),
        ([5, 6, 9, 8], [9, 9, NEAR_TIE, 9], Verdict.NEAR_TIE),
        ([5, 6, 9, 8], [9, 9, NEAR_TIE + 1e-6, 9], Verdict.DIFFERENT),
        # Only the first difference counts: after it the two runs have other histories.
        ([5, 9, 1, 1], [9, 0.01, 9, 9], Verdict.NEAR_TIE),
        ([5, 9, 1, 1], [0.01, 9, 0.01, 0.01], Verdict.DIFFERENT),
        ([5, 6, 9, 8], None, Verdict.DIFFERENT),
        ([5, 6, 9, 8], [9, 9], Verdict.DIFFERENT),
        # A run that is cut short or goes on is not equal, however near its ties.
        ([5, 6, 7], [0.0] * 4, Verdict.DIFFERENT),
        ([5, 6, 7, 8, 9], [0.0] * 4, Verdict.DIFFERENT),
        ([], [0.0] * 4, Verdict.DIFFERENT),
        # ... but after a near tie a run may well end elsewhere.
        ([5, 6, 9], [9, 9, 0.01, 9], Verdict.NEAR_TIE),
    ],
)
def test_the_rule(ids: list[int], margins: list[float] | None, verdict: Verdict) -> None:
    assert compare(ids, A, margins) is verdict


def test_two_empty_runs_are_equal() -> None:
    assert compare([], [], None) is Verdict.EQUAL
