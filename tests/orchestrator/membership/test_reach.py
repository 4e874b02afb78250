"""When a worker is up, back or lost, told by its token stream alone."""

import pytest

from orchestrator.membership.reach import (
    RECONNECT_MOST_S,
    RECONNECT_S,
    STEADY_S,
    CameBack,
    CameUp,
    Ended,
    Lost,
    Reach,
)
from orchestrator.membership.reports import Hello
from workers.api.wire import WireError

NAME = "hami/relay/0"
UNREACHABLE_S = 20.0


def hello(process: int = 100, worker: str = NAME) -> Hello:
    return Hello(
        worker=worker,
        incarnation=f"process {process}",
        pid=1,  # as in a container
        slots=4,
        max_context=512,
        kv_total_tokens=2048,
        kv_bytes_per_token=128,
    )


def reach_that_is_up(now: float = 0.0) -> Reach:
    reach = Reach(NAME, unreachable_s=UNREACHABLE_S, now=now)
    reach.attempt(now)
    assert reach.greeted(hello()) == [CameUp(hello=hello())]
    assert reach.up
    return reach


def fail(reach: Reach, now: float, *, after: float = 0.0, silent: bool = False) -> Ended:
    """An attempt that brings no hello."""
    reach.attempt(now - after)
    return reach.ended("refused", now, silent=silent)


def test_a_stream_that_breaks_and_comes_back_is_no_loss() -> None:
    reach = reach_that_is_up()
    assert reach.ended("it ended", 5.0) == Ended(news=[], wait_s=0.0)
    reach.attempt(5.0)
    assert reach.greeted(hello()) == [CameBack()]


def test_another_process_is_a_restart() -> None:
    reach = reach_that_is_up()
    reach.ended("it ended", 5.0)
    reach.attempt(5.0)
    assert reach.greeted(hello(200)) == [Lost(reason="it restarted"), CameUp(hello=hello(200))]
    assert reach.up


def test_another_worker_is_nobody() -> None:
    reach = reach_that_is_up()
    reach.ended("it ended", 5.0)
    reach.attempt(5.0)
    with pytest.raises(WireError, match="'mars/p/0' answered in place of 'hami/relay/0'"):
        reach.greeted(hello(worker="mars/p/0"))
    assert reach.up
    assert reach.ended("not readable", 5.1).news == []
    assert fail(reach, 5.4).news == [Lost(reason="refused")], "its attempt counted as refused"


def test_refused_twice_in_a_row_is_lost_and_told_once() -> None:
    reach = reach_that_is_up()
    assert reach.ended("it ended", 5.0).news == []
    assert fail(reach, 5.0).news == []
    assert fail(reach, 5.3).news == [Lost(reason="refused")]
    assert not reach.up
    assert fail(reach, 6.0).news == []
    reach.attempt(7.0)
    assert reach.greeted(hello()) == [CameUp(hello=hello())], "the same process, and yet anew"


def test_a_hello_between_two_refusals_forgives_the_first() -> None:
    reach = reach_that_is_up()
    reach.ended("it ended", 5.0)
    fail(reach, 5.0)
    reach.attempt(5.3)
    assert reach.greeted(hello()) == [CameBack()]
    reach.ended("it ended", 5.4)
    assert fail(reach, 5.6).news == []
    assert reach.up


def test_silence_is_lost_at_once() -> None:
    reach = reach_that_is_up()
    assert reach.ended("silent", 25.0, silent=True).news == [Lost(reason="silent")]


def test_one_attempt_that_lasts_too_long_is_lost() -> None:
    reach = reach_that_is_up()
    reach.ended("it ended", 5.0)
    assert fail(reach, 5.0 + UNREACHABLE_S, after=10.0).news == [Lost(reason="refused")]


def test_what_was_never_up_is_not_lost() -> None:
    reach = Reach(NAME, unreachable_s=UNREACHABLE_S, now=0.0)
    for now in (1.0, 30.0, 90.0):
        assert fail(reach, now).news == []
        assert fail(reach, now, silent=True).news == []


def test_attempts_back_off_until_a_stream_has_lasted() -> None:
    reach = Reach(NAME, unreachable_s=UNREACHABLE_S, now=0.0)
    waits = [fail(reach, float(now)).wait_s for now in range(6)]
    assert waits[:2] == [RECONNECT_S, 2 * RECONNECT_S]
    assert waits[-1] == RECONNECT_MOST_S
    reach.attempt(10.0)
    reach.greeted(hello())
    assert reach.ended("it greets and fails", 10.0 + STEADY_S / 2).wait_s == RECONNECT_MOST_S
    reach.attempt(20.0)
    reach.greeted(hello())
    assert reach.ended("an accident", 20.0 + STEADY_S).wait_s == 0.0
    assert fail(reach, 21.0).wait_s == RECONNECT_S
