"""Seeds of the scenario with stores: whatever they do, no promise is broken, and they are used."""

from collections import Counter
from functools import cache

import pytest

from orchestrator.topology.packaged import packaged_scenario
from orchestrator.virtual.faults.cases import generate, play
from orchestrator.virtual.faults.checks import check
from orchestrator.virtual.faults.scenario import Scenario, load_scenario
from orchestrator.virtual.world import World

SEEDS = 20


@cache
def scenario() -> Scenario:
    return load_scenario(packaged_scenario("faults-stores"))


@cache
def played(seed: int) -> World:
    return play(generate(scenario(), seed))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_faults_of_stores(seed: int) -> None:
    assert check(played(seed)) == []


def test_what_the_seeds_bring_about() -> None:
    """Blocks are loaded; some stores are away, some loads cut, some too slow to be of use."""
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        for worker in played(seed).workers.values():
            seen.update(worker.storage.counts)
    assert min(seen[what] for what in ("saved_blocks", "loaded_blocks_dram", "known")) > 25
    assert min(seen[what] for what in ("loads_cut", "stores_away", "not_worth_loading")) > 0
