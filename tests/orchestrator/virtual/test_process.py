"""Virtual time: the order of calls; processes with clocks of their own that freeze and die."""

import pytest

from orchestrator.virtual.process import ClockError, Process
from orchestrator.virtual.schedule import Schedule

RIGHT = ClockError()


def process(schedule: Schedule, clock: ClockError = RIGHT) -> Process:
    made = Process("p", "hami", schedule, clock)
    made.start()
    return made


# ---------------------------------------------------------------- the schedule


def test_calls_come_in_order_of_time_then_of_planning() -> None:
    schedule, made = Schedule(), list[str]()
    for when, name in [(2.0, "c"), (1.0, "a"), (2.0, "d"), (1.0, "b")]:
        schedule.at(when, made.append, name)
    assert not schedule.run(1.5)
    assert (made, schedule.now) == (["a", "b"], 1.5)
    schedule.run(2.0)
    assert (made, schedule.done) == (["a", "b", "c", "d"], 4)


def test_what_is_planned_for_the_past_comes_next_and_time_never_goes_back() -> None:
    schedule, seen = Schedule(), list[float]()
    schedule.run(5.0)
    schedule.at(1.0, lambda: seen.append(schedule.now))
    schedule.run(6.0)
    assert seen == [5.0]


def test_a_run_may_be_stopped_between_two_calls() -> None:
    schedule, made = Schedule(), list[int]()
    for number in range(5):
        schedule.after(1.0, made.append, number)
    assert schedule.run(9.0, lambda: len(made) == 2)
    assert (made, schedule.now) == ([0, 1], 1.0)


# ---------------------------------------------------------------- clocks

CLOCKS = [
    RIGHT,
    ClockError(offset_s=1000.0),
    ClockError(offset_s=-3.0, rate=1.02),
    ClockError(offset_s=980.0, rate=0.98),
]


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_clock_has_an_offset_and_a_rate(clock: ClockError) -> None:
    schedule = Schedule()
    own = process(schedule, clock)
    assert own.time() == pytest.approx(clock.offset_s)
    schedule.run(100.0)
    assert own.time() == pytest.approx(clock.offset_s + 100.0 * clock.rate)


@pytest.mark.parametrize("clock", CLOCKS)
def test_an_alarm_comes_on_its_own_clock_and_never_early(clock: ClockError) -> None:
    schedule, rung = Schedule(), list[tuple[float, float, float]]()
    own = process(schedule, clock)

    def ring(due: float) -> None:
        rung.append((due, own.time(), schedule.now))

    schedule.run(10.0)
    first = own.time()
    # Sums like these are not exact: an alarm a moment early would find nothing due.
    for number in range(200):
        due = first + number * 0.1 + 1 / 3
        own.alarm(due, ring, due)
    own.after(7.0, ring, first + 7.0)
    schedule.run(50.0)
    assert len(rung) == 201
    for due, shown, at in rung:
        assert shown >= due
        assert shown == pytest.approx(due)
        assert at - 10.0 == pytest.approx((due - first) / clock.rate, abs=1e-6)


def test_a_fast_clock_rings_sooner() -> None:
    schedule, order = Schedule(), list[str]()
    for name, rate in [("slow", 0.98), ("right", 1.0), ("fast", 1.02)]:
        process(schedule, ClockError(rate=rate)).after(10.0, order.append, name)
    schedule.run(20.0)
    assert order == ["fast", "right", "slow"]


# ---------------------------------------------------------------- frozen and dead


def test_what_comes_to_a_frozen_process_waits_in_order() -> None:
    schedule, done = Schedule(), list[str]()
    own = process(schedule)
    own.after(1.0, done.append, "alarm")
    own.freeze()
    schedule.run(2.0)
    own.do(done.append, "message")
    own.after(0.0, done.append, "later")
    schedule.run(3.0)
    assert done == []
    own.thaw()
    assert done == ["alarm", "message", "later"]
    assert own.thawed_at == 3.0


def test_time_goes_on_for_a_frozen_process() -> None:
    schedule = Schedule()
    own = process(schedule)
    own.freeze()
    schedule.run(9.0)
    own.thaw()
    assert own.time() == 9.0


def test_one_that_freezes_again_while_it_thaws_keeps_the_rest_waiting() -> None:
    schedule, done = Schedule(), list[str]()
    own = process(schedule)
    own.freeze()
    for call, *args in [(done.append, "a"), (own.freeze,), (done.append, "b")]:
        own.do(call, *args)
    own.thaw()
    assert (done, own.frozen) == (["a"], True)
    own.thaw()
    assert done == ["a", "b"]


def test_a_dead_process_does_nothing_and_its_next_life_forgets() -> None:
    schedule, done = Schedule(), list[str]()
    own = process(schedule)
    own.after(1.0, done.append, "alarm of the first life")
    own.freeze()
    own.do(done.append, "waited")
    own.kill()
    own.do(done.append, "to the dead")
    assert (own.alive, own.frozen) == (False, False)
    life = own.life
    own.start()
    assert own.life > life
    own.thaw()
    own.do(done.append, "second life")
    schedule.run(2.0)
    assert done == ["second life"]


def test_killed_while_it_thaws() -> None:
    schedule, done = Schedule(), list[str]()
    own = process(schedule)
    own.freeze()
    own.do(own.kill)
    own.do(done.append, "after its death")
    own.thaw()
    assert done == []
