"""A recorded log fed to a fresh machine gives the same actions, word for word."""

from dataclasses import replace
from functools import cache

import pytest

from orchestrator.lifecycle.parity import feed
from orchestrator.state.events import Heard, StoreHolds, Ticked
from orchestrator.topology.packaged import packaged_scenario
from orchestrator.virtual.faults.cases import generate, play
from orchestrator.virtual.faults.fault import OF_STORES, Kind
from orchestrator.virtual.faults.scenario import load_scenario
from orchestrator.virtual.gateway import IdWatch
from orchestrator.virtual.world import World
from tests.orchestrator.virtual.faults.troubled import (
    case_of,
    config_of,
    everything,
    gateways,
    recorded,
)

EVERYTHING = -1  # in place of a seed: the case that has a fault of every kind
STORES = -2  # likewise: one whose sites have stores, with faults of those
SEEDS = [EVERYTHING, STORES, 3, 7, 14, 21, 36, 40]


def lived(seed: int) -> World:
    if seed == STORES:
        return play(generate(load_scenario(packaged_scenario("faults-stores")), 4))
    return play(everything() if seed == EVERYTHING else case_of(seed))


kept = cache(lived)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_virtual_log_fed_again_gives_identical_actions(seed: int) -> None:
    world = kept(seed)
    requests = 0
    for gateway in gateways(world):
        found = feed(config_of(world, gateway), IdWatch, recorded(gateway))
        assert found.first_difference is None
        assert found.events == len(gateway.log)
        requests += found.requests
    assert requests == sum(client.gateway is not None for client in world.clients.values()) > 0


def test_everything_is_in_it() -> None:
    """Otherwise it would prove little."""
    world = kept(EVERYTHING)
    assert {fault.kind for fault in everything().faults} == set(Kind) - OF_STORES
    assert world.ended
    cores = [gateway.machine.ctx for gateway in gateways(world)]
    for kind in ("workers_lost", "resyncs", "duplicate_runs", "diverged_runs", "started_again"):
        assert sum(core.counts[kind] for core in cores) > 0, kind


def test_stores_are_in_it_too() -> None:
    world = kept(STORES)
    told = [entry.event for gateway in gateways(world) for entry in recorded(gateway)]
    assert sum(isinstance(event, StoreHolds) for event in told) > 1


def test_a_difference_is_noticed() -> None:
    """One word that was heard is left out; from there on the answers are others."""
    world = kept(EVERYTHING)
    gateway = world.gateways[0]
    entries = recorded(gateway)
    number = next(
        i for i, entry in enumerate(entries) if isinstance(entry.event, Heard) and entry.actions
    )
    entries[number] = replace(entries[number], event=Ticked())
    difference = feed(config_of(world, gateway), IdWatch, entries).first_difference
    assert difference is not None
    assert difference.number == number + 1


def outcome(world: World) -> list[tuple[object, ...]]:
    return [(c.name, c.ids, c.times, c.end, c.ended_at) for c in world.clients.values()]


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_a_case_always_goes_the_same_way(seed: int) -> None:
    """To the byte: two worlds, one after the other, share nothing, and no order is chance."""
    first, second = kept(seed), lived(seed)
    for one, other in zip(gateways(first), gateways(second), strict=True):
        assert repr(one.log) == repr(other.log)
    assert repr(outcome(first)) == repr(outcome(second))
    assert first.schedule.done == second.schedule.done
