"""Queues against what is known exactly: M/M/1, M/M/2, M/D/1, and limits."""

from math import exp, inf

import pytest

from orchestrator.plan.programme.queues import (
    averaged,
    chance_within,
    erlang_c,
    mean_residual_s,
    mean_wait_s,
    normal_below,
    step_variance,
)


@pytest.mark.parametrize("load", [0.1, 0.5, 0.9])
def test_the_chance_to_wait(load: float) -> None:
    assert erlang_c(1, load) == pytest.approx(load)
    assert erlang_c(2, load) == pytest.approx(2 * load**2 / (1 + load))
    assert erlang_c(50, load) < erlang_c(2, load)


@pytest.mark.parametrize("load", [0.1, 0.5, 0.9])
def test_mean_waits_of_one_server(load: float) -> None:
    exponential, constant = (mean_wait_s(1, load, 3.0, v) for v in (1.0, 0.5))
    assert exponential == pytest.approx(3.0 * load / (1 - load))
    assert constant == pytest.approx(exponential / 2)
    # Pollaczek and Khinchine say the same: E[s2] is 2 s2 or s2.
    rate = load / 3.0
    assert mean_residual_s(rate * 2 * 3.0**2) / (1 - load) == pytest.approx(exponential)
    assert mean_residual_s(rate * 3.0**2) / (1 - load) == pytest.approx(constant)


def test_how_long_waits_are_spread() -> None:
    """In M/M/1 a wait is longer than t with the chance load e^-(mu - lambda) t."""
    for limit_s in (0.0, 1.0, 10.0):
        late = 0.8 * exp(-(1 - 0.8) * limit_s)
        assert chance_within(limit_s, 1, 0.8, 1.0, 1.0) == pytest.approx(1 - late)
    assert chance_within(-0.1, 1, 0.8, 1.0, 1.0) == 0.0
    assert chance_within(0.0, 1, 0.8, 0.0, 1.0) == 1.0  # who takes no time keeps nobody waiting


def test_who_is_overloaded_waits_for_ever() -> None:
    assert mean_wait_s(3, 1.0, 1.0, 1.0) == inf
    assert chance_within(1e9, 3, 1.0, 1.0, 1.0) == 0.0


def test_a_batch_of_steps_that_do_not_grow_varies_as_poisson_does() -> None:
    """Its variance is its mean, so a step's is that by the square of what one more adds."""
    assert step_variance(50.0, 1e-3, 0.0, 1) == pytest.approx(50 * 1e-6)
    assert step_variance(50.0, 1e-3, 0.5, 4) == pytest.approx(2 * 50 * 1e-6 / 4)


def test_a_mean_varies_less_than_what_it_is_of() -> None:
    assert averaged(2.0, 0.0) == 2.0
    assert averaged(2.0, 1e-3) == pytest.approx(2.0, rel=1e-3)
    assert averaged(2.0, 100.0) == pytest.approx(2.0 * 2 / 100, rel=0.02)
    assert averaged(2.0, 1.0) == pytest.approx(2.0 * 2 * exp(-1))


def test_below_a_limit() -> None:
    assert normal_below(1.0, 1.0, 0.5) == pytest.approx(0.5)
    assert normal_below(1.0 + 0.5 * 1.2815516, 1.0, 0.5) == pytest.approx(0.9)
    assert (normal_below(1.0, 1.0, 0.0), normal_below(0.9, 1.0, 0.0)) == (1.0, 0.0)
