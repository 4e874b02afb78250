"""Shortest remaining first, and what ageing and weights do to it."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transport.stream.schedule import (
    AGEING_SHARE,
    UNMEASURED_LINE_BYTES_PER_S,
    ageing_bytes_per_s,
    rank,
)

SIZES = st.integers(0, 10**12)  # whole bytes
TIMES = st.floats(0, 1e5, allow_subnormal=False)
WEIGHTS = st.floats(0.01, 100)
AGEINGS = st.floats(1e3, 1e9)
# On a busy machine drawing six numbers may take long.
slow_is_fine = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def test_by_hand() -> None:
    assert rank(1000, 0, 1, 10) == 1000
    assert rank(1000, 30, 1, 10) == 700
    assert rank(1000, 30, 4, 10) == -50


def test_the_shortest_is_first_whatever_was_sent_of_it() -> None:
    assert rank(300, 5, 1, 10) < rank(301, 5, 1, 10)


def test_ageing_follows_the_line() -> None:
    assert ageing_bytes_per_s(2.5e9) == AGEING_SHARE * 2.5e9
    assert 0.004 <= AGEING_SHARE <= 0.012  # the range that was found good
    assert ageing_bytes_per_s(None) == ageing_bytes_per_s(UNMEASURED_LINE_BYTES_PER_S) > 0


@slow_is_fine
@given(SIZES, WEIGHTS, AGEINGS, SIZES, WEIGHTS, TIMES)
def test_nobody_starves(
    size: float, weight: float, ageing: float, other: float, other_weight: float, age: float
) -> None:
    """Who begins size / (weight x ageing) later, or still later, never overtakes."""
    later_s = size / (weight * ageing)
    mine = rank(size, age + later_s, weight, ageing)
    theirs = rank(other, age, other_weight, ageing)
    assert mine <= theirs + 1e-9 * (size / weight + ageing * (age + later_s))


@slow_is_fine
@given(SIZES, SIZES, WEIGHTS, WEIGHTS, TIMES, TIMES, TIMES)
def test_who_waits_keeps_the_distance(
    size: float, other: float, weight: float, other_weight: float, a: float, b: float, wait: float
) -> None:
    """What lets ranks of different moments stay in one heap."""
    ageing = 2e7

    def distance(after: float) -> float:
        return rank(size, a + after, weight, ageing) - rank(other, b + after, other_weight, ageing)

    scale = size / weight + other / other_weight + ageing * (a + b + wait)
    assert distance(wait) == pytest.approx(distance(0), abs=1e-9 * scale)


@slow_is_fine
@given(SIZES, TIMES, WEIGHTS, st.floats(0.01, 1), st.floats(0, 100))
def test_being_served_never_makes_it_worse(
    size: float, age: float, weight: float, left: float, later: float
) -> None:
    assert rank(size * left, age + later, weight, 2e7) <= rank(size, age, weight, 2e7)
