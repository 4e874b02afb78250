"""What each fault does to a world, and that it ends."""

from dataclasses import replace

import pytest

from orchestrator.virtual.faults.cases import Case, play
from orchestrator.virtual.faults.checks import check
from orchestrator.virtual.faults.fault import OF_STORES, Fault, Kind, inject
from orchestrator.virtual.stores.store import StoreSpec
from tests.orchestrator.virtual.faults.troubled import everything
from tests.orchestrator.virtual.stories.story_world import (
    GATEWAY,
    HAMI,
    M0,
    M1,
    P0,
    R0,
    SHENZHEN,
    Story,
    new_story,
)
from workers.tiers.blocks import checksum


def do(story: Story, kind: Kind, target: str = "", seconds: float = 1.0, **more: object) -> None:
    fault = Fault(kind=kind, at=story.world.now, target=target, seconds=seconds, **more)  # type: ignore[arg-type]
    inject(story.world, fault)


@pytest.mark.parametrize("kind", [k for k in Kind if k not in {Kind.CLOCK, *OF_STORES}])
def test_a_fault_troubles_the_world_while_it_lasts(kind: Kind) -> None:
    story = new_story()
    [fault] = [f for f in everything().faults if f.kind is kind][:1]
    place = "0" if kind in (Kind.KILL_GATEWAY, Kind.FREEZE_GATEWAY) else fault.target
    inject(story.world, replace(fault, target=place, seconds=2.0))
    assert story.world.troubled_since == story.world.now
    assert story.world.troubled_until == story.world.now + 2.0
    story.wait(20.0)
    assert not story.world.network.accidents.any
    assert all(process.alive and not process.frozen for process in story.world.processes())
    story.served(story.ask())
    assert check(story.world) == []


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        (Kind.KILL_WORKER, M0),
        (Kind.KILL_AGENT, HAMI),
        (Kind.KILL_GATEWAY, "0"),
    ],
)
def test_what_is_killed_is_dead_until_it_is_started_again(kind: Kind, target: str) -> None:
    story = new_story()

    def alive() -> bool:
        owners = {M0: story.world.workers[M0], HAMI: story.world.agents[HAMI]}
        return owners.get(target, story.gateway).process.alive

    do(story, kind, target, 2.0)
    assert not alive()
    story.wait(1.9)
    assert not alive()
    story.wait(0.2)
    assert alive()
    do(story, kind, target, 1.0)
    do(story, kind, target, 0.1)
    story.wait(0.5)
    assert not alive(), "the dead are not killed again"
    story.wait(1.0)
    assert alive()


def test_of_accidents_under_way_the_worst_counts() -> None:
    story = new_story()
    accidents = story.world.network.accidents
    do(story, Kind.LOSS, seconds=4.0, amount=0.2)
    do(story, Kind.LOSS, seconds=2.0, amount=0.5)
    do(story, Kind.LOSS, seconds=6.0, amount=0.2)
    seen = []
    for _ in range(3):
        story.wait(1.8)
        seen.append(accidents.lost)
    assert seen == [0.5, 0.2, 0.2]
    story.wait(0.7)
    assert not accidents.any


def test_memory_is_taken_twice_and_given_back_to_the_life_it_was_taken_from() -> None:
    story = new_story()
    worker = story.world.workers[M0]
    free = worker.engine.kv_free_tokens()
    do(story, Kind.MEMORY, M0, 2.0, amount=0.5)
    do(story, Kind.MEMORY, M0, 4.0, amount=0.5)
    assert worker.engine.kv_free_tokens() == free / 4
    story.wait(2.1)
    assert worker.engine.kv_free_tokens() == 3 * free / 4
    do(story, Kind.KILL_WORKER, M0, 0.5)
    do(story, Kind.MEMORY, M0, 1.0, amount=0.5)  # nobody is there
    story.wait(1.0)
    do(story, Kind.MEMORY, M0, 9.0, amount=0.5)
    story.wait(3.0)
    assert worker.engine.kv_free_tokens() == free / 2, "what the first life owed is forgotten"


@pytest.mark.parametrize("kind", sorted(OF_STORES))
def test_a_fault_of_a_store_is_over_in_time(kind: Kind) -> None:
    story = new_story(stores=(StoreSpec(site=HAMI, pool="prefill"),))
    story.served(story.ask())
    (store,) = story.world.stores.values()

    def state() -> tuple[bool, bool, float]:
        return store.process.alive, store.process.frozen, store.late_s

    do(story, kind, store.spec.name, 2.0, amount=1.0)
    well = (True, False, 0.0)
    damaged = kind is Kind.DAMAGE_STORE
    assert (state() == well) is damaged
    story.wait(2.1)
    assert state() == well
    blocks = store.blocks._blocks
    right = [checksum(key, block.data) == block.crc for key, block in blocks.items()]
    assert right
    assert all(right) is not damaged
    story.served(story.ask("b"))
    assert check(story.world) == []


def test_a_partition_is_two_ways_and_the_other_one() -> None:
    story = new_story()
    network, workers = story.world.network, story.world.workers
    there, back = workers[P0].process, workers[M0].process
    do(story, Kind.ONE_WAY, HAMI, 1.0, other=SHENZHEN)
    assert network.cut_between(there, back) is not None
    assert network.cut_between(back, there) is None
    story.wait(1.1)
    assert network.cut_between(there, back) is None
    do(story, Kind.PARTITION, M0, 1.0, other=GATEWAY)
    gateway = story.gateway.process
    assert network.cut_between(gateway, back) is not None
    assert network.cut_between(back, gateway) is not None
    assert network.cut_between(gateway, workers[M1].process) is None
    story.wait(1.1)
    assert network.cut_between(gateway, back) is None


def test_a_reset_breaks_every_connection_of_a_process() -> None:
    story = new_story()
    process = story.world.workers[R0].process
    before = list(process.connections)
    assert before
    do(story, Kind.RESET, R0, 0.0)
    story.wait(0.1)
    assert not set(before) & set(process.connections)
    story.wait(2.0)
    assert process.connections, "the gateway came again"


def test_a_reset_may_spare_some_connections() -> None:
    story = new_story()
    process = story.world.workers[P0].process
    for name in "abcd":
        story.served(story.ask(name))
        before = list(process.connections)
        assert len(before) >= 2
        do(story, Kind.RESET, P0, 0.0, amount=0.5)
        story.wait(0.1)
        if 0 < len(set(before) & set(process.connections)) < len(before):
            break
        story.wait(2.0)
    else:
        pytest.fail("either all or none were spared")
    story.served(story.ask("e"))
    assert check(story.world) == []


@pytest.mark.parametrize("target", [M0, f"agent-{HAMI}", GATEWAY])
def test_a_clock_runs_at_its_rate_from_the_beginning(target: str) -> None:
    fault = Fault(kind=Kind.CLOCK, at=0.0, target=target, amount=1.02)
    whole = everything()
    world = play(Case(seed=1, setup=whole.setup, asks=whole.asks[:4], faults=(fault,)))
    [mine] = [process for process in world.processes() if process.name == target]
    others = [process for process in world.processes() if process.name != target]
    assert mine.time() == pytest.approx(1020.0 + 1.02 * world.now)
    assert all(other.time() == pytest.approx(world.now) for other in others)
    assert check(world) == []


def test_a_fault_says_what_it_is() -> None:
    fault = Fault(kind=Kind.ONE_WAY, at=1.25, target=M0, other=GATEWAY, seconds=6.0)
    assert str(fault) == f"1.250 one_way_partition {M0} to g0 for 6 s"
    loss = Fault(kind=Kind.LOSS, at=2.0, seconds=0.5, amount=0.2)
    assert str(loss) == "2.000 loss for 0.5 s, 0.2"
