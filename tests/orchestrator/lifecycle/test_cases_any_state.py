"""The rows of PROTOCOL's table of states that hold in any state: KV, refusals, the end."""

from collections.abc import Callable

import pytest

from orchestrator.lifecycle.phases import JOINT, MOVES, IllegalMove, Phase
from orchestrator.lifecycle.recover import settle_phase
from orchestrator.state.actions import Fail, Failure
from orchestrator.state.events import Route
from tests.orchestrator.lifecycle.machine_rig import (
    MAIN,
    PREFILL,
    PROMPT,
    RELAY,
    SPARES,
    M,
    MachineRig,
    P,
    R,
    send_kv,
    start,
    starts,
    stop,
    stops,
)

MakeRig = Callable[..., MachineRig]
FULL = len(PROMPT) + 40


@pytest.fixture
def spares(make_rig: MakeRig) -> MachineRig:
    """Two workers for each role."""
    return make_rig(SPARES)


# ---------------------------------------------------------------- KV that does not come


def test_kv_failed_moves_on_to_the_relays_copy_uncharged(spares: MachineRig) -> None:
    spares.to_phase(Phase.RELAY)
    assert spares.kv_failed(MAIN, PREFILL) == [send_kv("r0", RELAY, "m0", MAIN)]
    assert set(spares.req.lost.values()) == {0}


def test_kv_failed_is_also_heard_from_the_sources_worker(spares: MachineRig) -> None:
    """The source gives up a stream that its target never saw; nobody else knows of it."""
    spares.to_phase(Phase.RELAY)
    assert spares.kv_failed(MAIN, PREFILL, worker="r0") == []  # not its business
    assert spares.kv_failed(MAIN, PREFILL, worker="p0") == [send_kv("r0", RELAY, "m0", MAIN)]


def test_kv_failed_of_the_last_source_prefill_again(make_rig: MakeRig) -> None:
    rig = make_rig(SPARES, route=Route.DIRECT)
    rig.arrive()
    rig.run(PREFILL, 0, 10)
    actions = rig.kv_failed(1, PREFILL)
    assert stops(actions) == {("p0", PREFILL), ("m0", 1)}
    assert starts(actions) == [(P, "p0"), (M, "m0")]
    assert set(rig.req.lost.values()) == {0}


def test_kv_failed_at_every_source_while_the_relay_decodes(spares: MachineRig) -> None:
    spares.to_phase(Phase.RELAY)
    spares.kv_failed(MAIN, PREFILL)
    actions = spares.kv_failed(MAIN, RELAY)
    assert stops(actions) == {("m0", MAIN), ("p0", PREFILL)}
    assert spares.req.relay_finishes
    assert spares.phase is Phase.RELAY


def test_kv_failed_at_the_relay_it_is_not_tried_again_from_there(rig: MachineRig) -> None:
    rig.arrive()
    rig.run(PREFILL, 0, 10)
    assert rig.kv_failed(RELAY, PREFILL) == [stop("r0", RELAY)]
    assert rig.phase is Phase.MAIN_WAIT
    assert starts(rig.after(0.5)) == []


def test_kv_failed_of_an_old_source_says_nothing(spares: MachineRig) -> None:
    spares.to_phase(Phase.RELAY)
    spares.lose("p0")
    assert spares.kv_failed(MAIN, PREFILL) == []
    assert spares.req.legs[MAIN].source == RELAY


def test_kv_failed_after_it_has_landed_says_nothing(spares: MachineRig) -> None:
    spares.to_phase(Phase.RACE)
    assert spares.kv_failed(MAIN, PREFILL) == []
    assert spares.phase is Phase.RACE


# ---------------------------------------------------------------- refused


def test_a_refused_main_costs_nobody_else_an_attempt(spares: MachineRig) -> None:
    spares.to_phase(Phase.RELAY)
    assert spares.refused(MAIN) == [
        stop("m0", MAIN),
        start("m1", 3, M, FULL, law_ids=(10, 11)),
        send_kv("p0", PREFILL, "m1", 3),
    ]
    assert set(spares.req.lost.values()) == {0}
    assert spares.req.restarts == 0


def test_a_refused_relay_another_relay_else_direct(spares: MachineRig) -> None:
    spares.arrive()
    assert starts(spares.refused(RELAY)) == [(R, "r1")]
    assert stops(spares.refused(3)) == {("r1", 3)}
    assert spares.legs() == {"prefill": PREFILL, "main": MAIN}
    spares.run(PREFILL, 0, 10)
    assert spares.phase is Phase.MAIN_WAIT


def test_a_refused_direct_main_falls_back_to_local(make_rig: MakeRig) -> None:
    rig = make_rig((*SPARES[:3], ("x0", "hami", (P, M))), route=Route.DIRECT)
    rig.arrive()
    actions = rig.refused(1)
    assert starts(actions) == [(M, "x0")]


def test_everybody_refuses_the_request_waits_in_the_queue(make_rig: MakeRig) -> None:
    rig = make_rig(route=Route.DIRECT)
    rig.arrive()
    actions = rig.refused(1)
    assert stops(actions) == {("p0", PREFILL), ("m0", 1)}
    assert rig.phase is Phase.QUEUED
    assert rig.machine.queued == 1
    assert starts(rig.after(0.45)) == []  # never asked again at once
    assert starts(rig.after(0.1)) == [(P, "p0"), (M, "m0")]


def test_a_worker_that_always_refuses_ends_at_the_queues_deadline(make_rig: MakeRig) -> None:
    rig = make_rig(route=Route.DIRECT)
    rig.arrive()
    asked = 0
    while rig.end is None:
        main = rig.legs().get("main")
        if main is not None:
            asked += 1
            rig.now += 0.05
            rig.refused(main)
        else:
            rig.to_deadline()
    assert isinstance(rig.end, Fail)
    assert rig.end.failure is Failure.OVERLOADED
    assert 30 <= rig.now - 1000 <= 31
    assert asked <= 61  # twice a second


# ---------------------------------------------------------------- the end


@pytest.mark.parametrize("phase", [p for p in Phase if p is not Phase.DONE])
def test_client_gone_in_every_state(make_rig: MakeRig, phase: Phase) -> None:
    rig = make_rig(slots=1)
    rig.to_phase(phase)
    live = set(rig.req.legs)
    actions = rig.leave()
    assert {epoch for _, epoch in stops(actions)} >= live
    assert len(stops(actions)) == len(live)
    assert "a" not in rig.machine.requests
    assert rig.leave() == []


@pytest.mark.parametrize("phase", [Phase.RELAY, Phase.RACE, Phase.CUT, Phase.MAIN])
def test_the_end_in_every_state_stops_every_leg(make_rig: MakeRig, phase: Phase) -> None:
    rig = make_rig()
    rig.to_phase(phase)
    live = set(rig.req.legs)
    producer = MAIN if phase is Phase.MAIN else RELAY
    actions = rig.run(producer, len(rig.law), *range(50, 100))
    assert {epoch for _, epoch in stops(actions)} == live
    assert len(rig.seen["a"]) == 40


def test_every_two_tracks_have_a_phase() -> None:
    assert len(JOINT) == 7 * 3
    assert set(JOINT.values()) == set(Phase) == MOVES.keys()


def test_an_illegal_move_leaves_the_phase_as_it_was(rig: MachineRig) -> None:
    rig.to_phase(Phase.RACE)
    req = rig.req
    req.phase = Phase.QUEUED
    with pytest.raises(IllegalMove):
        settle_phase(req)
    assert req.phase is Phase.QUEUED
    req.phase = Phase.RACE
