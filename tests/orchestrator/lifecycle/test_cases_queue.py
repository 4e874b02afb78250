"""Arrivals, the bounded queue, workers that come, go, drain and refuse."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from orchestrator.lifecycle.machine import TOMBSTONES
from orchestrator.lifecycle.phases import Phase
from orchestrator.policy.prefixes import block_hashes
from orchestrator.state.actions import Fail, Failure, Finish
from orchestrator.state.events import (
    ClientGone,
    Heard,
    Reconnected,
    RolesTold,
    Route,
    WorkerDraining,
    WorkerLost,
    WorkerReturned,
)
from tests.orchestrator.lifecycle.machine_rig import (
    HAMI,
    MAIN,
    PREFILL,
    PROMPT,
    RELAY,
    SPARES,
    TWO_SITES,
    M,
    MachineRig,
    P,
    R,
    starts,
    stop,
    worker_up,
)
from workers.api.messages import Landed, Paused, Refused, TokenRun

MakeRig = Callable[..., MachineRig]


def failure(rig: MachineRig) -> Failure | None:
    return rig.end.failure if isinstance(rig.end, Fail) else None


# ---------------------------------------------------------------- 503 and 400


def test_no_worker_is_unavailable_at_once(make_rig: MakeRig) -> None:
    rig = make_rig(())
    (action,) = rig.arrive()
    assert isinstance(action, Fail)
    assert action.failure is Failure.UNAVAILABLE
    assert action.retry_after_s == 5.0


def test_queue_full_is_overloaded_at_once(make_rig: MakeRig) -> None:
    rig = make_rig(slots=1, queue_limit=2)
    for name in ("first", "waits", "waits too"):
        rig.arrive(name)
        assert rig.end is None
    (action,) = rig.arrive("a")
    assert isinstance(action, Fail)
    assert action.failure is Failure.OVERLOADED
    assert action.retry_after_s == 1.0
    assert rig.machine.queued == 2


def test_a_full_queue_is_shared_by_tenants(make_rig: MakeRig) -> None:
    rig = make_rig(slots=1, queue_limit=3)
    for name in ("first", "x1", "x2", "x3"):
        rig.arrive(name, tenant="x")
    for name, gone in (("y1", "x3"), ("y2", None)):
        rig.arrive(name, tenant="y")
        if gone is None:
            assert failure(rig) is Failure.OVERLOADED, "it would have more than x"
        else:
            assert rig.ends[gone].failure is Failure.OVERLOADED
            assert name not in rig.ends
    assert rig.machine.queued == 3
    rig.tell(ClientGone(request="first"))
    assert rig.machine.requests["x1"].legs
    rig.tell(ClientGone(request="x1"))
    assert rig.machine.requests["y1"].legs, "tenants take turns"


def test_no_queue_at_all(make_rig: MakeRig) -> None:
    rig = make_rig(slots=1, queue_limit=0)
    rig.arrive("first")
    rig.arrive()
    assert failure(rig) is Failure.OVERLOADED


def test_too_long_for_any_worker(rig: MachineRig) -> None:
    (action,) = rig.arrive(limit=5000)
    assert isinstance(action, Fail)
    assert action.failure is Failure.TOO_LONG
    assert action.retry_after_s is None


def test_too_long_is_found_out_in_the_queue_too(make_rig: MakeRig) -> None:
    rig = make_rig(slots=1)
    rig.arrive("first")
    rig.arrive(limit=5000)
    rig.tell(ClientGone(request="first"))
    assert failure(rig) is Failure.TOO_LONG


def test_a_dead_pool_is_a_failure_any_live_worker_serves(make_rig: MakeRig) -> None:
    rig = make_rig(HAMI)
    assert starts(rig.arrive()) == [(P, "p0"), (M, "p0")]


def test_the_last_worker_serves_all(make_rig: MakeRig) -> None:
    rig = make_rig((("r0", "hami", (R,)),))
    assert starts(rig.arrive()) == [(P, "r0"), (M, "r0")]


def test_max_tokens_1_is_served_while_main_is_full(make_rig: MakeRig) -> None:
    rig = make_rig(tokens=100)
    rig.arrive("first", limit=60)
    assert starts(rig.arrive(limit=1)) == [(P, "p0")]


# ---------------------------------------------------------------- the queue's order


def test_the_queue_is_served_in_order_when_room_is_made(make_rig: MakeRig) -> None:
    rig = make_rig(slots=1)
    for name in ("first", "second", "third"):
        rig.arrive(name)
    assert rig.machine.queued == 2
    rig.name = "first"
    assert starts(rig.leave()) == [(P, "p0"), (R, "r0"), (M, "m0")]
    assert rig.machine.requests["second"].phase is Phase.PREFILL
    assert rig.machine.queued == 1
    rig.name = "second"
    rig.leave()
    assert rig.machine.queued == 0


def test_the_smallest_priority_gets_the_next_place(make_rig: MakeRig) -> None:
    rig = make_rig(slots=1, queue_limit=3)
    rig.arrive("first")
    for name, priority in (("batch", 5), ("usual", 0), ("urgent", -1)):
        rig.arrive(name, priority=priority)
    rig.arrive("more urgent", priority=-9)
    assert failure(rig) is Failure.OVERLOADED  # it is the line's order and not its bound
    served = []
    for _ in range(4):
        served += [name for name, req in rig.machine.requests.items() if req.legs]
        rig.tell(ClientGone(request=served[-1]))
    assert served == ["first", "urgent", "usual", "batch"]


def test_nobody_overtakes_the_queue(make_rig: MakeRig) -> None:
    rig = make_rig(tokens=200)
    rig.arrive("first", limit=160)
    rig.arrive("long", limit=160)
    assert starts(rig.arrive("short", limit=10)) == []
    assert rig.machine.queued == 2


def test_a_finished_prefill_frees_its_slot_for_the_next_in_the_queue(make_rig: MakeRig) -> None:
    rig = make_rig((("p0", "hami", (P,)),))
    rig.tell(replace(rig.machine.ctx.world.workers["p0"].up, slots=1))
    rig.tell(worker_up("r0", "hami", (R,)))
    rig.tell(worker_up("m0", "shenzhen", (M,)))
    rig.arrive("first")
    rig.arrive("a")
    assert rig.phase is Phase.QUEUED
    rig.name = "first"
    assert starts(rig.run(PREFILL, 0, 10)) == [(P, "p0"), (R, "r0"), (M, "m0")]


def test_a_paused_relay_frees_its_slot_for_the_next_in_the_queue(make_rig: MakeRig) -> None:
    rig = make_rig(SPARES, slots=3)
    rig.tell(replace(rig.machine.ctx.world.workers["r0"].up, slots=1))
    rig.lose("r1")
    rig.to_phase(Phase.CUT)
    assert rig.machine.ctx.world.workers["r0"].slots_used == 1
    rig.paused(RELAY, 1, 3)
    rig.name = "b"
    assert (R, "r0") in starts(rig.arrive("b"))


def test_a_request_that_nobody_can_serve_does_not_block_the_queue(make_rig: MakeRig) -> None:
    """Two sites without a link; one leg of the large request fits, its two legs fit nobody."""
    rig = make_rig((("x0", "hami", (P, M)), ("y0", "urumqi", (P, M))), slots=2, tokens=1024)
    for name in ("first", "second", "third"):
        rig.arrive(name)
    rig.arrive("large", limit=1000)
    rig.arrive("a")
    assert rig.machine.queued == 3
    rig.tell(ClientGone(request="first"))
    assert rig.machine.requests["third"].legs
    rig.tell(ClientGone(request="second"))
    assert rig.req.legs
    assert rig.machine.queued == 1


def test_an_arrival_is_tried_behind_a_request_that_nobody_can_serve(make_rig: MakeRig) -> None:
    rig = make_rig((("x0", "hami", (P, M)), ("y0", "urumqi", (P, M))), slots=2, tokens=1024)
    rig.arrive("first")
    rig.arrive("second")
    rig.arrive("third")
    rig.arrive("large", limit=1000)
    for name in ("first", "second", "third"):
        rig.tell(ClientGone(request=name))
    assert rig.machine.queued == 1
    assert starts(rig.arrive()) == [(P, "x0"), (M, "x0")]


def test_a_worker_that_comes_up_serves_the_queue(make_rig: MakeRig) -> None:
    rig = make_rig(slots=1)
    rig.arrive("first")
    rig.arrive()
    assert starts(rig.tell(worker_up("x0", "hami", (P, M)))) == [(P, "x0"), (M, "x0")]


def test_a_first_word_of_a_link_opens_a_way(make_rig: MakeRig) -> None:
    rig = make_rig((*TWO_SITES, ("m1", "urumqi", (M,))), slots=1)
    rig.arrive("first", route=Route.DIRECT)
    rig.run(PREFILL, 0, 10)
    rig.arrive()
    assert rig.phase is Phase.QUEUED
    rig.tell(replace(rig.log[0][1], site_a="hami", site_b="urumqi"))
    assert rig.req.legs


def test_with_its_pool_dead_a_waiting_request_goes_to_any_role(make_rig: MakeRig) -> None:
    rig = make_rig(tokens=512)
    rig.tell(worker_up("r1", "hami", (R,)))
    rig.arrive("first", limit=400)
    rig.arrive(limit=400)
    assert rig.phase is Phase.QUEUED
    rig.lose("m0")
    assert rig.phase is Phase.PREFILL
    assert {leg.site for leg in rig.req.legs.values()} == {"hami"}


def test_those_whose_client_has_tokens_go_before_new_ones(make_rig: MakeRig) -> None:
    rig = make_rig((("x0", "hami", (P, M)),), slots=2)
    rig.arrive("begun")
    rig.run(PREFILL, 0, 10)
    rig.arrive("new")  # the prefill's slot is free, but a local request takes two
    up = rig.machine.ctx.world.workers["x0"].up
    rig.lose("x0")
    assert rig.machine.queued == 2
    actions = rig.tell(up)
    assert starts(actions) == [(P, "x0"), (M, "x0")]
    assert {a.message.request for a in actions} == {"begun"}


# ---------------------------------------------------------------- workers


def test_a_draining_worker_gets_no_new_legs_and_keeps_those_it_has(
    make_rig: MakeRig,
) -> None:
    rig = make_rig(SPARES)
    rig.arrive("first")
    assert rig.tell(WorkerDraining(worker="p0")) == []
    assert rig.machine.requests["first"].legs[PREFILL].worker == "p0"
    assert starts(rig.arrive()) == [(P, "p1"), (R, "r1"), (M, "m1")]
    rig.tell(WorkerReturned(worker="p0"))
    assert starts(rig.arrive("again")) == [(P, "p0"), (R, "r0"), (M, "m0")]


def test_a_restarted_worker_has_lost_its_legs_and_its_cache(make_rig: MakeRig) -> None:
    rig = make_rig(SPARES)
    rig.to_phase(Phase.MAIN)
    assert rig.machine.ctx.prefixes.hits(rig.req.prefix, ["m0"]) == {"m0": 16}
    actions = rig.tell(rig.machine.ctx.world.workers["m0"].up)
    assert stop("m0", MAIN) in actions
    assert starts(actions)[0] == (P, "p0")
    assert rig.req.lost[M] == 1
    assert rig.machine.ctx.prefixes.hits(rig.req.prefix, ["m0"]) == {}
    assert not rig.machine.ctx.world.workers["m0"].draining


def test_only_what_main_lacks_is_under_way(rig: MachineRig) -> None:
    rig.to_phase(Phase.MAIN)
    rig.link(1e6)
    link = rig.machine.ctx.world.link("hami", "shenzhen")
    assert link is not None
    for name, salt, known in (("again", "", 16), ("a stranger's", "salted", 0)):
        rig.arrive(name, cache_salt=salt)
        main = rig.req.main
        assert main is not None
        per_token = rig.machine.ctx.world.workers[main.worker].up.kv_bytes_per_token
        assert link.queued[name, main.epoch].nbytes == (len(PROMPT) - known) * per_token


def test_who_brings_the_last_token_has_the_answer_too(rig: MachineRig) -> None:
    rig.arrive(limit=28)
    rig.run(PREFILL, 0, 10)
    rig.landed(RELAY)
    rig.run(RELAY, 1, 11)
    rig.landed(MAIN)
    rig.run(MAIN, 2, *range(12, 38))
    assert isinstance(rig.ends["a"], Finish)
    next_turn = block_hashes((*PROMPT, *range(10, 38), *range(300, 320)), "")
    # Prompt and answer are three blocks, but nobody ever computed the answer's last token.
    hits = rig.machine.ctx.prefixes.hits(next_turn, ["p0", "r0", "m0"])
    assert hits == {"p0": 16, "r0": 16, "m0": 32}


def test_a_restarted_worker_that_drained_takes_legs_again(rig: MachineRig) -> None:
    up = rig.machine.ctx.world.workers["m0"].up
    rig.tell(WorkerDraining(worker="m0"))
    rig.tell(up)
    assert (M, "m0") in starts(rig.arrive())


def test_a_worker_that_comes_up_draining_takes_no_legs(make_rig: MakeRig) -> None:
    """Its site's lease has lapsed; whoever waits must not be let in before that is known."""
    rig = make_rig(SPARES)
    rig.tell(replace(rig.machine.ctx.world.workers["m0"].up, draining=True))
    assert (M, "m1") in starts(rig.arrive())
    rig.tell(WorkerReturned(worker="m0"))
    assert (M, "m0") in starts(rig.arrive("again"))


def test_a_lost_worker_that_was_lost_before_changes_nothing(rig: MachineRig) -> None:
    rig.to_phase(Phase.RELAY)
    rig.lose("m0")
    assert rig.lose("m0") == []


def test_relay_and_main_lost_together_the_held_kv_serves_a_new_main(make_rig: MakeRig) -> None:
    rig = make_rig(SPARES)
    rig.to_phase(Phase.RACE)
    rig.lose("r0")
    assert starts(rig.lose("m0")) == [(M, "m1"), (R, "r1")]
    assert rig.req.restarts == 0


def test_relay_and_main_lost_together_without_a_hold_prompt_and_law_are_prefilled(
    make_rig: MakeRig,
) -> None:
    rig = make_rig(SPARES)
    rig.to_phase(Phase.RACE)
    rig.lose("p0")
    rig.lose("r0")
    actions = rig.lose("m0")
    assert starts(actions) == [(P, "p1"), (R, "r1"), (M, "m1")]
    assert {a.message.law_ids for a in actions if starts([a])} == {(10, 11)}


def test_prefill_and_relay_on_one_worker_are_lost_together(make_rig: MakeRig) -> None:
    rig = make_rig((("x0", "hami", (P, R)), ("m0", "shenzhen", (M,)), ("x1", "hami", (P, R))))
    rig.arrive(route=Route.RELAY)
    rig.run(PREFILL, 0, 10)
    rig.lose("x1")
    worker = rig.req.legs[rig.legs()["relay"]].worker
    rig.landed(rig.legs()["relay"])
    rig.tell(worker_up("x1", "hami", (P, R)))
    actions = rig.lose(worker)
    assert starts(actions) == [(P, "x1"), (R, "x1"), (M, "m0")]
    assert rig.law == [10]


def test_a_whole_site_is_lost_the_other_serves(make_rig: MakeRig) -> None:
    rig = make_rig((*TWO_SITES, ("p1", "shenzhen", (P,))))
    rig.arrive(route=Route.RELAY)
    rig.run(PREFILL, 0, 10)
    rig.landed(RELAY)
    rig.run(RELAY, 1, 11)
    rig.lose("p0")
    actions = rig.lose("r0")
    assert starts(actions) == [(P, "p1"), (M, "m0")]
    assert {a.message.law_ids for a in actions if starts([a])} == {(10, 11)}


# ---------------------------------------------------------------- what nobody asked for


@pytest.mark.parametrize(
    "event",
    [
        ClientGone(request="nobody"),
        WorkerLost(worker="nobody", reason="?"),
        WorkerDraining(worker="nobody"),
        WorkerReturned(worker="nobody"),
        RolesTold(worker="nobody", roles=frozenset()),
        Reconnected(worker="nobody"),
        Heard(worker="nobody", message=Landed(request="x", epoch=0, covered=0)),
        Heard(worker="m0", message=Paused(request="x", epoch=0, seq=1, at=0)),
        Heard(worker="m0", message=Refused(request="x", epoch=0, reason="?")),
    ],
)
def test_events_about_the_unknown_change_nothing(rig: MachineRig, event: object) -> None:
    assert rig.tell(event) == []  # type: ignore[arg-type]


def test_a_load_of_an_unknown_worker_is_dropped(rig: MachineRig) -> None:
    assert rig.load("nobody") == []
    assert "nobody" not in rig.machine.ctx.world.workers


def test_an_unknown_leg_that_decodes_is_stopped(rig: MachineRig) -> None:
    """A gateway that restarted, or a stop that came before the start."""
    run = TokenRun(request="x", epoch=3, index=0, ids=(1,), hist=0, fed=0)
    assert rig.hear("m0", run) == [stop("m0", 3, "x")]


def test_what_is_remembered_of_dead_legs_is_bounded(rig: MachineRig) -> None:
    for i in range(TOMBSTONES + 50):
        run = TokenRun(request=f"x{i}", epoch=0, index=0, ids=(1,), hist=0, fed=0)
        rig.hear("m0", run)
    assert len(rig.machine._stopped_at) == TOMBSTONES


def test_the_heap_of_deadlines_does_not_grow_with_tokens(rig: MachineRig) -> None:
    rig.arrive(limit=3000)
    rig.run(PREFILL, 0, 10)
    rig.landed(MAIN)
    for i in range(2000):
        rig.run(MAIN, 1 + i, 7)
        rig.after(0.02)
    assert len(rig.machine._due) < 200
    assert len(rig.req.account.releases) < 40


def test_nothing_is_kept_of_requests_that_have_ended(rig: MachineRig) -> None:
    for i in range(500):
        rig.arrive(f"r{i}")
        rig.leave()
    assert len(rig.machine._due) < 200
    assert not rig.machine.requests
    assert not rig.machine.queued
    assert [view.bookings for view in rig.machine.ctx.world.workers.values() if view.bookings] == []
    assert [link.queued for link in rig.machine.ctx.world.links.values() if link.queued] == []


def test_a_name_may_come_again_after_its_end(rig: MachineRig) -> None:
    rig.arrive()
    rig.leave()
    assert starts(rig.arrive()) == [(P, "p0"), (R, "r0"), (M, "m0")]
    assert rig.run(PREFILL, 0, 10)


def test_the_summary_tells_what_happened(rig: MachineRig) -> None:
    rig.arrive(limit=6)
    rig.after(0.1)
    rig.run(PREFILL, 0, 10, cached=2)
    rig.landed(RELAY)
    rig.after(0.05)
    rig.run(RELAY, 1, 11)
    rig.after(0.05)
    rig.run(RELAY, 2, 12)
    rig.landed(MAIN)
    rig.after(0.08)
    rig.run(MAIN, 3, 13)
    rig.after(0.03)
    rig.run(MAIN, 4, 14, 15)
    assert isinstance(rig.end, Finish)
    s = rig.end.summary
    assert (s.route, s.handoff, s.handoff_index) == (Route.RELAY, rig.config.handoff, 3)
    assert (s.relay_tokens, s.prompt_tokens, s.completion_tokens) == (2, len(PROMPT), 6)
    assert s.cached_tokens == 2
    assert s.queue_s == 0.0
    assert s.prefill_s == pytest.approx(0.1)
    assert s.kv_transfer_s == pytest.approx(0.1)
    assert s.relay_s == pytest.approx(0.05)
    # 80 ms between the last token of the relay and main's first; the relay's step was 50
    assert s.handoff_gap_s == pytest.approx(0.03)
    assert s.sites == {"prefill": "p0", "relay": "r0", "main": "m0"}
    assert s.recoveries == 0


def test_the_summary_of_a_request_without_a_handoff(make_rig: MakeRig) -> None:
    rig = make_rig(route=Route.DIRECT)
    rig.arrive(limit=2)
    rig.run(PREFILL, 0, 10)
    rig.landed(1)
    rig.run(1, 1, 11)
    assert isinstance(rig.end, Finish)
    s = rig.end.summary
    assert (s.handoff, s.handoff_index, s.handoff_gap_s, s.relay_s) == (None, None, None, None)
