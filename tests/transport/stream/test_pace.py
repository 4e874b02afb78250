"""Pacing and estimates in virtual time."""

from collections import deque

import pytest

from transport.stream.pace import DeliveryRate, Pacer, RoundTrip
from transport.stream.ranges import Ranges

RATE = 1e6
RTT_S = 0.05


def deliver(meter: DeliveryRate, sizes: list[int], *, idle_s: float = 0.0) -> None:
    """Write pieces back to back (or with a pause) over a line of RATE; acks come in pairs."""
    now, acks = 0.0, deque()

    def hear(until: float) -> None:
        while len(acks) > 1 and acks[1][0] <= until:
            at = acks[1][0]
            for _ in range(2):
                _, sent, nbytes = acks.popleft()
                meter.acked(sent, nbytes, at)

    for nbytes in sizes:
        hear(now)
        sent = meter.sent(now, starved=idle_s > 0)
        now += nbytes / RATE
        acks.append((now + RTT_S, sent, nbytes))
        now += idle_s
    while acks:
        at, sent, nbytes = acks.popleft()
        meter.acked(sent, nbytes, max(at, now))


def test_goodput_of_a_busy_line_is_its_rate():
    meter = DeliveryRate()
    deliver(meter, [100_000, 20_000, 64_000] * 20)
    assert meter.bytes_per_s == pytest.approx(RATE, rel=0.15)


def test_a_sender_with_little_to_say_does_not_lower_the_estimate():
    meter = DeliveryRate()
    deliver(meter, [100_000] * 40)
    before = meter.bytes_per_s
    deliver(meter, [1000] * 40, idle_s=1.0)
    assert meter.bytes_per_s == before


def test_lost_pieces_do_not_count_as_under_way():
    meter = DeliveryRate()
    meter.sent(0.0, starved=False)
    meter.lost(1)
    sent = meter.sent(100.0, starved=False)  # nothing flies: measured from now
    meter.acked(sent, 1000, 100.1)
    assert meter.bytes_per_s == pytest.approx(10_000)


def test_the_pacer_keeps_the_rate_over_any_time_and_lets_a_short_burst_pass():
    pacer = Pacer()
    assert pacer.delay_s(10**9, 0.0) == 0.0
    pacer.rate_bytes_per_s = RATE
    now, written = 5.0, 0
    assert pacer.delay_s(1000, now) == 0.0
    while now < 7.0:
        now += pacer.delay_s(4000, now) + 0.0007  # the loop wakes a little late
        written += 4000
    assert 0.99 * RATE * 2.0 < written < RATE * 2.0 + 60_000  # the first burst comes on top
    now += 60.0  # an idle time earns no more than the burst
    free = 0
    while pacer.delay_s(1000, now) == 0.0:
        free += 1000
    assert free <= 52_000


def test_round_trip_is_the_smallest_of_the_last_few():
    trip = RoundTrip()
    assert trip.rtt_s is None
    for rtt_s in (0.2, 0.05, 0.3):
        trip.add(rtt_s)
    assert trip.rtt_s == 0.05
    for _ in range(64):
        trip.add(0.09)
    assert trip.rtt_s == 0.09


def test_ranges():
    ranges, known = Ranges(), set()
    for start, stop in [(5, 8), (1, 3), (10, 12), (3, 5), (0, 20), (19, 22), (30, 31), (22, 30)]:
        assert ranges.add(start, stop) == len(set(range(start, stop)) - known)
        known |= set(range(start, stop))
        flat = [i for a, b in ranges for i in range(a, b)]
        assert flat == sorted(known)
        for a in range(32):
            for b in range(a + 1, 32):
                assert ranges.covers(a, b) == (set(range(a, b)) <= known)
    assert list(ranges) == [(0, 31)]
