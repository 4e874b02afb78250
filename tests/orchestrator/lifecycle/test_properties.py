"""What must hold whatever happens: random events for the machine alone, random faults for all."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.state.actions import Fail, Failure
from tests.orchestrator.lifecycle.chaos import troubled
from tests.orchestrator.lifecycle.scribble import Scribbler, Step

SEEDS = 80
NUMBER = st.integers(0, 1_000)
STEPS = st.lists(st.tuples(NUMBER, NUMBER, NUMBER, NUMBER), min_size=40, max_size=200)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(setting=st.integers(0, 161), steps=STEPS)
def test_any_events_in_any_order(setting: int, steps: list[Step]) -> None:
    """Nothing raises; indices 0, 1, 2 ... without gap or repeat; the law is never rewritten; one
    leg a role; every start has its stop; the books are empty at the end; it ends; the next
    deadline is always later than now."""
    scribbler = Scribbler(setting)
    scribbler.play(steps)
    scribbler.end()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_faults(seed: int) -> None:
    """Losses, repeats, reorderings, deaths, stalls, cancels, stop strings, limits and end-of-text,
    with workers whose tokens differ now and then. A client that is failed was failed for want of
    room, and only where workers were gone or the queue short."""
    world = troubled(seed)
    world.check()
    for client in world.clients.values():
        if isinstance(client.end, Fail):
            assert client.end.failure is Failure.OVERLOADED
            assert world.config.queue_limit == 2
