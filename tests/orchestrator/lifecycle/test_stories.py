"""Whole stories on the virtual deployment: the real machine, real worker cores, faults at a phase.

Each ends with the same tokens as an undisturbed run (`Deployment.check`), every leg stopped, every
booking returned and no KV held anywhere.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from orchestrator.lifecycle.phases import Phase
from orchestrator.state.actions import Fail, Failure, Finish
from orchestrator.state.config import CoreConfig, Deadlines
from orchestrator.state.events import HandoffMode, Route
from tests.orchestrator.lifecycle.virtual import TWO_SITES, Client, Deployment, Spec
from workers.api.messages import Feed, Landed, Role, SendKV, Start, TokenRun

P, R, M = Role.PREFILL, Role.RELAY, Role.MAIN
SPARES = (
    Spec("p0", "hami", frozenset({P})),
    Spec("p1", "hami", frozenset({P})),
    Spec("r0", "hami", frozenset({R})),
    Spec("r1", "hami", frozenset({R})),
    Spec("m0", "shenzhen", frozenset({M})),
    Spec("m1", "shenzhen", frozenset({M})),
)
SLOW_MAIN = tuple(replace(s, step_s=0.07) if s.site == "shenzhen" else s for s in SPARES)
MakeWorld = Callable[..., Deployment]


@pytest.fixture
def make_world() -> Iterator[MakeWorld]:
    """Makes deployments; each is checked at the end."""
    worlds: list[Deployment] = []

    def make(
        specs: tuple[Spec, ...] = SPARES,
        *,
        handoff: HandoffMode = HandoffMode.AUTO,
        gateway_site: str = "shenzhen",
        deadlines: Deadlines = Deadlines(queue=10.0, request=120.0),  # noqa: B008 - frozen
        **fields: object,
    ) -> Deployment:
        config = CoreConfig(
            gateway="g", gateway_site=gateway_site, handoff=handoff, deadlines=deadlines
        )
        worlds.append(Deployment(specs, config=config, **fields))  # type: ignore[arg-type]
        return worlds[-1]

    yield make
    for world in worlds:
        world.run()
        world.check()


def ask(world: Deployment, **fields: object) -> Client:
    return world.ask("a", **{"route": Route.RELAY, **fields})  # type: ignore[arg-type]


def reach(world: Deployment, phase: Phase, *, tokens: int = 0) -> None:
    """Run until the request is in a phase and has so many tokens."""

    def there() -> bool:
        req = world.machine.requests.get("a")
        return req is not None and req.phase is phase and len(req.law) >= tokens

    world.run(until=60.0, stop=there)
    assert there(), f"{phase} was never reached"


def worker_of(world: Deployment, role: Role) -> str:
    leg = world.machine.requests["a"].leg(role)
    assert leg is not None
    return leg.worker


def served(world: Deployment, client: Client, *, limit: int = 40) -> None:
    """It ends well, complete; the tokens themselves are checked at the end of the test."""
    world.run()
    assert isinstance(client.end, Finish), client.end
    assert len(client.ids) == limit


def waits(client: Client) -> float:
    """The longest wait between two tokens."""
    return max(b - a for a, b in pairwise(client.times))


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


# ---------------------------------------------------------------- what dies


def test_prefill_dies_before_the_first_token(make_world: MakeWorld) -> None:
    world = make_world(prefill_tokens_per_s=100.0)
    client = ask(world, prompt=100)
    reach(world, Phase.PREFILL)
    world.run(until=0.5)
    world.kill(worker_of(world, P))
    served(world, client)


@pytest.mark.parametrize("route", [Route.RELAY, Route.DIRECT, Route.LOCAL])
def test_prefill_dies_while_transferring(make_world: MakeWorld, route: Route) -> None:
    world = make_world(TWO_SITES if route is Route.LOCAL else SPARES, kv_s=2.0)
    client = ask(world, route=route)
    world.run(until=60, stop=lambda: world.law("a") >= 1)
    world.kill(worker_of(world, P), back_after=2.0)
    served(world, client)


def test_relay_dies_before_the_kv_has_landed(make_world: MakeWorld) -> None:
    world = make_world(kv_s=3.0)
    client = ask(world, prompt=64)
    reach(world, Phase.RELAY, tokens=10)
    world.kill("r0")
    served(world, client)
    assert client.end.summary.sites["relay"] == "r1"
    assert waits(client) < 1.0


def test_relay_dies_when_the_kv_is_nearly_there(make_world: MakeWorld) -> None:
    world = make_world(kv_s=1.4)
    client = ask(world, prompt=64)
    reach(world, Phase.RELAY, tokens=15)
    world.kill("r0")
    served(world, client)
    assert world.machine.ctx.counts["relay_lost"] == 1
    assert client.end.summary.sites["relay"] == "r0"


def test_relay_dies_after_the_kv_has_landed(make_world: MakeWorld) -> None:
    world = make_world(SLOW_MAIN)
    client = ask(world)
    reach(world, Phase.RACE)
    world.kill("r0")
    served(world, client)
    assert waits(client) < 1.0


def test_relay_dies_when_the_law_equals_the_cover(make_world: MakeWorld) -> None:
    """After a restart main imports prompt + law; the relay dies before it has added a token."""
    world = make_world(kv_s=0.5)
    client = ask(world)
    reach(world, Phase.MAIN, tokens=10)
    world.kill("m0")

    def again() -> bool:
        req = world.machine.requests["a"]
        relay = req.leg(R)
        return relay is not None and relay.cover == len(req.law) > 0

    world.run(until=60, stop=again)
    assert again()
    world.kill(worker_of(world, R))
    served(world, client)


def test_a_refilled_token_arrives_while_the_relay_is_the_authority(
    make_world: MakeWorld,
) -> None:
    """The prefill's own run is held up on the way; the relay has the law's KV and goes on."""
    world = make_world(kv_s=3.0, gateway_site="hami")
    client = ask(world, limit=160)
    reach(world, Phase.MAIN, tokens=80)
    world.kill("m0")
    world.run(until=60, stop=lambda: world.machine.requests["a"].leg(P) is not None)
    prefill = world.machine.requests["a"].leg(P)
    refilled = len(world.machine.requests["a"].law)
    world.drop = lambda worker, message: (
        isinstance(message, TokenRun)
        and message.epoch == prefill.epoch
        and world.law("a") < refilled + 3
    )
    reach(world, Phase.RELAY, tokens=refilled + 5)
    assert not prefill.produced
    world.run(until=60, stop=lambda: prefill.produced)
    assert world.machine.requests["a"].authority.role is R
    served(world, client, limit=160)
    assert world.machine.ctx.counts["duplicate_runs"] > 0


def test_main_dies_before_the_handoff(make_world: MakeWorld) -> None:
    world = make_world(kv_s=2.0)
    client = ask(world)
    reach(world, Phase.RELAY, tokens=5)
    world.kill("m0")
    served(world, client)
    assert client.end.summary.sites["main"] == "m1"
    assert waits(client) < 0.2  # nobody noticed
    assert client.end.summary.recoveries == 1


def test_main_dies_and_comes_back_while_the_relay_decodes(make_world: MakeWorld) -> None:
    """No other main: the relay goes on, and hands over once main is there again."""
    specs = tuple(s for s in SPARES if s.name in ("p0", "r0", "m0"))
    world = make_world(specs, kv_s=1.0)
    for name in ("p0", "r0"):
        world.machine.ctx.world.workers[name].draining = False
    client = ask(world, limit=120)
    reach(world, Phase.RELAY, tokens=5)
    world.kill("m0", back_after=1.5)
    served(world, client, limit=120)
    assert client.end.summary.handoff_index is not None


def test_main_dies_after_the_handoff(make_world: MakeWorld) -> None:
    world = make_world()
    client = ask(world)
    reach(world, Phase.MAIN, tokens=30)
    world.kill("m0")
    served(world, client)
    assert client.end.summary.recoveries == 1
    assert waits(client) < 1.0


def test_main_dies_just_after_its_first_acceptance(make_world: MakeWorld) -> None:
    """Every other leg was stopped a moment ago."""
    world = make_world()
    client = ask(world)
    reach(world, Phase.MAIN)
    world.kill("m0")
    served(world, client)


def test_main_freezes_just_after_its_first_acceptance(make_world: MakeWorld) -> None:
    world = make_world(deadlines=Deadlines(silence=2.0, request=120.0))
    client = ask(world)
    reach(world, Phase.MAIN)
    world.freeze("m0", 30.0)
    served(world, client)
    assert world.machine.ctx.counts["main_late"] == 1


def reach_cut(world: Deployment) -> Client:
    client = ask(world, handoff=HandoffMode.ONE_SHOT, limit=60)
    reach(world, Phase.CUT)
    return client


def test_main_dies_in_the_cut(make_world: MakeWorld) -> None:
    world = make_world(SLOW_MAIN, gateway_site="hami")
    client = reach_cut(world)
    world.kill("m0")
    served(world, client, limit=60)
    assert world.machine.ctx.counts["resumed"] == 1
    assert waits(client) < 0.6


def test_main_freezes_in_the_cut(make_world: MakeWorld) -> None:
    deadlines = Deadlines(cut=1.0, request=120.0)
    world = make_world(SLOW_MAIN, deadlines=deadlines, gateway_site="hami")
    client = reach_cut(world)
    world.freeze("m0", 30.0)
    served(world, client, limit=60)
    assert world.machine.ctx.counts["resumed"] == 1
    assert client.end.summary.sites["main"] == "m1"


def test_relay_dies_in_the_cut(make_world: MakeWorld) -> None:
    world = make_world(SLOW_MAIN, gateway_site="hami")
    client = reach_cut(world)
    world.kill("r0")
    served(world, client, limit=60)


def test_relay_and_main_die_together(make_world: MakeWorld) -> None:
    world = make_world()
    client = ask(world)
    reach(world, Phase.RACE)
    world.kill("r0")
    world.kill("m0")
    served(world, client)


def test_everything_dies_and_comes_back(make_world: MakeWorld) -> None:
    world = make_world(TWO_SITES, kv_s=0.3)
    client = ask(world)
    reach(world, Phase.MAIN, tokens=20)
    for name in ("p0", "r0", "m0"):
        world.kill(name, back_after=4.0)
    served(world, client)


def test_everything_dies_for_good(make_world: MakeWorld) -> None:
    world = make_world(TWO_SITES)
    client = ask(world)
    reach(world, Phase.RELAY, tokens=5)
    for name in ("p0", "r0", "m0"):
        world.kill(name)
    world.run()
    assert isinstance(client.end, Fail)
    assert client.end.failure is Failure.UNAVAILABLE
    assert world.now < 15


def test_a_restarted_worker_has_lost_its_legs(make_world: MakeWorld) -> None:
    world = make_world()
    client = ask(world)
    reach(world, Phase.MAIN, tokens=20)
    world.kill("m0", back_after=0.6)
    served(world, client)
    assert world.machine.ctx.counts["main_lost"] == 1


# ---------------------------------------------------------------- what stalls


def test_kv_path_stalled_the_relay_finishes(make_world: MakeWorld) -> None:
    world = make_world(kv_s=300.0, deadlines=Deadlines(kv=2.0, request=120.0))
    client = ask(world, limit=80)
    served(world, client, limit=80)
    assert world.machine.ctx.counts["kv_late"] >= 1
    assert client.end.summary.handoff_index is None
    assert waits(client) < 0.2


def test_kv_failed_the_relays_copy_is_sent(make_world: MakeWorld) -> None:
    world = make_world(kv_s=1.0)
    client = ask(world)
    reach(world, Phase.RELAY, tokens=3)
    opened = next(s for s in world.streams.values() if s.stream.target == 2)
    world._break(opened, "the line was cut")
    served(world, client)
    assert world.machine.ctx.counts["kv_failed"] == 1
    assert set(world.machine.ctx.counts) & {"main_lost", "prefill_lost", "relay_lost"} == set()
    sources = {a.message.epoch for _, _, acts in world.log for a in acts if _is(a, SendKV)}
    assert sources == {0, 1}


def _is(action: object, kind: type) -> bool:
    return isinstance(getattr(action, "message", None), kind)


def test_a_whole_site_is_unreachable(make_world: MakeWorld) -> None:
    """Its token streams are waited for to the legs' deadlines, then another site serves."""
    specs = (*SPARES, Spec("x0", "urumqi", frozenset(Role)))
    deadlines = Deadlines(prefill=3.0, silence=3.0, first_token=3.0, kv=3.0, request=120.0)
    world = make_world(specs, deadlines=deadlines, kv_s=20.0)
    client = ask(world)
    reach(world, Phase.RELAY, tokens=5)
    for name in ("p0", "p1", "r0", "r1"):
        world.cut(name, 40.0)
    served(world, client)
    assert client.end.summary.sites["main"] in ("m0", "m1", "x0")
    assert world.now < 30


def test_mains_site_is_unreachable_from_the_gateway_after_the_handoff(
    make_world: MakeWorld,
) -> None:
    world = make_world(deadlines=Deadlines(silence=2.0, request=120.0), gateway_site="hami")
    client = ask(world)
    reach(world, Phase.MAIN, tokens=20)
    world.cut("m0", 15.0)
    served(world, client)


@pytest.mark.parametrize("worker", ["p0", "r0", "m0"])
@pytest.mark.parametrize("phase", [Phase.PREFILL, Phase.RELAY, Phase.RACE, Phase.MAIN])
def test_a_broken_token_stream_is_reconnected(
    make_world: MakeWorld, worker: str, phase: Phase
) -> None:
    """What was said meanwhile is asked for from the next index."""
    specs = tuple(s for s in SLOW_MAIN if s.name in ("p0", "r0", "m0"))
    world = make_world(specs, prefill_tokens_per_s=100.0)
    client = ask(world)
    reach(world, phase)
    world.cut(worker, 0.4)
    served(world, client)
    assert waits(client) < 1.2
    assert client.end.summary.recoveries == 0


@pytest.mark.parametrize("worker", ["p0", "r0", "m0"])
@pytest.mark.parametrize("phase", [Phase.PREFILL, Phase.RELAY, Phase.RACE, Phase.CUT, Phase.MAIN])
def test_a_worker_freezes_for_a_while(make_world: MakeWorld, worker: str, phase: Phase) -> None:
    world = make_world(SLOW_MAIN, handoff=HandoffMode.ONE_SHOT, prefill_tokens_per_s=100.0)
    client = ask(world)
    reach(world, phase)
    world.freeze(worker, 3.0)
    served(world, client)


# ---------------------------------------------------------------- what is lost on the way


def drop_once(world: Deployment, kind: type, worker: str, *, nth: int = 0) -> None:
    seen = {"left": nth}

    def drop(where: str, message: object) -> bool:
        if where != worker or not isinstance(message, kind):
            return False
        seen["left"] -= 1
        return seen["left"] == -1

    world.drop = drop


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
