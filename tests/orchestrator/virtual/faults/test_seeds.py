"""Seeds of the shipped scenario: no promise is broken, and who is failed was failed for a reason.

`pdd bench faults` runs thousands of them.
"""

from dataclasses import replace

import pytest

from orchestrator.state.actions import Fail, Failure, Finish
from orchestrator.virtual.client import Client
from orchestrator.virtual.faults.cases import play
from orchestrator.virtual.faults.checks import check
from orchestrator.virtual.world import World
from tests.orchestrator.virtual.faults.troubled import case_of, gateways

SEEDS = 40


def failures(world: World) -> list[tuple[Client, Fail]]:
    return [(c, c.end) for c in world.clients.values() if isinstance(c.end, Fail)]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_faults(seed: int) -> None:
    """Nobody is failed but for want of room or of workers; no deadline costs a request."""
    world = play(case_of(seed))
    assert check(world) == []
    lost = {g.name: g.machine.ctx.counts["workers_lost"] > 0 for g in gateways(world)}
    for client, end in failures(world):
        assert end.failure in (Failure.OVERLOADED, Failure.UNAVAILABLE), end
        if end.failure is Failure.UNAVAILABLE:
            assert client.gateway is not None
            # A gateway that has just begun has not heard of any worker yet.
            assert lost[client.gateway] or not client.gateway.endswith("/1")


def test_a_start_that_comes_late_into_another_life() -> None:
    """Seed 38193: it was lost and sent again, its stop was heard by a worker that then died."""
    assert check(play(case_of(38193))) == []


@pytest.mark.parametrize("seed", range(SEEDS, SEEDS + 15))
def test_without_faults_only_a_short_queue_fails_anybody(seed: int) -> None:
    case = replace(case_of(seed), faults=())
    world = play(case)
    assert check(world) == []
    for _, end in failures(world):
        assert end.failure is Failure.OVERLOADED
        assert case.setup.core.queue_limit == 2
    assert sum(g.machine.ctx.counts["workers_lost"] for g in gateways(world)) == 0
    ends = [client.end for client in world.clients.values()]
    assert all(end.summary.recoveries == 0 for end in ends if isinstance(end, Finish))
