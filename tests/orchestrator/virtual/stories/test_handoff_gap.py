"""PROTOCOL's table "Exposed gap at handoff": virtual time, both gateway sites, seven phases.

A gap is a wait of the client beyond the slower engine's step, from the second token on.
"""

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import pytest

from orchestrator.state.config import Deadlines
from orchestrator.state.events import HandoffMode, Heard
from tests.orchestrator.virtual.stories.story_world import (
    HAMI,
    M0,
    P0,
    R0,
    SHENZHEN,
    M,
    P,
    R,
    new_story,
    spec,
)
from workers.api.messages import Landed, Pause, Stop

PHASES = 7


@dataclass(frozen=True)
class Seen:
    """One handoff as the client and the relay saw it, in milliseconds."""

    gap: float
    told: float  # the gap in the request's summary
    relay_free: float  # main's KV landed to the relay told to pause or stop


@cache
def handoff(
    tau_r: int, tau_m: int, mode: HandoffMode, gateway: str, *, phase: int, jitter_s: float = 0.0
) -> Seen:
    story = new_story(
        (spec(P0, P), spec(R0, R, step_s=tau_r / 1000), spec(M0, M, step_s=tau_m / 1000)),
        handoff=mode,
        gateway_site=gateway,
        deadlines=Deadlines(),
        kv_s=0.6 + phase * tau_r / 1000 / PHASES,
        prompt=40,
        jitter_s=jitter_s,
        seed=phase,
    )
    raced_to_the_bound = mode is HandoffMode.CATCH_UP and tau_m > 0.9 * tau_r
    limit = 120 if raced_to_the_bound else 60
    client = story.ask(prompt=40, limit=limit)
    summary = story.served(client, limit=limit)
    story.check()
    assert summary.handoff_gap_s is not None
    assert summary.relay_tokens > 5
    waits = [b - a for a, b in pairwise(client.times[1:])]
    landed_at = next(
        at
        for at, event in story.events()
        if isinstance(event, Heard) and isinstance(event.message, Landed) and event.worker == M0
    )
    released_at = next(
        at
        for at, worker, message in story.sent()
        if worker == R0 and isinstance(message, Pause | Stop)
    )
    return Seen(
        gap=1000 * max(waits) - max(tau_r, tau_m),
        told=1000 * summary.handoff_gap_s,
        relay_free=1000 * (released_at - landed_at),
    )


def worst(tau_r: int, tau_m: int, mode: HandoffMode, gateway: str) -> float:
    return max(handoff(tau_r, tau_m, mode, gateway, phase=p).gap for p in range(PHASES))


def test_the_phases_are_spread_over_a_step() -> None:
    """Where in the relay's step main's KV lands decides the gap: it must not always be the same."""
    gaps = {
        round(handoff(35, 35, HandoffMode.ONE_SHOT, HAMI, phase=p).gap, 1) for p in range(PHASES)
    }
    assert len(gaps) > 3


RACES = [(50, 10), (50, 20), (50, 35), (35, 10), (35, 20)]


@pytest.mark.parametrize("gateway", [HAMI, SHENZHEN])
@pytest.mark.parametrize(("tau_r", "tau_m"), RACES)
def test_a_faster_main_catches_up_without_a_gap(tau_r: int, tau_m: int, gateway: str) -> None:
    assert worst(tau_r, tau_m, HandoffMode.AUTO, gateway) < 1


@pytest.mark.parametrize("gateway", [HAMI, SHENZHEN])
def test_auto_does_what_catch_up_does_in_a_race(gateway: str) -> None:
    for phase in range(PHASES):
        auto, catch_up = (
            handoff(50, 35, mode, gateway, phase=phase)
            for mode in (HandoffMode.AUTO, HandoffMode.CATCH_UP)
        )
        assert auto == catch_up


@pytest.mark.parametrize("gateway", [HAMI, SHENZHEN])
@pytest.mark.parametrize(("tau_r", "tau_m"), [(35, 35), (50, 46)])
def test_equal_speeds_are_paced(tau_r: int, tau_m: int, gateway: str) -> None:
    """What is left is the pace itself: a tenth of the relay's step."""
    assert worst(tau_r, tau_m, HandoffMode.AUTO, gateway) < 0.1 * tau_r + 0.5


@pytest.mark.parametrize("gateway", [HAMI, SHENZHEN])
@pytest.mark.parametrize(("tau_r", "tau_m"), [(20, 50), (50, 120)])
def test_a_slower_main_is_paced(tau_r: int, tau_m: int, gateway: str) -> None:
    assert worst(tau_r, tau_m, HandoffMode.AUTO, gateway) < 1


CUTS = [
    # tau_R, tau_M, the table's gap with the gateway at the prefill's and at main's site
    (35, 35, 83, 33),
    (20, 50, 98, 48),
]


@pytest.mark.parametrize(("tau_r", "tau_m", "far", "near"), CUTS)
@pytest.mark.parametrize("mode", [HandoffMode.CATCH_UP, HandoffMode.ONE_SHOT])
def test_without_pacing_a_cut_shows(
    tau_r: int, tau_m: int, far: int, near: int, mode: HandoffMode
) -> None:
    """Main hears the relay's last token a one-way trip later and computes the next two alone."""
    assert 25 < worst(tau_r, tau_m, mode, HAMI) <= far + 2
    assert worst(tau_r, tau_m, mode, SHENZHEN) <= near + 2


@pytest.mark.parametrize(("tau_r", "tau_m"), RACES)
def test_the_relay_is_free_soon_after_a_race_is_won(tau_r: int, tau_m: int) -> None:
    for gateway in (HAMI, SHENZHEN):
        for phase in range(PHASES):
            seen = handoff(tau_r, tau_m, HandoffMode.AUTO, gateway, phase=phase)
            assert seen.relay_free <= 210


def test_a_race_that_cannot_be_won_ends_at_the_bound() -> None:
    """tau_M = tau_R ends."""
    seen = handoff(35, 35, HandoffMode.CATCH_UP, HAMI, phase=0)
    assert seen.relay_free == pytest.approx(1000, abs=1)


@pytest.mark.parametrize("gateway", [HAMI, SHENZHEN])
@pytest.mark.parametrize(("tau_r", "tau_m"), [(35, 35), (20, 50), (50, 20)])
def test_jitter_shows_as_jitter_only(tau_r: int, tau_m: int, gateway: str) -> None:
    """30 ms of jitter turn feeds and tokens around on their way."""
    for phase in range(4):
        seen = handoff(tau_r, tau_m, HandoffMode.AUTO, gateway, phase=phase, jitter_s=0.03)
        assert seen.gap < 85


def test_the_summary_tells_the_gap() -> None:
    for mode in HandoffMode:
        seen = handoff(35, 35, mode, HAMI, phase=3)
        assert seen.told == pytest.approx(seen.gap, abs=1)
