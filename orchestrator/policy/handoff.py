"""When relay decode ends: race, pace or cut (PROTOCOL, "How catch-up ends"). Pure numbers."""

from enum import StrEnum
from typing import NamedTuple

from orchestrator.state.events import HandoffMode

# Main must be at least a tenth faster than the relay, else a race never ends.
RACE_RATIO = 0.9
# Text is released a tenth slower than the relay decodes, so that a lead builds up.
PACE_RATIO = 1.1


class Verdict(StrEnum):
    """What to do about a relay whose main has landed."""

    GO_ON = "go on"
    CUT = "cut"


GO_ON, CUT = Verdict


class Handover(NamedTuple):
    """All that the decision looks at. Seconds, except `lag` (tokens).

    `lag`: the relay's newest accepted index minus the newest index heard from main; `lead_s`: how
    long the client can be served from accepted tokens that were not released yet; `bound_s`: how
    long a race may last, `bound_passed`: whether it has.
    """

    mode: HandoffMode
    main_heard: bool
    lag: int
    relay_step_s: float
    main_step_s: float
    rtt_s: float
    lead_s: float
    bound_s: float
    bound_passed: bool
    relay_overloaded: bool


def main_is_faster(relay_step_s: float, main_step_s: float) -> bool:
    """Whether a race can be won at all."""
    return main_step_s < RACE_RATIO * relay_step_s


def pace_s(relay_step_s: float, main_step_s: float) -> float:
    """Seconds between two released tokens while a lead is built."""
    return max(main_step_s, PACE_RATIO * relay_step_s)


def wanted_lead_s(relay_step_s: float, main_step_s: float, rtt_s: float) -> float:
    """The lead that covers a cut: the relay's last token to main, its step, and the next one."""
    return max(0.0, rtt_s + 2 * main_step_s - pace_s(relay_step_s, main_step_s))


def decide(view: Handover) -> Verdict:
    """Whether to pause the relay now."""
    if not view.main_heard:
        return GO_ON
    return RULES[view.mode](view)


def _one_shot(view: Handover) -> Verdict:
    return CUT


def _catch_up(view: Handover) -> Verdict:
    return CUT if view.bound_passed else GO_ON


def _auto(view: Handover) -> Verdict:
    if view.relay_overloaded or view.bound_passed:
        return CUT
    if main_is_faster(view.relay_step_s, view.main_step_s):
        gain_per_s = 1 / view.main_step_s - 1 / view.relay_step_s
        if view.lag / gain_per_s <= view.bound_s:
            return GO_ON
    wanted = wanted_lead_s(view.relay_step_s, view.main_step_s, view.rtt_s)
    return CUT if view.lead_s >= wanted else GO_ON


RULES = {
    HandoffMode.ONE_SHOT: _one_shot,
    HandoffMode.CATCH_UP: _catch_up,
    HandoffMode.AUTO: _auto,
}
