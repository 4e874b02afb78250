"""Whole stories on the virtual deployment: workers that die or stall at a phase.

Each ends with the same tokens as an undisturbed run (`Deployment.check`), every leg stopped, every
booking returned and no KV held anywhere.
"""

from dataclasses import replace

import pytest

from orchestrator.lifecycle.phases import Phase
from orchestrator.state.actions import Fail, Failure
from orchestrator.state.config import Deadlines
from orchestrator.state.events import HandoffMode, Route
from tests.orchestrator.lifecycle.story import (
    SLOW_MAIN,
    SPARES,
    M,
    MakeWorld,
    P,
    R,
    ask,
    reach,
    served,
    waits,
    worker_of,
)
from tests.orchestrator.lifecycle.virtual import TWO_SITES, Client, Deployment, Spec
from workers.api.messages import Role, SendKV, TokenRun

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


def test_a_second_relay_holds_back_no_more_than_a_cut_needs(make_world: MakeWorld) -> None:
    """After main was lost: a relay of 20 ms must not be slowed to a main of 50."""
    specs = tuple(replace(s, step_s=0.02 if s.site == "hami" else 0.05) for s in SPARES)
    world = make_world(specs, kv_s=1.0, gateway_site="hami")
    client = ask(world, limit=150)
    reach(world, Phase.MAIN, tokens=60)
    world.kill(worker_of(world, M))
    reach(world, Phase.RELAY, tokens=100)
    assert world.law("a") - len(client.ids) <= 6
    served(world, client, limit=150)
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
