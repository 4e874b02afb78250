"""Rule 1, which tokens become law, and rule 2, who speaks: events in, exact actions out."""

from collections.abc import Callable

import pytest

from orchestrator.lifecycle.machine import FEED_OVERLAP
from orchestrator.lifecycle.phases import Phase
from orchestrator.lifecycle.request import PARKED_RUNS
from orchestrator.state.actions import Fail, Failure, Finish, FinishReason
from orchestrator.state.events import HandoffMode
from tests.orchestrator.lifecycle.machine_rig import (
    MAIN,
    PREFILL,
    PROMPT,
    RELAY,
    M,
    MachineRig,
    P,
    R,
    emit,
    feed,
    finished,
    resync,
    send_kv,
    start,
    stop,
    stops,
)
from workers.api.messages import Cause, TokenRun

EOT = 2

MakeRig = Callable[..., MachineRig]


def test_a_request_starts_all_legs_of_its_route_at_once(rig: MachineRig) -> None:
    """Rule 8: main is armed when the request is routed, not when the KV lands."""
    limit = len(PROMPT) + 40
    assert rig.arrive() == [
        start("p0", PREFILL, P, len(PROMPT)),
        start("r0", RELAY, R, limit),
        send_kv("p0", PREFILL, "r0", RELAY),
        start("m0", MAIN, M, limit),
        send_kv("p0", PREFILL, "m0", MAIN),
    ]


def test_token_0_comes_from_prefill_and_is_fed_to_the_armed_legs(rig: MachineRig) -> None:
    rig.arrive()
    assert rig.run(PREFILL, 0, 10) == [
        feed("r0", RELAY, 0, 10),
        feed("m0", MAIN, 0, 10),
        emit(0, 10),
    ]
    assert rig.phase is Phase.RELAY


def test_end_of_text_at_index_0(rig: MachineRig) -> None:
    rig.arrive(stop_ids=(EOT,))
    actions = rig.run(PREFILL, 0, EOT)
    assert actions[0] == emit(0, EOT)
    assert stops(actions) == {("p0", PREFILL), ("r0", RELAY), ("m0", MAIN)}
    assert finished(actions, FinishReason.STOP)


def test_end_of_text_below_min_tokens_is_a_token_like_any_other(rig: MachineRig) -> None:
    rig.arrive(stop_ids=(EOT,), min_tokens=2)
    rig.run(PREFILL, 0, EOT)
    rig.landed(RELAY)
    rig.run(RELAY, 1, EOT)
    assert rig.phase is Phase.RELAY
    assert finished(rig.run(RELAY, 2, EOT), FinishReason.STOP)
    assert rig.seen["a"] == [EOT, EOT, EOT]


def test_max_tokens_1_needs_no_relay_no_main_and_no_kv(rig: MachineRig) -> None:
    assert rig.arrive(limit=1) == [start("p0", PREFILL, P, len(PROMPT), limit=1)]
    actions = rig.run(PREFILL, 0, 10)
    assert actions[:2] == [emit(0, 10), stop("p0", PREFILL)]
    assert finished(actions, FinishReason.LENGTH)


def test_kv_landed_before_token_0_the_relay_is_not_started(rig: MachineRig) -> None:
    """Rule 11: all of the prompt was at main already."""
    rig.arrive()
    assert rig.landed(MAIN) == [stop("r0", RELAY)]
    assert rig.run(PREFILL, 0, 10) == [feed("m0", MAIN, 0, 10), emit(0, 10)]
    assert rig.phase is Phase.MAIN_WAIT
    assert rig.run(MAIN, 1, 11) == [stop("p0", PREFILL), emit(1, 11)]
    assert rig.phase is Phase.MAIN


def test_kv_landed_at_both_before_token_0_is_a_race(rig: MachineRig) -> None:
    rig.arrive()
    rig.landed(RELAY)
    assert rig.landed(MAIN) == []
    rig.run(PREFILL, 0, 10)
    assert rig.phase is Phase.RACE


def test_a_relay_that_decodes_is_not_stopped_when_main_lands(rig: MachineRig) -> None:
    rig.to_phase(Phase.RELAY)
    assert rig.landed(MAIN) == []
    assert rig.phase is Phase.RACE


def test_relay_tokens_are_accepted_and_fed_to_main_only(rig: MachineRig) -> None:
    rig.arrive()
    rig.run(PREFILL, 0, 10)
    rig.landed(RELAY)
    assert rig.run(RELAY, 1, 11, 12) == [feed("m0", MAIN, 0, 10, 11, 12), emit(1, 11, 12)]
    rig.run(MAIN, 0, fed=3)
    assert rig.run(RELAY, 3, 13) == [feed("m0", MAIN, 3, 13), emit(3, 13)]


def test_a_feed_repeats_the_last_tokens_that_were_not_confirmed(rig: MachineRig) -> None:
    """A lost or overtaken feed leaves a gap and is ignored: the next one makes it good."""
    rig.arrive()
    rig.run(PREFILL, 0, 10)
    rig.landed(RELAY)
    rig.run(RELAY, 1, 11, 12, 13, 14, 15)
    law = (10, 11, 12, 13, 14, 15)
    assert rig.run(RELAY, 6, 16)[0] == feed("m0", MAIN, 6 - FEED_OVERLAP, *law[2:], 16)


def test_mains_first_token_stops_every_other_leg(rig: MachineRig) -> None:
    """Rules 2 and 12: prefill held its KV until then."""
    rig.to_phase(Phase.RACE)
    assert rig.run(MAIN, 2, 12) == [stop("p0", PREFILL), stop("r0", RELAY), emit(2, 12)]
    assert rig.phase is Phase.MAIN
    assert rig.run(MAIN, 3, 13) == [emit(3, 13)]


def test_the_relays_next_token_after_mains_with_other_tokens(rig: MachineRig) -> None:
    """The index is right and the history is not: "the next index" alone is not enough."""
    rig.to_phase(Phase.RACE)
    rig.run(MAIN, 2, 12)
    late = rig.run(RELAY, 3, 14, after=(10, 11, 99), worker="r0")
    assert late == [stop("r0", RELAY)]  # its stop was sent; it is told again
    assert rig.law == [10, 11, 12]


def test_another_history_at_the_next_index_is_refused_from_a_live_leg(rig: MachineRig) -> None:
    rig.to_phase(Phase.RACE)
    rig.run(MAIN, 1, 99, fed=1)  # main's own second token, before it heard the relay's
    assert rig.phase is Phase.RACE
    assert rig.run(MAIN, 2, 98, after=(10, 99), fed=1) == [feed("m0", MAIN, 1, 11)]
    assert rig.law == [10, 11]


def test_mains_late_equal_token_then_its_next_one_wins(rig: MachineRig) -> None:
    rig.to_phase(Phase.RACE)
    assert rig.run(MAIN, 1, 11, fed=1) == []
    assert rig.counts["duplicate_runs"] == 1
    assert rig.run(MAIN, 2, 12) == [stop("p0", PREFILL), stop("r0", RELAY), emit(2, 12)]


def test_a_run_that_begins_in_the_law_and_ends_beyond_it(rig: MachineRig) -> None:
    rig.to_phase(Phase.RACE)
    actions = rig.run(MAIN, 1, 11, 12, 13, fed=1)
    assert actions[-1] == emit(2, 12, 13)
    assert rig.law == [10, 11, 12, 13]


def test_a_run_that_leaves_the_law_on_its_way_beyond_it(rig: MachineRig) -> None:
    rig.to_phase(Phase.RACE)
    assert rig.run(MAIN, 1, 99, 98, fed=1) == [feed("m0", MAIN, 1, 11)]
    assert rig.law == [10, 11]


def test_a_late_and_different_token_is_fed_the_law_again_from_what_it_knows(
    rig: MachineRig,
) -> None:
    rig.to_phase(Phase.RACE)
    rig.run(RELAY, 2, 12)
    assert rig.run(MAIN, 1, 99, fed=1) == [feed("m0", MAIN, 1, 11, 12)]
    assert rig.phase is Phase.RACE


def test_a_late_and_different_token_of_a_leg_that_knows_the_law_is_not_fed(
    rig: MachineRig,
) -> None:
    """It was on its way when the leg heard the law: the leg has truncated by now."""
    rig.to_phase(Phase.RACE)
    rig.run(RELAY, 2, 12)
    rig.run(MAIN, 3, 13, after=(10, 11, 12), fed=3)
    assert rig.phase is Phase.MAIN
    assert rig.run(MAIN, 1, 99, fed=1) == []


def test_a_future_index_waits_for_its_predecessor(rig: MachineRig) -> None:
    rig.to_phase(Phase.MAIN)
    assert rig.run(MAIN, 5, 15, after=(10, 11, 12, 13, 14)) == []
    assert rig.run(MAIN, 4, 14, after=(10, 11, 12, 13)) == []
    assert rig.run(MAIN, 3, 13) == [emit(3, 13, 14, 15)]


def test_a_future_run_after_another_history_is_never_accepted(rig: MachineRig) -> None:
    rig.to_phase(Phase.RACE)
    rig.run(MAIN, 3, 13, after=(10, 11, 99))
    rig.run(RELAY, 2, 12)
    assert rig.law == [10, 11, 12]
    assert rig.phase is Phase.RACE
    assert rig.counts["diverged_runs"] == 1


def test_main_ahead_of_the_law_wins_when_the_law_arrives_there(rig: MachineRig) -> None:
    """Rule 1: check again whenever the law changes."""
    rig.to_phase(Phase.RACE)
    assert rig.run(MAIN, 3, 13, 14, after=(10, 11, 12)) == []
    actions = rig.run(RELAY, 2, 12)
    assert actions == [
        stop("p0", PREFILL),
        stop("r0", RELAY),
        emit(2, 12, 13, 14),
    ]


def test_future_runs_are_kept_in_bounds(rig: MachineRig) -> None:
    rig.to_phase(Phase.MAIN)
    for index in range(4, 4 + 3 * PARKED_RUNS):
        rig.run(MAIN, index, index, after=(10, 11, 12, 13, *range(4, index)))
    assert len(rig.req.legs[MAIN].parked) == PARKED_RUNS


def test_a_lost_first_token_of_main_is_asked_for_although_main_speaks_on(
    rig: MachineRig,
) -> None:
    rig.to_phase(Phase.MAIN_WAIT)
    rig.landed(MAIN)
    history = [10, 11, 12]  # its token 12 was lost
    actions = []
    for index in range(3, 33):
        actions += rig.after(0.05)
        actions += rig.run(MAIN, index, 10 + index, after=history)
        history.append(10 + index)
    assert actions[0] == resync("m0", MAIN, 2)
    found = rig.run(MAIN, 2, *history[2:])
    assert found[-1] == emit(2, *history[2:])


def test_a_lost_token_of_the_authority_is_asked_for_although_it_speaks_on(
    rig: MachineRig,
) -> None:
    rig.to_phase(Phase.MAIN)
    actions = []
    for index in range(4, 30):
        actions += rig.after(0.05)
        actions += rig.run(MAIN, index, 10 + index, after=range(10, 10 + index))
    assert actions.count(resync("m0", MAIN, 3)) == 1


def test_a_race_in_which_main_is_ahead_asks_for_nothing(rig: MachineRig) -> None:
    rig.to_phase(Phase.RACE)
    actions = []
    for index in range(3, 9):
        actions += rig.after(0.2)
        actions += rig.run(MAIN, index, 10 + index, after=range(10, 10 + index))
        if index < 6:
            actions += rig.run(RELAY, index - 1, 9 + index)
            break
    assert not [a for a in actions if a == resync("m0", MAIN, 2)]


def test_a_lost_feed_is_sent_again_although_the_leg_speaks(rig: MachineRig) -> None:
    """Rule 6. A slow main whose feed was lost would otherwise decode all of it by itself."""
    rig.to_phase(Phase.RACE)
    actions = []
    for step in range(24):
        rig.now += 0.03
        actions += rig.run(RELAY, 2 + step, 12 + step)
        rig.now += 0.03
        if step % 2:
            actions += rig.run(MAIN, 1 + step // 2, 11 + step // 2, fed=1)
        actions += rig.after(0.01)
        asked = resync("m0", MAIN, len(rig.law))
        if asked in actions:
            break
    assert actions[actions.index(asked) - 1] == feed("m0", MAIN, 1, *rig.law[1:])
    assert rig.now < 1000 + 1.5


def test_a_leg_that_says_what_it_knows_is_not_fed_again(rig: MachineRig) -> None:
    rig.to_phase(Phase.RACE)
    actions = []
    for step in range(20):
        actions += rig.after(0.04)
        actions += rig.run(RELAY, 2 + step, 12 + step)
        actions += rig.after(0.04)
        actions += rig.run(MAIN, 1 + step, 11 + step, fed=1 + step)
        if rig.phase is not Phase.RACE:
            break
    assert not [a for a in actions if a == resync("m0", MAIN, len(rig.law))]


def test_a_silent_leg_is_asked_with_back_off(rig: MachineRig) -> None:
    rig.to_phase(Phase.RELAY)
    asked = []
    for _ in range(40):
        at = rig.now
        if resync("r0", RELAY, 2) in rig.after(0.25):
            asked.append(round(at + 0.25 - 1000, 2))
    assert asked == [1.0, 3.0, 7.0]
    rig.run(RELAY, 2)  # an empty answer ends the back-off
    assert resync("r0", RELAY, 2) in rig.after(1.0)


def test_a_reconnected_worker_is_asked_and_fed_at_once(rig: MachineRig) -> None:
    rig.to_phase(Phase.RELAY)
    assert rig.reconnect("m0") == [feed("m0", MAIN, 0, 10, 11), resync("m0", MAIN, 2)]
    assert rig.reconnect("r0") == [feed("r0", RELAY, 1, 11), resync("r0", RELAY, 2)]


def test_relay_and_main_never_give_token_0(rig: MachineRig) -> None:
    rig.arrive()
    assert rig.run(MAIN, 0, 10) == [stop("r0", RELAY)]  # it proves that its KV has landed
    assert rig.law == []
    assert rig.counts["premature_runs"] == 1
    rig.run(PREFILL, 0, 10)
    assert rig.law == [10]


def test_a_run_proves_that_the_kv_has_landed(rig: MachineRig) -> None:
    """The word that it landed may come later, or never."""
    rig.arrive()
    rig.run(PREFILL, 0, 10)
    rig.run(RELAY, 1, 11)
    assert rig.req.legs[RELAY].landed
    rig.run(MAIN, 1, 11, fed=1)
    assert rig.phase is Phase.RACE
    rig.landed(MAIN)
    assert rig.phase is Phase.RACE


def test_law_said_again_by_a_leg_without_kv_proves_nothing(rig: MachineRig) -> None:
    rig.to_phase(Phase.RELAY)
    said = TokenRun(request="a", epoch=MAIN, index=0, ids=(10, 11), hist=0, fed=2)
    assert rig.say(MAIN, said) == []
    assert rig.phase is Phase.RELAY


def test_a_run_of_an_ended_epoch_is_dropped_and_the_leg_stopped_again(rig: MachineRig) -> None:
    rig.to_phase(Phase.MAIN)
    before = rig.law[:]
    assert rig.run(RELAY, 3, 13, worker="r0") == [stop("r0", RELAY)]
    assert rig.run(RELAY, 4, 14, after=(*before, 13), worker="r0") == []  # not each time
    rig.after(1.0)
    assert rig.run(RELAY, 5, 15, after=(*before, 13, 14), worker="r0") == [stop("r0", RELAY)]
    assert rig.law == before


def test_a_run_from_the_wrong_worker_is_dropped(rig: MachineRig) -> None:
    rig.to_phase(Phase.RACE)
    assert rig.run(MAIN, 2, 12, worker="r0") == [stop("r0", MAIN)]
    assert rig.law == [10, 11]


def test_a_repeated_run_changes_nothing(rig: MachineRig) -> None:
    rig.to_phase(Phase.MAIN)
    assert rig.run(MAIN, 2, 12) == []
    assert rig.law == [10, 11, 12]


def test_tokens_beyond_the_limit_are_not_accepted(rig: MachineRig) -> None:
    rig.arrive(limit=4)
    rig.run(PREFILL, 0, 10)
    actions = rig.run(RELAY, 1, 11, 12, 13, 14, 15)
    assert actions[0] == emit(1, 11, 12, 13)
    assert finished(actions, FinishReason.LENGTH)


def test_a_relay_that_reaches_the_end_finishes_the_request(rig: MachineRig) -> None:
    """Rule 10: the KV never landed; its import ends with main's leg."""
    rig.arrive(stop_ids=(EOT,))
    rig.run(PREFILL, 0, 10)
    actions = rig.run(RELAY, 1, 11, EOT, 13)
    assert actions[0] == emit(1, 11, EOT)
    assert stops(actions) == {("p0", PREFILL), ("r0", RELAY), ("m0", MAIN)}
    assert finished(actions, FinishReason.STOP)


def test_main_guesses_end_of_text_and_the_law_agrees(rig: MachineRig) -> None:
    rig.arrive(stop_ids=(EOT,))
    rig.run(PREFILL, 0, 10)
    rig.landed(RELAY)
    rig.landed(MAIN)
    rig.run(MAIN, 2, EOT, after=(10, 11))
    assert finished(rig.run(RELAY, 1, 11), FinishReason.STOP)
    assert rig.seen["a"] == [10, 11, EOT]


def test_main_guesses_end_of_text_and_the_law_says_otherwise(rig: MachineRig) -> None:
    rig.arrive(stop_ids=(EOT,))
    rig.run(PREFILL, 0, 10)
    rig.landed(RELAY)
    rig.landed(MAIN)
    rig.run(MAIN, 2, EOT, after=(10, 11))
    rig.run(RELAY, 1, 12)  # the law goes another way
    assert rig.phase is Phase.RACE
    assert rig.law == [10, 12]
    rig.run(RELAY, 2, 13)
    assert rig.end is None


def test_a_stop_string_completed_by_mains_first_token(rig: MachineRig) -> None:
    rig.arrive(stop_strings=("11,12",))
    rig.run(PREFILL, 0, 10)
    rig.landed(RELAY)
    rig.run(RELAY, 1, 11)
    rig.landed(MAIN)
    actions = rig.run(MAIN, 2, 12, 13)
    assert finished(actions, FinishReason.STOP, "11,12")
    assert stops(actions) == {("p0", PREFILL), ("r0", RELAY), ("m0", MAIN)}
    assert rig.seen["a"] == [10, 11, 12]  # nothing after it is accepted or billed
    assert actions[-1].summary.completion_tokens == 3


def test_a_stop_string_within_a_run_of_the_relay(rig: MachineRig) -> None:
    rig.arrive(stop_strings=("7,8", "11"))
    rig.run(PREFILL, 0, 7)
    actions = rig.run(RELAY, 1, 8, 11)
    assert rig.seen["a"] == [7, 8]
    assert finished(actions, FinishReason.STOP, "7,8")


def test_a_stop_string_wins_over_the_limit_it_ends_at(rig: MachineRig) -> None:
    rig.arrive(limit=2, stop_strings=("10,11",))
    rig.run(PREFILL, 0, 10)
    assert finished(rig.run(RELAY, 1, 11), FinishReason.STOP, "10,11")


def test_stop_strings_are_matched_before_pacing(rig: MachineRig) -> None:
    """Feeding and matching never wait for the client."""
    rig.load("m0", step_s=0.5)
    rig.arrive(stop_strings=("12",), handoff=HandoffMode.AUTO)
    rig.run(PREFILL, 0, 10)
    rig.landed(RELAY)
    rig.run(RELAY, 1, 11, 12, 13)
    assert isinstance(rig.end, Finish)
    assert rig.seen["a"] == [10, 11, 12]


@pytest.mark.parametrize(
    ("cause", "failure"),
    [(Cause.SENSELESS, Failure.TOO_LONG), (Cause.GRAMMAR, Failure.GRAMMAR)],
)
def test_a_refusal_for_good_is_the_clients_mistake(
    rig: MachineRig, cause: Cause, failure: Failure
) -> None:
    rig.arrive()
    actions = rig.refused(MAIN, cause=cause)
    assert isinstance(actions[-1], Fail)
    assert actions[-1].failure is failure
    assert stops(actions) == {("p0", PREFILL), ("r0", RELAY), ("m0", MAIN)}


def test_a_repeated_arrival_changes_nothing(rig: MachineRig) -> None:
    rig.arrive()
    assert rig.arrive() == []


def test_pacing_ends_when_the_lead_is_given_back(make_rig: MakeRig) -> None:
    """After an auto handoff tokens are held back only while there are some to give back."""
    rig = make_rig(handoff=HandoffMode.AUTO)
    rig.to_phase(Phase.MAIN)
    while rig.req.released < len(rig.req.law):
        rig.after(0.1)
    assert emit(3, 13, 14, 15) in rig.run(MAIN, 3, 13, 14, 15)
