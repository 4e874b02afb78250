"""Lines that are cut, workers and sites that are lost: the machine's own recovery deals with it."""

from dataclasses import replace

import pytest

from orchestrator.replay.driver import Replay
from orchestrator.replay.faults import Fault, LineFault, WorkersLost
from orchestrator.state.actions import Finish
from orchestrator.state.events import Route
from tests.orchestrator.replay.rig import deployment, replayed, workload


def lived(*faults: Fault, route: Route | None = None, every_step: bool = False) -> Replay:
    setup = replace(deployment(), faults=faults, every_step=every_step, block_tokens=16)
    return replayed(setup, workload(60, 3, route=route))


def ends(replay: Replay) -> list[float]:
    found = []
    for outcome in replay.outcomes.values():
        assert isinstance(outcome.end, Finish), outcome
        assert outcome.tokens == outcome.end.summary.completion_tokens
        assert outcome.last_at is not None
        found.append(outcome.last_at)
    return found


@pytest.mark.parametrize("route", [Route.DIRECT, Route.RELAY])
def test_a_cut_line_delays_and_nothing_else(route: Route) -> None:
    calm = ends(lived(route=route))
    cut = ends(lived(LineFault(between=("near", "far"), at=4.0, until=6.0), route=route))
    assert all(a == b for a, b in zip(cut, calm, strict=True) if b < 4.0)
    assert min(calm) < 4.0
    # A relay decodes meanwhile.
    late = sum(a > b + 0.5 for a, b in zip(cut, calm, strict=True))
    assert late > 5 if route is Route.DIRECT else late < 5
    assert max(cut) < max(calm) + 4.0


def test_a_weak_line_makes_transfers_longer() -> None:
    calm = ends(lived(route=Route.DIRECT))
    weak = LineFault(between=("near", "far"), at=2.0, until=8.0, factor=0.25)
    slow = ends(lived(weak, route=Route.DIRECT))
    assert sum(slow) > sum(calm) + 5.0


@pytest.mark.parametrize("name", ["near/relay/0", "far/main/1", "near/prefill/0", "near/relay"])
@pytest.mark.parametrize("route", [Route.RELAY, None])
def test_lost_workers_cost_no_request(name: str, route: Route | None) -> None:
    replay = lived(WorkersLost(name=name, at=3.0, until=6.0), route=route)
    ends(replay)
    recovered = [
        outcome.end.summary.recoveries
        for outcome in replay.outcomes.values()
        if isinstance(outcome.end, Finish)
    ]
    assert sum(recovered) > 0 or route is None


def test_a_site_that_is_lost_for_ever() -> None:
    replay = lived(WorkersLost(name="far", at=3.0))
    assert len(ends(replay)) == 60
    assert all(worker.dead == name.startswith("far") for name, worker in replay.workers.items())


def test_a_worker_that_returns_serves_again() -> None:
    replay = lived(WorkersLost(name="near/prefill", at=3.0, until=5.0))
    assert len(ends(replay)) == 60


@pytest.mark.parametrize("route", [Route.DIRECT, Route.LOCAL])
@pytest.mark.parametrize("lost", ["far", "near/main/0", "far/main/0", "near/prefill/1"])
def test_faults_are_the_same_step_by_step(route: Route, lost: str) -> None:
    """What a worker that dies has decoded is known, whether it said so before or not."""
    faults = (
        LineFault(between=("near", "far"), at=2.0, until=3.0),
        WorkersLost(name=lost, at=5.0, until=7.0),
    )
    fast, slow = lived(*faults, route=route), lived(*faults, route=route, every_step=True)
    assert ends(fast) == pytest.approx(ends(slow), abs=1e-6)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (LineFault(between=("near", "moon"), at=1.0, until=2.0), "no line between near and moon"),
        (WorkersLost(name="nobody", at=1.0), "no worker, pool or site nobody"),
    ],
)
def test_faults_of_what_is_not_there(fault: Fault, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        lived(fault)


def test_impossible_faults() -> None:
    with pytest.raises(ValueError, match="from 3 to 2 s"):
        LineFault(between=("a", "b"), at=3.0, until=2.0)
    with pytest.raises(ValueError, match="lost from 3 to 2"):
        WorkersLost(name="a", at=3.0, until=2.0)


def test_relays_are_paused_when_they_would_be_step_by_step() -> None:
    """A worker's new speed asks for another lead, of relays too that have nothing urgent to say."""
    paused: list[list[tuple[int, float]]] = []
    for every_step in (False, True):
        outcomes = lived(route=Route.RELAY, every_step=every_step).outcomes.values()
        found = [o.end.summary for o in outcomes if isinstance(o.end, Finish)]
        paused.append([(s.relay_tokens, s.relay_s or 0.0) for s in found])
    fast, slow = paused
    assert [tokens for tokens, _ in fast] == [tokens for tokens, _ in slow]
    assert [s for _, s in fast] == pytest.approx([s for _, s in slow], abs=1e-6)
