"""Every row of PROTOCOL's table of states: events in, exact actions out."""

from collections.abc import Callable

import pytest

from orchestrator.lifecycle.phases import Phase
from orchestrator.state.actions import Send
from orchestrator.state.config import Attempts
from orchestrator.state.events import HandoffMode, Route, WorkerDraining
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
    emit,
    feed,
    pause,
    resume,
    send_kv,
    start,
    starts,
    stop,
    stops,
)
from workers.api.messages import SendKV

MakeRig = Callable[..., MachineRig]
FULL = len(PROMPT) + 40


@pytest.fixture
def spares(make_rig: MakeRig) -> MachineRig:
    """Two workers for each role."""
    return make_rig(SPARES)


# ---------------------------------------------------------------- PREFILL


def test_prefill_lost_before_token_0_all_is_started_again(spares: MachineRig) -> None:
    spares.arrive()
    actions = spares.lose("p0")
    assert stops(actions) == {("p0", PREFILL), ("r0", RELAY), ("m0", MAIN)}
    assert starts(actions) == [(P, "p1"), (R, "r0"), (M, "m0")]
    assert spares.phase is Phase.PREFILL
    assert spares.legs() == {"prefill": 3, "relay": 4, "main": 5}  # epochs are never used again
    assert spares.req.lost == {P: 1, R: 0, M: 0}  # the legs that waited for its KV: uncharged


def test_all_kv_of_a_request_has_its_weight(spares: MachineRig) -> None:
    sent = [a.message for a in spares.arrive(weight=0.25) if isinstance(a, Send)]
    assert [m.weight for m in sent if isinstance(m, SendKV)] == [0.25, 0.25]
    again = [a.message for a in spares.lose("m0") if isinstance(a, Send)]
    assert [m.weight for m in again if isinstance(m, SendKV)] == [0.25]


def test_prefill_refused_goes_to_another_worker_uncharged(spares: MachineRig) -> None:
    spares.arrive()
    assert starts(spares.refused(PREFILL)) == [(P, "p1"), (R, "r0"), (M, "m0")]
    assert spares.req.restarts == 0
    assert set(spares.req.lost.values()) == {0}


# ---------------------------------------------------------------- RELAY


def test_relay_lost_while_the_kv_is_far_another_relay_beside_the_prefill(
    spares: MachineRig,
) -> None:
    spares.to_phase(Phase.RELAY)
    assert spares.lose("r0") == [
        stop("r0", RELAY),
        start("r1", 3, R, FULL, law_ids=(10, 11)),
        send_kv("p0", PREFILL, "r1", 3),
    ]
    assert spares.phase is Phase.RELAY
    spares.landed(3)
    assert spares.run(3, 2, 12) == [feed("m0", MAIN, 0, 10, 11, 12), emit(2, 12)]


def test_relay_lost_main_is_waited_for(rig: MachineRig) -> None:
    rig.to_phase(Phase.RELAY)
    rig.link(rate=1e9)  # the KV will have landed before another relay could help
    assert rig.lose("r0") == [stop("r0", RELAY)]
    assert rig.phase is Phase.MAIN_WAIT


def test_main_lost_a_new_main_gets_the_held_kv(spares: MachineRig) -> None:
    spares.to_phase(Phase.RELAY)
    assert spares.lose("m0") == [
        stop("m0", MAIN),
        start("m1", 3, M, FULL, law_ids=(10, 11)),
        send_kv("p0", PREFILL, "m1", 3),
    ]
    assert spares.phase is Phase.RELAY


def test_main_lost_and_the_prefills_kv_too_the_relays_copy_is_sent(spares: MachineRig) -> None:
    spares.to_phase(Phase.RELAY)
    spares.lose("p0")
    assert send_kv("r0", RELAY, "m1", 3) in spares.lose("m0")


def test_prefill_lost_after_token_0_the_relay_goes_on_and_is_the_source(
    spares: MachineRig,
) -> None:
    spares.to_phase(Phase.RELAY)
    assert spares.lose("p0") == [stop("p0", PREFILL), send_kv("r0", RELAY, "m0", MAIN)]
    assert spares.phase is Phase.RELAY
    assert spares.run(RELAY, 2, 12) == [feed("m0", MAIN, 0, 10, 11, 12), emit(2, 12)]
    assert spares.landed(MAIN) == []
    assert spares.phase is Phase.RACE


def test_prefill_lost_before_its_kv_reached_the_relay_all_is_started_again(
    spares: MachineRig,
) -> None:
    spares.arrive()
    spares.run(PREFILL, 0, 10)
    actions = spares.lose("p0")
    assert stops(actions) == {("p0", PREFILL), ("r0", RELAY), ("m0", MAIN)}
    assert actions[3:4] == [start("p1", 3, P, len(PROMPT) + 1, law_ids=(10,))]
    assert starts(actions)[1:] == [(R, "r0"), (M, "m0")]
    assert send_kv("p1", 3, "r0", 4, len(PROMPT) + 1) in actions
    assert spares.req.lost == {P: 1, R: 0, M: 0}


def test_a_restart_covers_the_law_with_kv(spares: MachineRig) -> None:
    """The new legs import prompt + law, and may decode at once: their law is not empty."""
    spares.to_phase(Phase.MAIN)
    actions = spares.lose("m0")
    relay = next(a.message for a in actions[1:] if a.message.epoch == 4)
    assert (relay.law_ids, relay.cover) == ((10, 11, 12), 3)


def test_mains_pool_is_dead_any_live_worker_may_serve(rig: MachineRig) -> None:
    rig.to_phase(Phase.RELAY)
    assert rig.lose("m0") == [
        stop("m0", MAIN),
        start("p0", 3, M, FULL, law_ids=(10, 11)),
        send_kv("p0", PREFILL, "p0", 3),
    ]


def test_main_returns_while_the_relay_decodes(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.to_phase(Phase.RELAY)
    for other in ("p0", "r0"):
        rig.tell(WorkerDraining(worker=other))
    lost = rig.machine.ctx.world.workers["m0"].up
    assert starts(rig.lose("m0")) == []
    assert rig.legs() == {"prefill": PREFILL, "relay": RELAY}
    assert starts(rig.after(2.0)) == []
    rig.tell(lost)
    assert rig.run(RELAY, 2, 12) == [emit(2, 12)]
    assert (M, "m0") in starts(rig.after(1.0))
    assert rig.law == [10, 11, 12]


def test_while_a_main_is_looked_for_a_lost_relay_is_made_good_at_once(rig: MachineRig) -> None:
    rig.to_phase(Phase.RELAY)
    assert starts(rig.refused(MAIN)) == []
    assert starts(rig.lose("r0")) == [(M, "p0")]


def test_mains_attempts_are_spent_the_relay_finishes(make_rig: MakeRig) -> None:
    rig = make_rig(SPARES, attempts=Attempts(main=1))
    rig.to_phase(Phase.RELAY)
    assert rig.lose("m0") == [stop("m0", MAIN), stop("p0", PREFILL)]  # nobody needs its KV now
    assert rig.counts["relay_finishes"] == 1
    assert rig.run(RELAY, 2, *range(12, 50))[0] == emit(2, *range(12, 50))
    assert rig.phase is Phase.DONE


def test_the_relay_that_should_finish_is_lost(make_rig: MakeRig) -> None:
    rig = make_rig(SPARES, attempts=Attempts(main=1))
    rig.to_phase(Phase.RELAY)
    rig.lose("m0")
    actions = rig.lose("r0")
    assert starts(actions) == [(P, "p0"), (R, "r1"), (M, "m1")]


def test_the_relay_that_should_finish_is_lost_before_its_kv_has_landed(
    make_rig: MakeRig,
) -> None:
    """The prefill's hold is alive: main can have its KV."""
    rig = make_rig(SPARES, attempts=Attempts(main=1))
    rig.arrive()
    rig.run(PREFILL, 0, 10)
    rig.lose("m0")
    assert rig.req.relay_finishes
    actions = rig.lose("r0")
    assert starts(actions) == [(P, "p0"), (R, "r1"), (M, "m1")]
    assert rig.phase is Phase.RELAY


# ---------------------------------------------------------------- RACE


def test_race_relay_lost_main_goes_on_alone(rig: MachineRig) -> None:
    rig.to_phase(Phase.RACE)
    assert rig.lose("r0") == [stop("r0", RELAY)]
    assert rig.phase is Phase.MAIN_WAIT
    assert rig.run(MAIN, 2, 12) == [stop("p0", PREFILL), emit(2, 12)]
    assert rig.phase is Phase.MAIN


def test_race_main_lost_a_new_main_from_the_held_kv(spares: MachineRig) -> None:
    spares.to_phase(Phase.RACE)
    actions = spares.lose("m0")
    assert starts(actions) == [(M, "m1")]
    assert send_kv("p0", PREFILL, "m1", 3) in actions
    assert spares.phase is Phase.RELAY


def test_race_the_ending_rule_pauses_the_relay(rig: MachineRig) -> None:
    rig.to_phase(Phase.RACE)
    rig.run(MAIN, 1, 11)
    assert rig.after(0.99) == []
    assert pause("r0", RELAY, 1) in rig.after(0.02)
    assert rig.phase is Phase.CUT


def test_one_shot_cuts_as_soon_as_main_was_heard(make_rig: MakeRig) -> None:
    rig = make_rig(handoff=HandoffMode.ONE_SHOT)
    rig.to_phase(Phase.RACE)
    assert rig.run(MAIN, 1, 11) == [pause("r0", RELAY, 1)]


def test_no_cut_before_main_was_heard(make_rig: MakeRig) -> None:
    rig = make_rig(handoff=HandoffMode.ONE_SHOT, bound_s=0.5)
    rig.to_phase(Phase.RACE)
    assert pause("r0", RELAY, 1) not in rig.after(3.0)
    assert rig.phase is Phase.RACE
    assert rig.run(MAIN, 1) == []  # an empty answer is not a word of its own
    assert pause("r0", RELAY, 1) in rig.run(MAIN, 1, 11, fed=1)


def test_a_request_may_choose_its_own_mode(rig: MachineRig) -> None:
    rig.arrive(handoff=HandoffMode.ONE_SHOT)
    rig.run(PREFILL, 0, 10)
    rig.landed(RELAY)
    rig.run(RELAY, 1, 11)
    rig.landed(MAIN)
    assert pause("r0", RELAY, 1) in rig.run(MAIN, 1, 11, fed=1)


# ---------------------------------------------------------------- CUT


def test_cut_the_relays_run_below_k_is_accepted_and_fed(rig: MachineRig) -> None:
    rig.to_phase(Phase.CUT)
    assert rig.run(RELAY, 3, 13) == [feed("m0", MAIN, 1, 11, 12, 13), emit(3, 13)]
    assert rig.paused(RELAY, 1, 4) == []
    assert rig.phase is Phase.CUT


def test_cut_mains_token_ends_it(rig: MachineRig) -> None:
    rig.to_phase(Phase.CUT)
    assert rig.run(MAIN, 3, 13) == [stop("p0", PREFILL), stop("r0", RELAY), emit(3, 13)]
    assert rig.phase is Phase.MAIN


def test_cut_the_relays_slot_is_free_when_it_says_k(rig: MachineRig) -> None:
    """Rule 5: the decode slot at once, its KV when main's first token was accepted."""
    rig.to_phase(Phase.CUT)
    view = rig.machine.ctx.world.workers["r0"]
    assert view.slots_used == 1
    rig.paused(RELAY, 1, 3)
    assert view.slots_used == 0
    assert view.tokens_booked > 0
    rig.run(MAIN, 3, 13)
    assert view.tokens_booked == 0


def test_cut_a_pause_that_is_not_answered_is_sent_again(rig: MachineRig) -> None:
    rig.to_phase(Phase.CUT)
    assert pause("r0", RELAY, 1) in rig.after(1.1)
    rig.paused(RELAY, 1, 3)
    assert pause("r0", RELAY, 1) not in rig.after(2.5)


def test_cut_an_old_paused_says_nothing(rig: MachineRig) -> None:
    rig.to_phase(Phase.CUT)
    assert rig.paused(RELAY, 0, 3) == []
    assert rig.req.legs[RELAY].pause_at is None
    assert rig.counts["stale_messages"] == 1


def test_cut_relay_lost_main_is_waited_for(rig: MachineRig) -> None:
    """The relay dies when law = cover: all that main imports is all there is."""
    rig.to_phase(Phase.CUT)
    assert rig.lose("r0") == [stop("r0", RELAY)]
    assert rig.phase is Phase.MAIN_WAIT


def test_cut_main_lost_the_relay_resumes(spares: MachineRig) -> None:
    spares.to_phase(Phase.CUT)
    spares.paused(RELAY, 1, 3)
    actions = spares.lose("m0")
    assert actions[:2] == [stop("m0", MAIN), resume("r0", RELAY, 2)]
    assert starts(actions) == [(M, "m1")]
    assert spares.phase is Phase.RELAY
    assert spares.machine.ctx.world.workers["r0"].slots_used == 1
    assert spares.paused(RELAY, 1, 3) == []  # a late answer to the old pause
    assert spares.req.legs[RELAY].pause_at is None
    assert spares.run(RELAY, 3, 13)[-1] == emit(3, 13)


def test_cut_deadline_main_has_failed_and_the_relay_resumes(spares: MachineRig) -> None:
    spares.to_phase(Phase.CUT)
    spares.paused(RELAY, 1, 3)
    actions = spares.after(5.1)
    assert resume("r0", RELAY, 2) in actions
    assert starts(actions) == [(M, "m1")]
    assert spares.req.lost[M] == 1
    assert "m0" in spares.req.excluded


def test_cut_a_second_pause_has_a_higher_number(spares: MachineRig) -> None:
    spares.to_phase(Phase.CUT)
    spares.lose("m0")
    spares.landed(3)
    spares.now += 2.0
    assert pause("r0", RELAY, 3) in spares.run(3, 2, 12, fed=2)


# ---------------------------------------------------------------- MAIN_WAIT


def test_main_wait_mains_run_is_the_law(make_rig: MakeRig) -> None:
    rig = make_rig(route=Route.DIRECT)
    rig.arrive()
    assert rig.run(PREFILL, 0, 10) == [feed("m0", 1, 0, 10), emit(0, 10)]
    assert rig.phase is Phase.MAIN_WAIT
    rig.landed(1)
    assert rig.run(1, 1, 11) == [stop("p0", PREFILL), emit(1, 11)]
    assert rig.phase is Phase.MAIN


def test_main_wait_main_lost_a_new_main_gets_the_held_kv(make_rig: MakeRig) -> None:
    rig = make_rig(SPARES, route=Route.DIRECT)
    rig.arrive()
    rig.run(PREFILL, 0, 10)
    assert rig.lose("m0") == [
        stop("m0", 1),
        start("m1", 2, M, FULL, law_ids=(10,)),
        send_kv("p0", PREFILL, "m1", 2),
    ]
    assert rig.req.restarts == 0


def test_main_wait_main_and_the_held_kv_lost_prompt_and_law_are_prefilled(
    make_rig: MakeRig,
) -> None:
    rig = make_rig(SPARES, route=Route.DIRECT)
    rig.arrive()
    rig.run(PREFILL, 0, 10)
    rig.landed(1)
    assert rig.lose("p0") == [stop("p0", PREFILL)]  # main has all it needs
    actions = rig.lose("m0")
    assert actions[1] == start("p1", 2, P, len(PROMPT) + 1, law_ids=(10,))
    assert rig.req.restarts == 1


def test_main_wait_prefill_lost_before_its_kv_has_landed_again(make_rig: MakeRig) -> None:
    rig = make_rig(SPARES, route=Route.DIRECT)
    rig.arrive()
    rig.run(PREFILL, 0, 10)
    actions = rig.lose("p0")
    assert starts(actions) == [(P, "p1"), (M, "m0")]
    assert rig.req.lost == {P: 1, R: 0, M: 0}


# ---------------------------------------------------------------- MAIN


def test_main_lost_after_the_handoff_prompt_and_law_are_prefilled(spares: MachineRig) -> None:
    spares.to_phase(Phase.MAIN)
    actions = spares.lose("m0")
    law = (10, 11, 12)
    assert actions[:2] == [stop("m0", MAIN), start("p0", 3, P, len(PROMPT) + 3, law_ids=law)]
    assert starts(actions) == [(P, "p0"), (R, "r0"), (M, "m1")]
    assert spares.phase is Phase.RELAY
    assert spares.run(3, 3, 13)[-1] == emit(3, 13)
    spares.landed(4)
    assert spares.run(4, 4, 14)[-1] == emit(4, 14)
    assert spares.seen["a"] == [10, 11, 12, 13, 14]


def test_main_stalled_counts_as_lost(spares: MachineRig) -> None:
    spares.to_phase(Phase.MAIN)
    actions = spares.after(20.1)
    assert starts(actions) == [(P, "p0"), (R, "r0"), (M, "m1")]
    assert "m0" in spares.req.excluded


def test_a_refilled_token_arrives_while_the_relay_is_the_authority(spares: MachineRig) -> None:
    """After a restart the relay has the law's KV and may be faster than the prefill's token."""
    spares.to_phase(Phase.MAIN)
    spares.lose("m0")
    spares.landed(4)
    assert spares.run(4, 3, 13, 14, fed=3)[-1] == emit(3, 13, 14)
    assert spares.run(3, 3, 13, fed=3) == []  # equal: a duplicate
    assert spares.law == [10, 11, 12, 13, 14]
    assert spares.req.legs[3].produced


def test_a_lower_rank_never_speaks_beside_a_higher_one(spares: MachineRig) -> None:
    """A prefill gives one token; were it to give the next one too, it would not count."""
    spares.to_phase(Phase.MAIN)
    spares.lose("m0")
    spares.landed(4)
    spares.run(4, 3, 13, fed=3)
    assert spares.run(3, 4, 14, fed=3) == []
    assert spares.law == [10, 11, 12, 13]


def test_a_refilled_token_that_differs_changes_nothing(spares: MachineRig) -> None:
    spares.to_phase(Phase.MAIN)
    spares.lose("m0")
    spares.landed(4)
    spares.run(4, 3, 13, fed=3)
    assert spares.run(3, 3, 99, fed=3) == []
    assert spares.law == [10, 11, 12, 13]
    assert spares.req.legs[3].produced
