"""A whole world: its beginning, agents and their leases, gateways that die, its clients."""

from dataclasses import replace

import pytest

from orchestrator.lifecycle.phases import Phase
from orchestrator.state.actions import Finish
from orchestrator.state.events import Arrived, WorkerDraining, WorkerLost, WorkerReturned, WorkerUp
from orchestrator.virtual.process import ClockError
from orchestrator.virtual.setup import Ask
from tests.orchestrator.virtual.stories.story_world import (
    GATEWAY,
    HAMI,
    M0,
    M1,
    ONE_EACH,
    P0,
    R0,
    SHENZHEN,
    SPARES,
    M,
    Story,
    new_story,
    slow_main,
)
from workers.api.messages import Stop

LEASE_S = 8.0


def told(story: Story, kind: type) -> list[tuple[float, str]]:
    """When the core was told such news of workers, since the story began, and of whom."""
    return [(at, e.worker) for at, e in story.events() if isinstance(e, kind) and at > 1.5]


def lives(story: Story) -> dict[str, int]:
    return {name: worker.process.life for name, worker in story.world.workers.items()}


# ---------------------------------------------------------------- the beginning


def test_when_it_is_ready_every_worker_has_been_heard() -> None:
    story = new_story(gateways=2)
    for gateway in story.world.gateways:
        known = gateway.machine.ctx.world.workers
        assert set(known) == {worker.name for worker in SPARES}
        assert all(view.load is not None for view in known.values())
    assert story.world.quiet()
    story.check()


def test_nothing_happens_in_a_quiet_world_but_heartbeats_and_leases() -> None:
    story = new_story()
    began = len(story.gateway.log)
    story.wait(60.0)
    assert {type(entry.event).__name__ for entry in story.gateway.log[began:]} == {"Heard"}
    assert story.world.quiet()
    story.check()


# ---------------------------------------------------------------- agents and leases


def test_an_agent_that_is_back_in_time_costs_nothing() -> None:
    story = new_story()
    before = lives(story)
    story.world.trouble(3.0)
    story.world.kill_agent(HAMI, back_after=3.0)
    story.wait(30.0)
    assert told(story, WorkerDraining) == told(story, WorkerLost) == []
    assert lives(story) == before
    story.check()


@pytest.mark.parametrize("site", [HAMI, SHENZHEN])
def test_an_agent_gone_for_longer_than_its_lease_drains_its_site_only(site: str) -> None:
    story = new_story()
    before = lives(story)
    mine = {worker.name for worker in SPARES if worker.site == site}
    killed_at = story.world.now
    story.world.trouble(20.0)
    story.world.kill_agent(site, back_after=20.0)
    story.wait(19.0)
    drained = told(story, WorkerDraining)
    assert {worker for _, worker in drained} == mine
    assert all(LEASE_S - 3.0 < at - killed_at < LEASE_S + 0.1 for at, _ in drained)
    views = story.machine.ctx.world.workers
    assert {name for name, view in views.items() if view.draining} == mine
    assert told(story, WorkerReturned) == []
    story.wait(3.0)
    assert {worker for _, worker in told(story, WorkerReturned)} == mine
    assert not any(view.draining for view in views.values())
    assert lives(story) == before, "the new agent adopts what runs"
    assert told(story, WorkerLost) == []
    story.check()


def test_a_drained_site_gets_no_new_legs_and_its_running_ones_go_on() -> None:
    story = new_story(kv_s=0.3)
    first = story.ask(limit=400)
    story.reach(Phase.MAIN)
    assert story.worker_of(M) == M0
    story.world.trouble(30.0)
    story.world.kill_agent(SHENZHEN, back_after=30.0)
    story.wait(10.0)
    second = story.ask("b", route=None)
    sites = story.served(second).sites
    assert {worker.split("/")[0] for worker in sites.values()} == {HAMI}, "any role serves"
    assert isinstance(first.end, Finish)
    assert first.end.summary.sites["main"] == M0
    assert first.end.summary.recoveries == 0
    story.check()


def test_a_new_agent_adopts_a_worker_that_was_started_again_meanwhile() -> None:
    story = new_story()
    story.world.trouble(5.0)
    story.world.kill_agent(SHENZHEN, back_after=5.0)
    story.kill(M0, back_after=2.0)
    story.wait(30.0)
    assert lives(story)[M0] == 3, "one life, one death, one life"
    assert [worker for _, worker in told(story, WorkerLost)] == [M0]
    assert [worker for _, worker in told(story, WorkerUp)] == [M0]
    story.check()


def test_a_frozen_agent_is_as_good_as_dead_until_it_thaws() -> None:
    story = new_story()
    story.world.trouble(20.0)
    story.world.freeze(story.world.agents[HAMI].process, 20.0)
    story.wait(19.0)
    assert {worker for _, worker in told(story, WorkerDraining)} == {
        worker.name for worker in SPARES if worker.site == HAMI
    }
    story.wait(4.0)
    assert len(told(story, WorkerReturned)) == len(told(story, WorkerDraining)) == 4
    story.check()


# ---------------------------------------------------------------- gateways


@pytest.mark.parametrize("phase", [Phase.PREFILL, Phase.RELAY, Phase.RACE, Phase.MAIN])
def test_a_killed_gateways_legs_are_gone_within_the_lease(phase: Phase) -> None:
    story = new_story(slow_main(ONE_EACH), prefill_tokens_per_s=100.0, gateways=2)
    client = story.ask(limit=400)
    story.reach(phase)
    story.until(lambda: not story.all_idle())
    other = story.world.ask(
        Ask(at=0.0, arrived=replace(client.ask.arrived, request="b", limit=40), gateway=1)
    )
    story.world.trouble(0.0)
    killed_at = story.world.now
    story.world.kill_gateway(0, back_after=60.0)
    assert client.cut_off

    def freed(worker: str) -> bool:
        return story.world.workers[worker].core.legs_of("a") == 0

    story.wait(LEASE_S - 2.0)
    assert not all(freed(worker.name) for worker in ONE_EACH), "they are held for its return"
    story.until(lambda: all(freed(worker.name) for worker in ONE_EACH))
    # Its last renewal came up to a second before it died.
    assert story.world.now - killed_at < LEASE_S + 0.1
    story.settle()
    assert isinstance(other.end, Finish), "the other gateway's request is not touched"
    assert other.end.summary.recoveries == 0
    story.check()


def test_the_next_gateway_finds_the_workers_and_serves() -> None:
    story = new_story()
    first = story.ask(limit=400)
    story.reach(Phase.RELAY, tokens=3)
    story.world.trouble(2.0)
    story.world.kill_gateway(0, back_after=2.0)
    refused = story.ask("b")
    story.wait(6.0)
    assert story.gateway.name == "g0/2"
    assert {worker for _, worker in told(story, WorkerUp)} == {worker.name for worker in SPARES}
    assert lives(story) == dict.fromkeys(lives(story), 1)
    third = story.ask("c")
    story.served(third)
    assert (first.cut_off, refused.cut_off, third.cut_off) == (True, True, False)
    assert refused.gateway is None
    story.check()


def test_a_frozen_gateway_takes_a_request_when_it_thaws_and_its_client_has_as_much_longer() -> None:
    story = new_story()
    story.world.trouble(2.0)
    story.world.freeze_gateway(0, 2.0)
    client = story.ask()
    story.wait(1.9)
    assert client.gateway is None
    story.served(client)
    assert client.times[0] - client.asked_at > 2.0
    assert story.world.frozen_s == [2.0]
    story.check()


def test_a_partition_names_the_machine_of_a_gateway() -> None:
    """Of every life that runs on it."""
    story = new_story()
    story.world.trouble(10.0)
    story.world.kill_gateway(0, back_after=0.5)
    story.wait(4.0)
    story.cut(M0, GATEWAY, 60.0)
    story.wait(30.0)
    lost = told(story, WorkerLost)
    assert [worker for _, worker in lost] == [M0]
    story.check()


def test_what_is_left_for_a_lost_worker_goes_out_at_once() -> None:
    """Stops: they free memory, should its process live."""
    story = new_story()
    channel = story.gateway.channels[M0]
    channel.outbox.put(Stop(request="gone", epoch=1))
    channel.lost()
    story.wait(0.1)
    assert channel.outbox.empty
    story.check()


# ---------------------------------------------------------------- clients, clocks


def test_a_client_that_leaves_before_its_gateway_has_thawed() -> None:
    story = new_story()
    story.world.trouble(1.0)
    story.world.freeze_gateway(0, 1.0)
    story.ask()
    story.wait(0.5)
    story.world.leave("a")
    story.wait(3.0)
    assert story.all_idle()
    assert not story.machine.requests
    story.check()


def test_a_client_leaves_by_itself() -> None:
    story = new_story()
    arrived = Arrived(request="a", prompt_ids=tuple(range(3, 23)), limit=200)
    client = story.world.ask(Ask(at=0.0, arrived=arrived, leaves_after=1.0))
    story.wait(5.0)
    assert client.left
    assert client.end is None
    assert 0 < len(client.ids) < 30
    assert story.all_idle()
    story.check()


@pytest.mark.parametrize("rate", [0.98, 1.02])
def test_clocks_that_differ_break_nothing(rate: float) -> None:
    clocks = {
        name: ClockError(offset_s=1000.0 * rate, rate=rate)
        for name in (M0, R0, GATEWAY, f"agent-{SHENZHEN}")
    }
    story = new_story(clocks=clocks)
    client = story.ask(limit=100)
    assert story.served(client, limit=100).recoveries == 0
    assert story.gateway.process.time() == pytest.approx(1000.0 * rate + rate * story.world.now)
    first = story.gateway.log[0]
    assert first.now == pytest.approx(1000.0 * rate + rate * first.at)
    story.wait(60.0)
    assert told(story, WorkerDraining) == told(story, WorkerLost) == []
    story.check()


# ---------------------------------------------------------------- memory


def test_memory_that_something_else_takes_is_refused_and_given_back() -> None:
    story = new_story()
    main = story.world.workers[M0]
    taken = main.fill(1.0)
    assert taken is not None
    assert main.engine.kv_free_tokens() == 0
    assert main.fill(0.5) is None, "nothing is left"
    assert story.served(story.ask()).sites["main"] == M1
    main.give_back(taken)
    assert main.engine.kv_free_tokens() > 0
    story.check()


def test_a_worker_that_is_frozen_and_killed_and_back_again() -> None:
    story = new_story()
    client = story.ask(limit=100)
    story.reach(Phase.MAIN)
    story.freeze(M0, 10.0)
    story.wait(1.0)
    story.kill(M0, back_after=2.0)
    story.wait(3.0)
    assert story.world.workers[M0].process.alive
    assert not story.world.workers[M0].process.frozen
    story.wait(8.0)  # past the thaw of its earlier life
    story.served(client, limit=100)
    assert told(story, WorkerLost)[0][1] == M0
    story.check()


def test_it_knows_who_is_where() -> None:
    story = new_story(ONE_EACH)
    assert [process.name for process in story.world.processes()] == [
        P0,
        R0,
        M0,
        f"agent-{HAMI}",
        f"agent-{SHENZHEN}",
        GATEWAY,
    ]
