"""What a link is believed to give: measured while that is fresh and the line was full."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.state.links import (
    FORGOTTEN_S,
    FRESH_S,
    REPORTS_S,
    TOLD_S,
    LegId,
    LinkView,
    Transfer,
)
from workers.api.messages import LinkLoad

TOLD = 1e6  # bytes/s
FULL_LINE = LinkLoad(
    site="shenzhen",
    goodput_bytes_per_s=2e5,
    rtt_s=0.04,
    loss=0.01,
    queue_bytes=400_000,
    uncoded_bytes=0,
    sent_bytes=1_000_000,
    resent_bytes=0,
)


def new_link() -> LinkView:
    return LinkView(0.05, TOLD)


def seen(at: float, load: LinkLoad = FULL_LINE, **changes: object) -> LinkView:
    """A link whose sender has reported the same for a heartbeat, the last time at `at`."""
    link = new_link()
    for when in (at - 1.0, at):
        link.report("p0", replace(load, **changes), when)  # type: ignore[arg-type]
    return link


def test_before_anything_is_measured_the_topology_is_believed() -> None:
    link = new_link()
    assert (link.goodput_bytes_per_s(5.0), link.rtt_s(5.0)) == (TOLD, 0.05)
    assert (link.waiting_bytes(5.0), link.loss) == (0, None)


def test_a_full_line_is_believed_while_it_is_fresh() -> None:
    link = seen(100.0)
    for now in (100.0, 100.0 + FRESH_S):
        assert link.goodput_bytes_per_s(now) == pytest.approx(2e5)
        assert link.rtt_s(now) == pytest.approx(0.04)
    assert link.loss == pytest.approx(0.01)


def test_what_is_not_measured_any_more_is_believed_less_and_less() -> None:
    link = seen(100.0)
    half = 100.0 + (FRESH_S + FORGOTTEN_S) / 2
    assert link.goodput_bytes_per_s(half) == pytest.approx((2e5 + TOLD) / 2)
    assert link.rtt_s(half) == pytest.approx(0.045)
    for now in (100.0 + FORGOTTEN_S, 1e6):
        assert (link.goodput_bytes_per_s(now), link.rtt_s(now)) == (TOLD, 0.05)


@pytest.mark.parametrize(
    "changes",
    [
        {"queue_bytes": 0},
        {"queue_bytes": 15_000},  # less than two round trips of 40 ms at 2e5 bytes/s hold
        {"goodput_bytes_per_s": None},
        {"goodput_bytes_per_s": 0.0},
        {"goodput_bytes_per_s": -5.0},
    ],
)
def test_a_line_that_was_not_full_says_nothing_of_its_goodput(changes: dict[str, object]) -> None:
    """One small transfer on an idle line brings a low sample; the line may be far faster."""
    assert seen(100.0, **changes).goodput_bytes_per_s(100.0) == TOLD


def test_a_moment_is_not_enough() -> None:
    """The first acknowledgements after an idle time come late, and make goodput look low."""
    link = new_link()
    link.report("p0", FULL_LINE, 99.0)
    assert link.goodput_bytes_per_s(99.0) == TOLD
    link.report("p0", replace(FULL_LINE, queue_bytes=0), 100.0)
    link.report("p0", FULL_LINE, 101.0)
    assert link.goodput_bytes_per_s(101.0) == TOLD


def test_nothing_is_faster_than_the_topology_says() -> None:
    link = seen(100.0, goodput_bytes_per_s=5e6, queue_bytes=10_000_000)
    assert link.goodput_bytes_per_s(100.0) == TOLD


def test_an_absurdly_low_goodput_is_no_division_by_0_and_does_not_last() -> None:
    link = seen(100.0, goodput_bytes_per_s=1e-9)
    assert link.goodput_bytes_per_s(100.0) == 1.0
    assert link.goodput_bytes_per_s(100.0 + FRESH_S + 5.0) == pytest.approx(TOLD / 10)


def test_workers_that_send_at_once_share_the_line() -> None:
    link = new_link()
    for when in (99.0, 100.0):
        link.report("p0", FULL_LINE, when)
        link.report("p1", replace(FULL_LINE, goodput_bytes_per_s=3e5, rtt_s=0.03), when + 0.1)
        link.report("p2", replace(FULL_LINE, queue_bytes=0), when + 0.2)  # does not send
    assert link.goodput_bytes_per_s(100.2) == pytest.approx(5e5)
    assert link.waiting_bytes(100.2) == 800_000


def test_a_round_trip_is_only_as_new_as_its_use() -> None:
    """A worker repeats its last estimate in every report, long after it has sent anything."""
    link = seen(100.0)
    for when in range(101, 100 + int(FORGOTTEN_S) + 1):
        link.report("p0", replace(FULL_LINE, queue_bytes=0), float(when))
    assert link.rtt_s(100.0 + FORGOTTEN_S) == 0.05
    link.report("p0", replace(FULL_LINE, queue_bytes=0, sent_bytes=1_000_001), 161.0)
    assert link.rtt_s(161.0) == pytest.approx(0.04)


def test_a_longer_round_trip_is_believed_when_nothing_was_in_its_way() -> None:
    """Behind our own KV each of them is long."""
    idle = replace(FULL_LINE, queue_bytes=0)
    link = seen(100.0, rtt_s=0.3)
    assert link.rtt_s(100.0) == 0.05
    link.report("p0", replace(idle, rtt_s=0.2), 101.0)
    assert link.rtt_s(101.0) == 0.05, "KV was under way a second ago"
    for when in (102.0, 103.0):
        link.report("p0", replace(idle, rtt_s=0.2, sent_bytes=2_000_000), when)
        assert link.rtt_s(when) == 0.05, "it is still the one from then"
    link.report("p0", replace(idle, rtt_s=0.09), 104.0)
    assert link.rtt_s(104.0) == pytest.approx(0.09)
    link.report("p0", replace(FULL_LINE, rtt_s=0.06), 105.0)
    assert link.rtt_s(105.0) == pytest.approx(0.06), "the way is not longer than that"


# ---------------------------------------------------------------- the queue


def test_what_is_promised_waits_until_it_is_in_a_report() -> None:
    link = new_link()
    link.enqueue(("a", 2), Transfer("p0", 700, 10.0))
    link.enqueue(("b", 2), Transfer("p0", 50, 10.9))
    assert link.waiting_bytes(10.9) == 750
    report = replace(FULL_LINE, queue_bytes=100, uncoded_bytes=300)
    link.report("p0", report, 10.0 + TOLD_S)
    assert link.waiting_bytes(11.0) == 450, "of a, 400 are left; b was promised since"
    link.report("p0", replace(report, queue_bytes=0, uncoded_bytes=0), 12.0)
    assert link.waiting_bytes(12.0) == 0, "all is sent, though nobody has said that it landed"
    link.unqueue(("a", 2))
    link.unqueue(("b", 2))
    assert (link.waiting_bytes(12.0), link.queued) == (0, {})


def test_the_books_are_believed_when_a_sender_does_not_report() -> None:
    link = new_link()
    link.enqueue(("a", 2), Transfer("p0", 700, 10.0))
    link.enqueue(("b", 2), Transfer("p1", 60, 10.0))
    link.report("p0", replace(FULL_LINE, queue_bytes=5), 12.0)
    assert link.waiting_bytes(12.0 + REPORTS_S) == 65
    assert link.waiting_bytes(12.1 + REPORTS_S) == 760
    link.report("p0", replace(FULL_LINE, queue_bytes=5), 20.0)
    assert link.waiting_bytes(20.0) == 65
    link.forget("p0")
    assert link.waiting_bytes(20.0) == 760


def test_raw_bytes_are_taken_for_what_they_lately_came_to() -> None:
    link = new_link()
    assert link.wire_bytes(1000) == 1000
    link.coded(0, 10)  # all was there already: nothing to learn from
    assert link.wire_bytes(1000) == 1000
    link.coded(2000, 1000)
    assert link.wire_bytes(1000) == 500
    link.enqueue(("a", 2), Transfer("p0", 700, 10.0))
    assert link.waiting_bytes(10.0) == 350
    for _ in range(50):
        link.coded(2000, 1900)
    assert link.wire_bytes(1000) == pytest.approx(950, abs=1)


LEGS = st.tuples(st.sampled_from("ab"), st.integers(0, 2))
STEPS = st.tuples(
    st.sampled_from(["enqueue", "unqueue", "report", "forget"]),
    LEGS,
    st.sampled_from(["p0", "p1"]),
    st.integers(0, 99),
    st.sampled_from([0.0, 0.4, 1.0, 5.0]),
)


@given(steps=st.lists(STEPS, max_size=40))
def test_the_books_always_add_up(steps: list[tuple[str, LegId, str, int, float]]) -> None:
    """In the end what is not landed is promised, and what has landed is nowhere."""
    link, now = new_link(), 0.0
    for verb, leg, worker, nbytes, later in steps:
        now += later
        if verb == "enqueue":
            link.enqueue(leg, Transfer(worker, nbytes, now))
        elif verb == "unqueue":
            link.unqueue(leg)
        elif verb == "report":
            link.report(worker, replace(FULL_LINE, queue_bytes=0), now)
        else:
            link.forget(worker)
        promised = sum(t.nbytes for t in link.queued.values())
        assert 0 <= link.waiting_bytes(now) <= promised
        assert link.waiting_bytes(now + REPORTS_S + 0.1) == promised
    for leg in list(link.queued):
        link.unqueue(leg)
    assert link.waiting_bytes(now) == 0


RATES = st.none() | st.floats(-1e12, 1e12)
LOADS = st.builds(
    LinkLoad,
    site=st.just("shenzhen"),
    goodput_bytes_per_s=RATES,
    rtt_s=RATES,
    loss=st.none() | st.floats(0, 1),
    queue_bytes=st.integers(0, 10**15),
    uncoded_bytes=st.integers(0, 10**15),
    sent_bytes=st.integers(0, 3),
    resent_bytes=st.integers(0, 3),
)


@given(
    reports=st.lists(st.tuples(st.sampled_from(["p0", "p1"]), LOADS, st.floats(0, 30)), max_size=12)
)
def test_whatever_senders_say_the_route_stays_open(
    reports: list[tuple[str, LinkLoad, float]],
) -> None:
    link, now = new_link(), 0.0
    for worker, load, later in reports:
        now += later
        link.report(worker, load, now)
        assert 1.0 <= link.goodput_bytes_per_s(now) <= TOLD
        assert link.rtt_s(now) > 0
    now += FORGOTTEN_S + 1.0
    assert link.goodput_bytes_per_s(now) == TOLD
    assert link.rtt_s(now) == 0.05
    assert link.waiting_bytes(now) == 0
