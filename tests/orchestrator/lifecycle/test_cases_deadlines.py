"""Every deadline of the table fires at its time and has its effect (rules 6, 7 and 13)."""

from collections.abc import Callable
from dataclasses import fields, replace

import pytest

from orchestrator.lifecycle.phases import Phase
from orchestrator.state.actions import Fail, Failure
from orchestrator.state.config import Attempts, Deadlines
from orchestrator.state.events import HandoffMode, Route, Ticked
from tests.orchestrator.lifecycle.machine_rig import (
    MAIN,
    PREFILL,
    RELAY,
    SPARES,
    M,
    MachineRig,
    P,
    R,
    resume,
    resync,
    send_kv,
    starts,
    stop,
    stops,
)

MakeRig = Callable[..., MachineRig]

# All different, so that none can stand in for another.
TIMES = Deadlines(
    queue=31.0,
    prefill=53.0,
    kv=47.0,
    first_token=17.0,
    silence=23.0,
    resync=0.7,
    cut=5.0,
    request=400.0,
)


@pytest.fixture
def rig(make_rig: MakeRig) -> MachineRig:
    return make_rig(SPARES, deadlines=TIMES)


def fires_after(rig: MachineRig, seconds: float, what: Callable[[], bool]) -> None:
    """`what` becomes true at this time and not before."""
    rig.after(seconds - 0.01)
    assert not what(), "too early"
    rig.after(0.02)
    assert what(), "too late"


def test_every_deadline_has_a_test_here() -> None:
    tests = {name for name in globals() if name.startswith("test_")}
    for field in fields(Deadlines):
        assert any(name.startswith(f"test_{field.name}_deadline") for name in tests), field.name


def test_prefill_deadline_another_prefill(rig: MachineRig) -> None:
    rig.arrive()
    fires_after(rig, TIMES.prefill, lambda: rig.legs() == {"prefill": 3, "relay": 4, "main": 5})
    assert rig.req.legs[3].worker == "p1"
    assert rig.counts["prefill_late"] == 1


def test_prefill_deadline_ends_with_its_token(rig: MachineRig) -> None:
    rig.arrive()
    rig.run(PREFILL, 0, 10)
    rig.landed(RELAY)
    for i in range(60):
        rig.after(1.0)
        if i % 5 == 0:
            rig.run(RELAY, len(rig.law), 11 + i)
    assert rig.counts["prefill_late"] == 0


def test_kv_deadline_of_main_the_relay_finishes_and_it_is_counted(rig: MachineRig) -> None:
    """KV path stalled: resumed below; past the deadline the relay finishes the request."""
    rig.arrive(limit=500)
    rig.run(PREFILL, 0, 10)
    rig.landed(RELAY)
    actions = []
    while rig.now < 1000 + TIMES.kv - 0.5:
        actions += rig.after(0.5)
        actions += rig.run(RELAY, len(rig.law), len(rig.law) + 10)
    assert MAIN in rig.req.legs
    assert not starts(actions)
    actions = rig.after(1.0)
    assert stop("m0", MAIN) in actions
    assert stop("p0", PREFILL) in actions
    assert rig.legs() == {"relay": RELAY}
    assert (rig.counts["kv_late"], rig.req.lost[M]) == (1, 1)
    rig.run(RELAY, len(rig.law), *range(len(rig.law) + 10, 510))
    assert rig.seen["a"] == list(range(10, 510))


def test_kv_deadline_of_main_without_a_relay_another_main(make_rig: MakeRig) -> None:
    rig = make_rig(SPARES, deadlines=TIMES, route=Route.DIRECT)
    rig.arrive()
    rig.run(PREFILL, 0, 10)
    fires_after(rig, TIMES.kv, lambda: rig.legs() == {"prefill": 0, "main": 2})
    assert rig.req.legs[2].worker == "m1"


def test_kv_deadline_of_the_relay_another_relay(rig: MachineRig) -> None:
    rig.arrive()
    rig.run(PREFILL, 0, 10)
    actions = rig.after(TIMES.kv + 0.01)
    assert (R, "r1") in starts(actions)


def test_kv_deadline_begins_when_the_kv_is_computed(rig: MachineRig) -> None:
    rig.arrive()
    rig.after(40.0)
    rig.run(PREFILL, 0, 10)
    rig.landed(RELAY)
    actions = rig.after(TIMES.first_token - 1)
    rig.run(RELAY, 1, 11)
    actions += rig.after(TIMES.silence - 1)
    rig.run(RELAY, 2, 12)
    assert rig.req.lost[M] == 0  # 79 s since it was opened


def test_kv_deadline_begins_anew_with_another_source(rig: MachineRig) -> None:
    rig.to_phase(Phase.RELAY)
    rig.after(20.0)
    assert send_kv("r0", RELAY, "m0", MAIN) in rig.lose("p0")
    for i in range(2):
        rig.run(RELAY, 2 + i, 12 + i)
        rig.after(20.0)
    assert rig.req.lost[M] == 0


def test_first_token_deadline_main_has_failed_back_to_the_relay(rig: MachineRig) -> None:
    rig.to_phase(Phase.RACE)
    rig.run(RELAY, 2, 12)
    fires_after(rig, TIMES.first_token, lambda: rig.req.lost[M] == 1)
    assert rig.phase is Phase.RELAY
    assert rig.legs() == {"prefill": PREFILL, "relay": RELAY, "main": 3}
    assert rig.req.legs[3].worker == "m1"


def test_first_token_deadline_of_the_relay(rig: MachineRig) -> None:
    rig.arrive()
    rig.run(PREFILL, 0, 10)
    rig.landed(RELAY)
    fires_after(rig, TIMES.first_token, lambda: rig.req.lost[R] == 1)
    assert rig.legs()["relay"] == 3  # main's KV is still far


def test_first_token_deadline_counts_from_token_0_when_the_kv_was_there_before(
    make_rig: MakeRig,
) -> None:
    rig = make_rig(SPARES, deadlines=TIMES, route=Route.DIRECT)
    rig.arrive()
    rig.landed(1)
    rig.after(30.0)
    rig.run(PREFILL, 0, 10)
    fires_after(rig, TIMES.first_token, lambda: rig.legs() == {"prefill": 0, "main": 2})


def test_silence_deadline_of_main(rig: MachineRig) -> None:
    rig.to_phase(Phase.MAIN)
    rig.after(20.0)
    rig.run(MAIN, 3, 13)
    fires_after(rig, TIMES.silence, lambda: rig.req.lost[M] == 1)
    assert rig.legs() == {"prefill": 3, "relay": 4, "main": 5}


def test_silence_deadline_of_the_relay(rig: MachineRig) -> None:
    rig.to_phase(Phase.RELAY)
    fires_after(rig, TIMES.silence, lambda: rig.req.lost[R] == 1)


def test_silence_deadline_is_not_put_off_by_empty_answers(rig: MachineRig) -> None:
    rig.to_phase(Phase.MAIN)
    for _ in range(22):
        rig.after(1.0)
        rig.run(MAIN, 3)
    rig.after(1.1)
    assert rig.req.lost[M] == 1


def test_silence_deadline_spares_a_main_that_guessed_the_end(make_rig: MakeRig) -> None:
    """Ahead of the law with its own end-of-text it is idle, and may be revived by a feed."""
    rig = make_rig(SPARES, deadlines=TIMES, bound_s=100.0)
    rig.arrive(limit=500, stop_ids=(2,))
    rig.run(PREFILL, 0, 10)
    rig.landed(RELAY)
    rig.landed(MAIN)
    rig.run(MAIN, 40, 2, after=(10, *range(11, 50)))
    for i in range(30):
        rig.after(2.0)
        rig.run(RELAY, 1 + i, 11 + i)
    assert rig.phase is Phase.RACE
    assert rig.req.lost[M] == 0


def test_silence_deadline_of_a_main_whose_first_token_never_came(rig: MachineRig) -> None:
    """It is ahead, but nobody else will bring the law to where it is."""
    rig.to_phase(Phase.RACE)
    rig.run(MAIN, 3, 13, after=(10, 11, 12))
    rig.lose("r0")
    fires_after(rig, TIMES.silence, lambda: rig.req.lost[M] == 1)


def test_cut_deadline_main_has_failed(rig: MachineRig) -> None:
    rig.to_phase(Phase.CUT)
    rig.paused(RELAY, 1, 3)
    fires_after(rig, TIMES.cut, lambda: rig.req.lost[M] == 1)
    assert rig.phase is Phase.RELAY


def test_cut_deadline_longer_than_silence_leaves_the_relay_its_time(make_rig: MakeRig) -> None:
    rig = make_rig(SPARES, deadlines=replace(TIMES, cut=20.0, silence=10.0, first_token=50.0))
    rig.to_phase(Phase.CUT)
    rig.paused(RELAY, 1, 3)
    for _ in range(4):
        rig.after(4.9)
        if rig.phase is Phase.CUT:
            rig.run(MAIN, 1, 11, fed=1)  # alive, and never at the next index
    assert resume("r0", RELAY, 2) in rig.after(1.0)
    rig.after(8.0)
    assert rig.req.lost[R] == 0
    rig.after(2.0)
    assert rig.req.lost[R] == 1


def test_resync_deadline_doubles(rig: MachineRig) -> None:
    rig.to_phase(Phase.MAIN)
    asked = []
    while rig.phase is Phase.MAIN:
        if resync("m0", MAIN, 3) in rig.to_deadline():
            asked.append(round(rig.now - 1000, 6))
    assert asked == [0.7, 2.1, 4.9, 10.5, 18.5]  # 0.7, 1.4, 2.8, 5.6, then at most 8


def test_resync_deadline_of_a_leg_whose_kv_moves(rig: MachineRig) -> None:
    rig.to_phase(Phase.RELAY)
    assert resync("m0", MAIN, 2) in rig.after(0.71)


def test_queue_deadline(make_rig: MakeRig) -> None:
    rig = make_rig(deadlines=TIMES, slots=1)
    rig.to_phase(Phase.QUEUED)
    fires_after(rig, TIMES.queue, lambda: "a" in rig.ends)
    assert isinstance(rig.end, Fail)
    assert rig.end.failure is Failure.OVERLOADED
    assert rig.end.retry_after_s is not None


def test_queue_deadline_of_a_request_whose_client_has_tokens(make_rig: MakeRig) -> None:
    rig = make_rig(deadlines=TIMES)
    rig.to_phase(Phase.MAIN)
    for name in ("r0", "p0", "m0"):
        rig.lose(name)
    assert rig.legs() == {}
    assert rig.phase is Phase.MAIN_WAIT
    fires_after(rig, TIMES.queue, lambda: "a" in rig.ends)
    assert isinstance(rig.end, Fail)
    assert rig.end.failure is Failure.UNAVAILABLE


def test_queue_deadline_starts_anew_when_a_place_was_found(make_rig: MakeRig) -> None:
    rig = make_rig(deadlines=TIMES, slots=1)
    rig.to_phase(Phase.QUEUED)
    rig.after(30.0)
    rig.name = "first"
    rig.leave()
    rig.name = "a"
    assert rig.phase is Phase.PREFILL
    rig.after(10.0)
    for name in ("r0", "p0", "m0"):
        rig.lose(name)
    assert rig.phase is Phase.QUEUED
    fires_after(rig, TIMES.queue, lambda: "a" in rig.ends)


def test_request_deadline(rig: MachineRig) -> None:
    rig.arrive(limit=1000)
    rig.run(PREFILL, 0, 10)
    rig.landed(MAIN)
    for i in range(39):
        rig.run(MAIN, 1 + i, 11 + i)
        rig.after(10.0)
    fires_after(rig, 10.0, lambda: "a" in rig.ends)
    assert isinstance(rig.end, Fail)
    assert rig.end.failure is Failure.TIMED_OUT
    assert len(rig.seen["a"]) == 40


def test_request_deadline_in_the_queue(make_rig: MakeRig) -> None:
    rig = make_rig(deadlines=replace(TIMES, request=12.0), slots=1)
    rig.to_phase(Phase.QUEUED)
    actions = rig.after(12.1)
    assert {a.request for a in actions if isinstance(a, Fail)} == {"first", "a"}


def test_a_late_tick_does_all_that_was_due(rig: MachineRig) -> None:
    rig.to_phase(Phase.RACE)
    rig.now += TIMES.first_token + 1
    assert starts(rig.tell(Ticked())) == [(M, "m1")]


def test_any_event_does_what_is_due(rig: MachineRig) -> None:
    """The driver's timer may be late: deadlines are looked at after every event."""
    rig.to_phase(Phase.RACE)
    rig.now += TIMES.first_token + 1
    assert (M, "m1") in starts(rig.load("m0"))


def test_a_request_that_loses_all_it_has_again_and_again_ends(make_rig: MakeRig) -> None:
    rig = make_rig(SPARES, attempts=Attempts(restarts=3))
    rig.arrive()
    for _ in range(3):
        worker = rig.req.legs[rig.legs()["prefill"]].worker
        up = rig.machine.ctx.world.workers[worker].up
        rig.lose(worker)
        rig.tell(up)
        assert rig.end is None
    actions = rig.lose(rig.req.legs[rig.legs()["prefill"]].worker)
    assert isinstance(rig.end, Fail)
    assert rig.end.failure is Failure.UNAVAILABLE
    assert len(stops(actions)) == 3


def test_a_failure_is_told_after_the_tokens_the_client_is_owed(make_rig: MakeRig) -> None:
    """Paced tokens are law: they were accepted, and the client gets them."""
    rig = make_rig(deadlines=replace(TIMES, request=2.0), handoff=HandoffMode.AUTO)
    rig.load("m0", step_s=0.5)
    rig.arrive()
    rig.run(PREFILL, 0, 10)
    rig.landed(RELAY)
    rig.run(RELAY, 1, *range(11, 14))
    assert len(rig.seen["a"]) < 4
    rig.now += 2.0
    actions = rig.load("m0")
    assert rig.seen["a"] == [10, 11, 12, 13]
    assert isinstance(actions[-1], Fail)
    assert (P, "p0") not in starts(actions)
