"""The small parts of a request: how a leg's speed is measured, what is kept of releases."""

import pytest

from orchestrator.lifecycle.request import NEAR_HANDOFF, TRUSTED_GAPS, Account, StepClock


def test_a_step_is_the_time_between_sampled_tokens() -> None:
    clock = StepClock()
    clock.note(5, 6, 10.0)
    assert clock.step_s is None
    clock.note(6, 7, 10.05)
    assert clock.step_s == pytest.approx(0.05)
    clock.note(7, 9, 10.15)  # two tokens in one run
    assert clock.step_s == pytest.approx(0.05)


def test_law_that_a_leg_took_over_in_one_pass_is_no_step() -> None:
    clock = StepClock()
    clock.note(5, 6, 10.0)
    clock.note(6, 7, 10.05)
    clock.note(9, 10, 10.052)  # it was fed up to 9
    assert clock.step_s == pytest.approx(0.05)
    clock.note(10, 11, 10.102)
    assert clock.step_s == pytest.approx(0.05)


def test_a_step_is_trusted_once_it_was_seen_often_enough() -> None:
    clock = StepClock()
    for i in range(TRUSTED_GAPS):
        clock.note(i, i + 1, i * 0.05)
        assert clock.trusted_s is None
    clock.note(TRUSTED_GAPS, TRUSTED_GAPS + 1, TRUSTED_GAPS * 0.05)
    assert clock.trusted_s == pytest.approx(0.05)


def test_the_first_steps_are_a_mean_the_later_ones_move() -> None:
    clock = StepClock()
    at = 0.0
    for i, gap in enumerate((0.0, 0.02, 0.04, 0.06)):
        at += gap
        clock.note(i, i + 1, at)
    assert clock.step_s == pytest.approx(0.04)
    for i in range(4, 60):
        at += 0.1
        clock.note(i, i + 1, at)
    assert clock.step_s == pytest.approx(0.1, rel=1e-3)


def test_only_releases_near_the_handoff_are_kept() -> None:
    account = Account()
    for end in range(1, 101):
        account.note_release(end, float(end))
    account.handoff_index = 103
    for end in range(101, 300):
        account.note_release(end, float(end))
    ends = [end for end, _ in account.releases]
    assert ends[0] <= 103 - NEAR_HANDOFF + 1
    assert ends == list(range(ends[0], 103 + NEAR_HANDOFF + 2))


def test_a_burst_that_ends_a_wait_at_the_handoff_is_kept() -> None:
    account = Account()
    account.note_release(10, 1.0)
    account.handoff_index = 10
    account.note_release(60, 9.0)
    assert account.releases == [(10, 1.0), (60, 9.0)]
