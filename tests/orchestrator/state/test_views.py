"""The gateway's books of workers and links."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.state.events import WorkerUp
from orchestrator.state.links import LegId, LinkView
from orchestrator.state.views import (
    DEFAULT_PREFILL_TOKENS_PER_S,
    DEFAULT_STEP_S,
    SAME_SITE_RTT_S,
    UNKNOWN_RTT_S,
    Booking,
    WorkerView,
    World,
)
from workers.api.budget import Budget
from workers.api.messages import Load, Role


def view(*, slots: int = 2, tokens: int = 100) -> WorkerView:
    return WorkerView(
        up=WorkerUp(
            worker="w",
            site="hami",
            pool="p",
            roles=frozenset({Role.MAIN}),
            slots=slots,
            max_context=1000,
            kv_total_tokens=tokens,
            kv_bytes_per_token=10,
        )
    )


def pruning(budget: float, *, tokens: int = 1000, **more: int) -> WorkerView:
    sizes = {"slack": 10, "recent": 5, "first": 0} | more
    return WorkerView(up=replace(view(tokens=tokens).up, keeps=Budget(budget=budget, **sizes)))


def load(step_s: float | None, rate: float | None) -> Load:
    return Load(
        worker="w",
        running=1,
        prefill_tokens=0,
        kv_free_tokens=5,
        kv_total_tokens=100,
        kv_held_tokens=95,
        step_s=step_s,
        prefill_tokens_per_s=rate,
    )


def test_a_leg_takes_a_slot_memory_and_its_place_among_the_prompts() -> None:
    w = view()
    w.book(("a", 0), Booking(role=Role.PREFILL, tokens=40, prefill_tokens=40))
    assert (w.slots_used, w.tokens_booked, w.prefill_queue_tokens) == (1, 40, 40)
    assert w.has_room(60)
    assert not w.has_room(61)
    w.book(("b", 0), Booking(role=Role.MAIN, tokens=1))
    assert not w.has_room(1)  # no slot


def test_a_held_or_paused_leg_takes_memory_only() -> None:
    w = view(slots=1)
    w.book(("a", 0), Booking(role=Role.RELAY, tokens=40, decoding_slot=False))
    assert (w.slots_used, w.tokens_booked) == (0, 40)
    assert w.has_room(60)


def shared(w: WorkerView, gateways: int, slots: int, tokens: int) -> None:
    """The worker reports what the legs of others take."""
    others = {"gateways": gateways, "others_slots": slots, "others_tokens": tokens}
    w.report(replace(load(0.01, 900.0), **others))


def test_what_others_take_is_not_there_but_for_a_fair_share() -> None:
    w = view(slots=8, tokens=100)
    shared(w, 2, 3, 30)
    w.book(("a", 0), Booking(role=Role.MAIN, tokens=20))
    assert (w.room, w.share) == (50, 0.5)
    shared(w, 2, 7, 90)
    assert w.has_room(30), "of 8 slots and 100 tokens half are its own to ask for"
    assert not w.has_room(31)
    for leg in "bcd":
        w.book((leg, 0), Booking(role=Role.MAIN, tokens=1))
    assert not w.has_room(1)
    shared(w, 3, 0, 0)
    assert w.has_room(77), "what nobody takes is anybody's"


def test_a_shared_worker_that_refuses_is_full_until_it_reports() -> None:
    w = view(slots=4)
    w.book(("a", 0), Booking(role=Role.MAIN, tokens=1))
    w.refused()
    assert w.has_room(1), "alone it may be wrong once"
    shared(w, 2, 0, 0)
    w.refused()
    assert not w.has_room(1)
    w.unbook(("a", 0))
    assert w.has_room(1), "what comes free of its own it may have again"
    w.book(("b", 0), Booking(role=Role.MAIN, tokens=1))
    shared(w, 2, 1, 0)
    assert w.has_room(1)


def test_speeds_are_the_reported_ones_and_never_0() -> None:
    w = view()
    assert (w.step_s, w.prefill_tokens_per_s) == (DEFAULT_STEP_S, DEFAULT_PREFILL_TOKENS_PER_S)
    w.report(load(0.01, 900.0))
    assert (w.step_s, w.prefill_tokens_per_s) == (0.01, 900.0)
    for nothing in (load(None, None), load(0.0, 0.0)):
        w.report(nothing)
        assert (w.step_s, w.prefill_tokens_per_s) == (DEFAULT_STEP_S, DEFAULT_PREFILL_TOKENS_PER_S)


def test_a_link_has_a_view_for_either_way() -> None:
    world = World(gateway_site="hami")
    there = world.links["hami", "shenzhen"] = LinkView(0.05, 1e6)
    assert world.link("hami", "shenzhen") is there
    assert world.link("shenzhen", "hami") is None
    assert world.rtt_s("hami", "shenzhen") == 0.05
    assert world.connected("hami", "shenzhen")


def test_a_site_reaches_itself_and_no_stranger() -> None:
    world = World(gateway_site="hami")
    assert world.connected("hami", "hami")
    assert not world.connected("hami", "urumqi")
    assert world.rtt_s("hami", "hami") == SAME_SITE_RTT_S
    assert world.rtt_s("hami", "urumqi") == UNKNOWN_RTT_S
    assert world.link("hami", "hami") is None


LEGS = st.tuples(st.sampled_from("ab"), st.integers(0, 2))
BOOKINGS = st.builds(
    Booking,
    role=st.sampled_from(Role),
    tokens=st.integers(0, 99),
    decoding_slot=st.booleans(),
    prefill_tokens=st.integers(0, 99),
)


@given(entries=st.lists(st.tuples(LEGS, st.none() | BOOKINGS)))
def test_a_workers_totals_are_those_of_its_bookings(
    entries: list[tuple[LegId, Booking | None]],
) -> None:
    w = view()
    for leg, booking in entries:
        if booking is None:
            there = leg in w.bookings
            assert w.unbook(leg) is there
        else:
            w.book(leg, booking)
        kept = w.bookings.values()
        assert w.slots_used == sum(b.decoding_slot for b in kept)
        assert w.tokens_booked == sum(b.tokens for b in kept)
        assert w.prefill_queue_tokens == sum(b.prefill_tokens for b in kept)


def test_a_leg_whose_prompt_is_there_takes_what_its_worker_keeps() -> None:
    w, plain = pruning(50), view(tokens=1000)
    for at in (w, plain):
        at.book(("a", 0), Booking(role=Role.MAIN, tokens=300))
    assert w.settle(("a", 0), 200, 0)
    assert w.tokens_booked == 60  # the budget, and the slack that it grows into
    assert not plain.settle(("a", 0), 200, 0)
    assert plain.settle(("a", 0), 200, 150)  # its source kept 50 of 200, and 100 will follow
    assert plain.tokens_booked == 150
    assert not w.settle(("b", 0), 200, 0)


def test_a_short_prompt_is_kept_whole() -> None:
    w = pruning(50)
    w.book(("a", 0), Booking(role=Role.PREFILL, tokens=40))
    assert not w.settle(("a", 0), 40, 0)
    assert [w.leaves(59), w.leaves(60), w.leaves(200, gone=150)] == [59, 50, 50]
    assert pruning(0.5).leaves(200) == 100
    assert pruning(0.5, keep_prompt=1).leaves(200) == 200
