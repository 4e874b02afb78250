"""What must hold whatever happens to the machine alone: random events in any order."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.orchestrator.lifecycle.scribble import Scribbler, Step

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
