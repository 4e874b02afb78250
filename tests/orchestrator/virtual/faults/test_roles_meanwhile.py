"""Workers are given other roles while requests run and things break: no promise is broken."""

from random import Random

import pytest

from orchestrator.lifecycle.parity import feed
from orchestrator.state.events import RolesTold
from orchestrator.virtual.faults.cases import READY_S, Case, begin, live
from orchestrator.virtual.faults.checks import check
from orchestrator.virtual.gateway import IdWatch
from orchestrator.virtual.world import World
from tests.orchestrator.virtual.faults.troubled import case_of, config_of, gateways, recorded
from workers.api.messages import Role

SEEDS = range(60)
CHANGES = 12
OVER_S = 10.0


def lived(case: Case) -> World:
    """The case's world, with a change of roles every second or so."""
    draw = Random(f"roles of {case.seed}")
    world = begin(case)
    for _ in range(CHANGES):
        at = READY_S + OVER_S * draw.random()
        worker = draw.choice(case.setup.workers).name
        roles = frozenset(role for role in Role if draw.random() < 0.5)
        world.schedule.at(at, change, world, worker, roles)
    live(world, case)
    return world


def change(world: World, worker: str, roles: frozenset[Role]) -> None:
    """Every gateway is told. Where legs go is no longer what the deployment says."""
    world.trouble(0.0)
    for gateway in world.gateways:
        if gateway.process.alive:
            for event in gateway.members.give_roles(worker, roles):
                gateway.tell(event)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_promise_is_broken(seed: int) -> None:
    world = lived(case_of(seed))
    assert check(world) == []
    for gateway in gateways(world):
        found = feed(config_of(world, gateway), IdWatch, recorded(gateway))
        assert found.first_difference is None


def test_roles_were_told() -> None:
    """Otherwise it would prove little."""
    world = lived(case_of(3))
    told = [
        entry.event
        for gateway in gateways(world)
        for entry in gateway.log
        if isinstance(entry.event, RolesTold)
    ]
    assert len(told) > CHANGES / 2
