"""A linear programme of two columns, by hand."""

import numpy as np
import pytest

from orchestrator.plan.programme.lp import LinearProgramme


def test_the_best_and_what_more_would_add() -> None:
    """Most of 3x + 2y with x + y at most 4, in thousand millions, x at most 1, and y at most 3z."""
    lp = LinearProgramme()
    x, y, z = (lp.column() for _ in range(3))
    both = lp.at_most(4e9, [(x, 1e9)])
    both(y, 1e9)
    lp.at_most(1.0, [(x, 1.0)])
    lp.at_most(2.0, [(z, 1.0)])
    lp.at_most(0.0, [(y, 1.0), (z, -3.0)])
    found = lp.maximise(np.array([3.0, 2.0, 0.0]))
    assert found is not None
    assert found.x[:2] == pytest.approx([1.0, 3.0])
    assert found.duals == pytest.approx((2e-9, 1.0, 0.0, 0.0))


def test_rows_that_are_zero() -> None:
    lp = LinearProgramme(2)
    lp.zero([(0, 1.0), (1, -2.0)])
    lp.at_most(6.0, [(0, 1.0)])
    found = lp.maximise(np.array([0.0, 1.0]))
    assert found is not None
    assert found.x == pytest.approx([6.0, 3.0])


def test_what_is_impossible_has_no_solution() -> None:
    lp = LinearProgramme(1)
    lp.at_most(-1.0, [(0, 1.0)])
    assert lp.maximise(np.array([1.0])) is None
