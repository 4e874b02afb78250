"""Whole stories on the virtual deployment: routes, losses on the way, ends, numerics.

Each ends with the same tokens as an undisturbed run (`Deployment.check`), every leg stopped, every
booking returned and no KV held anywhere.
"""

from dataclasses import replace

import pytest

from orchestrator.lifecycle.phases import Phase
from orchestrator.state.actions import Finish
from orchestrator.state.events import HandoffMode, Route
from tests.orchestrator.lifecycle.story import (
    SLOW_MAIN,
    SPARES,
    M,
    MakeWorld,
    P,
    ask,
    drop_once,
    reach,
    served,
    waits,
)
from tests.orchestrator.lifecycle.virtual import TWO_SITES, Client, Spec
from workers.api.messages import Feed, Landed, SendKV, Start, TokenRun

# ---------------------------------------------------------------- routes


@pytest.mark.parametrize("route", Route)
@pytest.mark.parametrize("handoff", HandoffMode)
def test_every_route_and_mode(make_world: MakeWorld, route: Route, handoff: HandoffMode) -> None:
    world = make_world(TWO_SITES, handoff=handoff)
    client = ask(world, route=route)
    served(world, client)
    assert client.end.summary.route is route
    assert (client.end.summary.relay_tokens > 0) is (route is Route.RELAY)


def test_local_on_one_worker_moves_no_kv(make_world: MakeWorld) -> None:
    world = make_world((Spec("x0", "hami", frozenset({P, M})),))
    client = ask(world, route=Route.LOCAL)
    served(world, client)
    assert client.end.summary.sites == {"prefill": "x0", "main": "x0"}
    assert client.end.summary.kv_bytes_wire == 0


def test_local_on_two_workers_of_a_site(make_world: MakeWorld) -> None:
    specs = (Spec("p0", "hami", frozenset({P})), Spec("m0", "hami", frozenset({M})))
    world = make_world(specs)
    client = ask(world, route=Route.LOCAL)
    served(world, client)
    assert client.end.summary.sites == {"prefill": "p0", "main": "m0"}
    assert client.end.summary.kv_bytes_wire > 0


def test_a_full_hit_at_main_needs_no_relay(make_world: MakeWorld) -> None:
    world = make_world()
    served(world, ask(world, prompt=64))
    again = world.clients["b"] = Client(replace(world.clients["a"].spec, request="b"))
    world.tell(again.spec)
    world.run()
    assert isinstance(again.end, Finish)
    assert again.end.summary.relay_tokens == 0
    assert again.ids == world.clients["a"].ids


# ---------------------------------------------------------------- what is lost on the way


@pytest.mark.parametrize("nth", [0, 1, 2, 5])
@pytest.mark.parametrize("worker", ["p0", "r0", "m0"])
def test_a_lost_token(make_world: MakeWorld, worker: str, nth: int) -> None:
    world = make_world()
    drop_once(world, TokenRun, worker, nth=nth)
    client = ask(world)
    served(world, client)
    assert waits(client) < 1.3


@pytest.mark.parametrize("nth", [0, 1, 2, 20])
def test_a_lost_feed(make_world: MakeWorld, nth: int) -> None:
    world = make_world(SLOW_MAIN)
    drop_once(world, Feed, "m0", nth=nth)
    client = ask(world)
    served(world, client)
    assert waits(client) < 0.2


def test_the_relays_lost_feed_of_token_0(make_world: MakeWorld) -> None:
    world = make_world()
    drop_once(world, Feed, "r0")
    served(world, ask(world))


@pytest.mark.parametrize("kind", [Start, SendKV, Landed])
@pytest.mark.parametrize("worker", ["p0", "r0", "m0"])
def test_control_arrives_late_and_in_another_order(
    make_world: MakeWorld, kind: type, worker: str
) -> None:
    """KV, feed and sendkv before start; tokens before landed."""
    world = make_world(kv_s=0.05)
    world.drop = lambda where, message: where == worker and isinstance(message, kind)
    served(world, ask(world))


def test_stop_before_start(make_world: MakeWorld) -> None:
    world = make_world()
    world.drop = lambda where, message: isinstance(message, Start)
    ask(world)
    world.leave("a")
    world.run(until=5.0)
    assert all(box.core.idle for box in world.boxes.values())


def test_everything_twice_in_any_order(make_world: MakeWorld) -> None:
    world = make_world(repeat=1.0, jitter_s=0.2, seed=3)
    served(world, ask(world))


# ---------------------------------------------------------------- the end


@pytest.mark.parametrize("phase", [Phase.PREFILL, Phase.RELAY, Phase.RACE, Phase.CUT, Phase.MAIN])
def test_client_gone_all_kv_is_free_within_a_second(make_world: MakeWorld, phase: Phase) -> None:
    world = make_world(SLOW_MAIN, handoff=HandoffMode.ONE_SHOT, prefill_tokens_per_s=100.0)
    ask(world, prompt=60)
    reach(world, phase)
    world.leave("a")
    world.run(until=world.now + 1.0)
    assert [box.engine.kv_held_tokens() for box in world.boxes.values()] == [0] * len(world.boxes)
    assert all(box.core.idle for box in world.boxes.values())


def test_client_gone_main_wait(make_world: MakeWorld) -> None:
    world = make_world(kv_s=1.0)
    ask(world, route=Route.DIRECT)
    reach(world, Phase.MAIN_WAIT)
    world.leave("a")
    world.run(until=world.now + 1.0)
    assert all(box.core.idle for box in world.boxes.values())


@pytest.mark.parametrize("end_rate", [0.02, 0.2, 1.0])
def test_end_of_text_anywhere(make_world: MakeWorld, end_rate: float) -> None:
    world = make_world(end_rate=end_rate)
    for i in range(12):
        world.ask(f"q{i}", stop_ids=(2,), route=Route.RELAY, limit=60)
    world.run()
    assert all(isinstance(c.end, Finish) for c in world.clients.values())


@pytest.mark.parametrize("limit", [1, 2, 3, 17, 30])
def test_every_limit(make_world: MakeWorld, limit: int) -> None:
    world = make_world(kv_s=0.4)
    served(world, ask(world, limit=limit), limit=limit)


def test_a_stop_string_completed_by_mains_first_token(make_world: MakeWorld) -> None:
    world = make_world(handoff=HandoffMode.CATCH_UP)
    first = ask(world)
    served(world, first)
    index = first.end.summary.handoff_index
    stop = f"{first.ids[index - 1]},{first.ids[index]}"
    # The same prompt elsewhere, so that nothing is cached and main lands at the same time.
    other = make_world(handoff=HandoffMode.CATCH_UP)
    client = ask(other, stop_strings=(stop,))
    other.run()
    assert isinstance(client.end, Finish)
    assert (client.end.stop, client.ids) == (stop, first.ids[: index + 1])
    assert client.end.summary.handoff_index == index


# ---------------------------------------------------------------- numerics


@pytest.mark.parametrize("divergence", [10, 3])
@pytest.mark.parametrize("handoff", HandoffMode)
def test_numerics_that_differ_now_and_then(
    make_world: MakeWorld, divergence: int, handoff: HandoffMode
) -> None:
    """At one position in ten, and in three, relay and main choose differently."""
    specs = tuple(replace(s, salt=i) for i, s in enumerate(SLOW_MAIN))
    world = make_world(specs, handoff=handoff, divergence=divergence, gateway_site="hami")
    for i in range(4):
        world.ask(f"q{i}", route=Route.RELAY, limit=60)
    world.run()
    for client in world.clients.values():
        assert isinstance(client.end, Finish)
        assert len(client.ids) == 60
        assert waits(client) < 0.5
    assert world.machine.ctx.counts["diverged_runs"] > 0


@pytest.mark.parametrize("divergence", [10, 3])
def test_the_law_is_a_history_that_some_worker_sampled(
    make_world: MakeWorld, divergence: int
) -> None:
    """Every accepted token is what its leg's engine gives after exactly the tokens before it."""
    specs = tuple(replace(s, salt=i) for i, s in enumerate(SPARES))
    world = make_world(specs, divergence=divergence, handoff=HandoffMode.CATCH_UP)
    client = ask(world)
    served(world, client)
    runs = [
        (event.message.index, event.message.ids)
        for _, event, _ in world.log
        if isinstance(getattr(event, "message", None), TokenRun)
    ]
    for index, token in enumerate(client.ids):
        assert any(
            start <= index < start + len(ids) and ids[index - start] == token for start, ids in runs
        )


def test_a_refused_main_costs_nobody_else_an_attempt(make_world: MakeWorld) -> None:
    """m0 has one slot and another gateway's leg in it: the books do not know."""
    specs = tuple(replace(s, slots=1) if s.name == "m0" else s for s in SPARES)
    world = make_world(specs)
    core = world.boxes["m0"].core
    other = Start(
        request="foreign",
        epoch=0,
        gateway="other",
        role=M,
        prompt_ids=(1, 2, 3),
        limit=5,
        reserve=8,
    )
    world._outputs(world.boxes["m0"], core.handle(other, world.now))
    client = ask(world)
    served(world, client)
    assert client.end.summary.sites["main"] == "m1"
    assert client.end.summary.recoveries == 0
    assert world.machine.ctx.counts["refused"] == 1
    assert world.machine.ctx.counts["kv_failed"] == 0
