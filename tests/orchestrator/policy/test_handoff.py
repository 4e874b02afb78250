"""When relay decode ends: every rule of the three modes, and the numbers where they turn."""

import math

import pytest

from orchestrator.policy.handoff import (
    Handover,
    Verdict,
    decide,
    main_is_faster,
    pace_s,
    wanted_lead_s,
)
from orchestrator.state.events import HandoffMode

AUTO, CATCH_UP, ONE_SHOT = HandoffMode.AUTO, HandoffMode.CATCH_UP, HandoffMode.ONE_SHOT


def view(mode: HandoffMode, **changes: object) -> Handover:
    """A race that is well under way: main is heard, twice as fast, two tokens behind."""
    fields: dict[str, object] = {
        "mode": mode,
        "main_heard": True,
        "lag": 2,
        "relay_step_s": 0.05,
        "main_step_s": 0.025,
        "rtt_s": 0.05,
        "lead_s": 0.0,
        "bound_s": 1.0,
        "bound_passed": False,
        "relay_overloaded": False,
    }
    return Handover(**{**fields, **changes})  # type: ignore[arg-type]


SLOW_MAIN = {"relay_step_s": 0.02, "main_step_s": 0.05}  # wants 50 + 100 - 50 = 100 ms of lead
ROWS = [
    # mode, what differs from the view above, verdict
    (ONE_SHOT, {}, Verdict.CUT),
    (CATCH_UP, {}, Verdict.GO_ON),
    (CATCH_UP, {"lag": 10_000}, Verdict.GO_ON),
    (CATCH_UP, {"relay_overloaded": True}, Verdict.GO_ON),
    (CATCH_UP, {"lead_s": 10.0}, Verdict.GO_ON),
    (CATCH_UP, {"bound_passed": True}, Verdict.CUT),
    (AUTO, {}, Verdict.GO_ON),
    (AUTO, {"relay_overloaded": True}, Verdict.CUT),
    (AUTO, {"bound_passed": True}, Verdict.CUT),
    # main gains 20 tokens a second: within the bound of 1 s it catches up with 20, not with 21
    (AUTO, {"lag": 20, "lead_s": 10.0}, Verdict.GO_ON),
    (AUTO, {"lag": 21, "lead_s": 10.0}, Verdict.CUT),
    (AUTO, {"lag": 21, "lead_s": 0.0}, Verdict.GO_ON),
    (AUTO, {"lag": 21, "bound_s": 1.1}, Verdict.GO_ON),
    # no race is won: pace until the lead covers the cut
    (AUTO, {**SLOW_MAIN, "lead_s": 0.0999}, Verdict.GO_ON),
    (AUTO, {**SLOW_MAIN, "lead_s": 0.1001}, Verdict.CUT),
    (AUTO, {"relay_step_s": 0.035, "main_step_s": 0.035, "lead_s": 0.081}, Verdict.GO_ON),
    (AUTO, {"relay_step_s": 0.035, "main_step_s": 0.035, "lead_s": 0.082}, Verdict.CUT),
]


@pytest.mark.parametrize(("mode", "changes", "verdict"), ROWS)
def test_verdict(mode: HandoffMode, changes: dict[str, object], verdict: Verdict) -> None:
    assert decide(view(mode, **changes)) is verdict


@pytest.mark.parametrize("mode", HandoffMode)
def test_the_relay_is_never_cut_before_main_was_heard(mode: HandoffMode) -> None:
    eager = view(mode, main_heard=False, bound_passed=True, relay_overloaded=True, lead_s=9.0)
    assert decide(eager) is Verdict.GO_ON


def test_main_must_be_a_tenth_faster_to_race() -> None:
    assert main_is_faster(0.100, 0.0899)
    assert not main_is_faster(0.100, 0.0901)
    assert not main_is_faster(0.035, 0.035)


def test_equal_speeds_are_paced_a_tenth_slower_than_the_relay() -> None:
    assert pace_s(0.035, 0.035) == pytest.approx(0.0385)


def test_a_slow_main_sets_the_pace() -> None:
    assert pace_s(0.02, 0.05) == 0.05


def test_the_lead_covers_a_round_trip_and_two_of_mains_steps_less_one_pace() -> None:
    assert wanted_lead_s(0.02, 0.05, 0.05) == pytest.approx(0.05 + 2 * 0.05 - 0.05)
    assert wanted_lead_s(0.035, 0.035, 0.05) == pytest.approx(0.05 + 2 * 0.035 - 0.0385)


def test_a_slow_relay_next_to_the_gateway_needs_no_lead() -> None:
    assert wanted_lead_s(0.2, 0.05, 0.0) == 0.0
    assert math.isclose(pace_s(0.2, 0.05), 0.22)
