"""What a request's timeline says of its legs, while it runs and after its end."""

from collections.abc import Callable

from orchestrator.lifecycle.phases import Phase
from orchestrator.lifecycle.timeline import timeline
from orchestrator.state.events import Route
from tests.orchestrator.lifecycle.machine_rig import MAIN, PREFILL, RELAY, M, MachineRig, P, R

MakeRig = Callable[..., MachineRig]


def test_legs_say_who_brought_which_tokens_and_when(rig: MachineRig) -> None:
    began = rig.now
    rig.arrive(limit=4)
    req = rig.req
    rig.now += 1
    rig.run(PREFILL, 0, 10, cached=16)
    rig.landed(RELAY)
    rig.now += 1
    rig.run(RELAY, 1, 11)
    half = timeline(req, rig.now)
    assert (half.phase, half.route, half.now - began) == (Phase.RELAY, Route.RELAY, 2)
    assert [(leg.role, leg.ended_at) for leg in half.legs] == [(P, None), (R, None), (M, None)]
    rig.now += 1
    rig.run(RELAY, 2, 12)
    rig.landed(MAIN)
    rig.now += 1
    rig.run(MAIN, 3, 13)
    whole = timeline(req, rig.now)
    assert whole.phase is Phase.DONE
    assert (whole.arrived_at, whole.routed_at, whole.first_token_at) == (began, began, began + 1)
    assert (whole.summary.handoff_index, whole.summary.cached_tokens) == (3, 16)
    prefill, relay, main = whole.legs
    assert [leg.worker for leg in whole.legs] == ["p0", "r0", "m0"]
    assert (prefill.kv_from, relay.kv_from, main.kv_from) == (None, "hami", "hami")
    assert (prefill.first_index, prefill.tokens, prefill.first_at) == (0, 1, began + 1)
    assert (relay.first_index, relay.tokens) == (1, 2)
    assert (relay.landed_at, relay.first_at, relay.last_at) == (began + 1, began + 2, began + 3)
    assert (main.kv_at, main.landed_at, main.first_at) == (began, began + 3, began + 4)
    assert {leg.ended_at for leg in whole.legs} == {began + 4}
    assert not any(leg.lost for leg in whole.legs)


def test_a_lost_leg_stays_in_the_timeline(rig: MachineRig) -> None:
    rig.arrive()
    rig.run(PREFILL, 0, 10)
    rig.now += 1
    rig.lose("m0")
    lost = next(leg for leg in timeline(rig.req, rig.now).legs if leg.role is M)
    assert lost.kv_from == "hami"
    assert (lost.lost, lost.ended_at, lost.tokens, lost.last_at) == (True, rig.now, 0, None)


def test_a_request_that_waits_has_no_route_and_no_legs(make_rig: MakeRig) -> None:
    rig = make_rig(slots=1)
    rig.to_phase(Phase.QUEUED)
    waiting = timeline(rig.req, rig.now + 2)
    assert (waiting.phase, waiting.route, waiting.routed_at) == (Phase.QUEUED, None, None)
    assert waiting.legs == ()
