"""One direction's arithmetic, in virtual time."""

import numpy as np
import pytest

from transport.lab.board import VALUES, write_line
from transport.lab.line import LabLine
from transport.lab.queue import LOST, NO_ROOM, PASSED, admit, drain, new_chances, new_state

RATE = 1e6
DELAY_S = 0.01


class Queue:
    """One direction of a line of 1 MB/s and 10 ms."""

    def __init__(self, *, seed: int = 0, direction: int = 0, **changed: float) -> None:
        self.values = np.zeros(VALUES)
        self.set(**changed)
        self.state, self.chances = new_state(), new_chances(seed, direction)

    def set(self, **changed: float) -> None:
        line = {"delay_s": DELAY_S, "rate_bytes_per_s": RATE} | changed
        write_line(self.values, LabLine(**line))

    def admit(self, now: float, nbytes: int = 1000) -> tuple[int, float]:
        return admit(self.values, self.state, self.chances, now, nbytes)

    def waiting(self, now: float) -> float:
        return drain(self.values, self.state, now)


def test_a_packet_takes_its_time_on_the_line_and_the_delay() -> None:
    verdict, arrival = Queue().admit(5.0, 2000)
    assert verdict == PASSED
    assert arrival == pytest.approx(5.0 + 0.002 + DELAY_S)


def test_packets_leave_at_the_rate_in_order() -> None:
    queue = Queue()
    arrivals = [queue.admit(1.0)[1] for _ in range(10)]
    assert arrivals == pytest.approx([1.0 + DELAY_S + 0.001 * n for n in range(1, 11)])


def test_a_line_that_had_a_rest_does_not_make_up_for_it() -> None:
    queue = Queue()
    queue.admit(1.0)
    assert queue.admit(9.0)[1] == pytest.approx(9.0 + 0.001 + DELAY_S)


def test_the_buffer_holds_its_bytes_and_drains() -> None:
    queue = Queue(buffer_bytes=10_000)
    verdicts = [queue.admit(1.0)[0] for _ in range(12)]
    assert verdicts == [PASSED] * 10 + [NO_ROOM] * 2
    assert queue.waiting(1.004) == pytest.approx(6000)
    assert [queue.admit(1.004)[0] for _ in range(5)] == [PASSED] * 4 + [NO_ROOM]
    assert queue.waiting(2.0) == 0


def test_loss_is_the_seeds() -> None:
    def lost(seed: int, direction: int) -> list[int]:
        queue = Queue(seed=seed, direction=direction, loss=0.1)
        return [n for n in range(2000) if queue.admit(float(n))[0] == LOST]

    assert lost(3, 0) == lost(3, 0)
    assert lost(3, 0) != lost(4, 0)
    assert lost(3, 0) != lost(3, 1)
    assert len(lost(3, 0)) == pytest.approx(200, abs=45)  # three sigma


def test_a_lost_packet_has_had_its_time_on_the_line() -> None:
    calm, lossy = Queue(), Queue(loss=0.5)
    expected = [calm.admit(1.0)[1] for _ in range(40)]
    arrivals = [lossy.admit(1.0) for _ in range(40)]
    passed = [(e, a) for e, (verdict, a) in zip(expected, arrivals, strict=True) if not verdict]
    assert 5 < len(passed) < 35
    assert all(e == pytest.approx(a) for e, a in passed)


def test_jitter_is_half_a_normal_distribution_and_never_reorders() -> None:
    queue = Queue(jitter_s=0.002)
    late = [queue.admit(float(n))[1] - n - 0.001 - DELAY_S for n in range(4000)]
    assert min(late) >= -1e-9
    assert np.sqrt(np.mean(np.square(late))) == pytest.approx(0.002, rel=0.05)
    crowd = [queue.admit(5000.0, 10)[1] for _ in range(500)]
    assert crowd == sorted(crowd)


def test_jitter_does_not_change_which_are_lost() -> None:
    one, other = Queue(loss=0.1), Queue(loss=0.1, jitter_s=0.001)
    for n in range(500):
        assert one.admit(float(n))[0] == other.admit(float(n))[0]


def test_a_change_counts_for_what_comes_after_it() -> None:
    queue = Queue(buffer_bytes=20_000)
    before = queue.admit(1.0, 10_000)[1]
    queue.set(rate_bytes_per_s=1e4, delay_s=0.0, buffer_bytes=20_000)
    after = queue.admit(1.0)[1]
    assert before == pytest.approx(1.0 + 0.01 + DELAY_S)
    assert after == pytest.approx(1.0 + 1.1)  # 11,000 bytes at the new rate
    queue = Queue()
    before = queue.admit(1.0)[1]
    queue.set(delay_s=0.0)
    assert queue.admit(1.0)[1] == before  # not ahead of what is on the line already
