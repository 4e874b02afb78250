"""The simulated model's arithmetic: one token at a time and a whole prompt give the same."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from workers.engines.simulated.model import grow_history, next_hash

TOKEN = st.integers(0, 2**32 - 1)
# Few are taken one by one, many as an array.
TOKENS = st.lists(TOKEN, max_size=16) | st.lists(TOKEN, min_size=17, max_size=60)


@given(first=TOKENS, second=TOKENS)
def test_a_history_grows_alike_by_tokens_and_by_runs(first: list[int], second: list[int]) -> None:
    grown = array("Q")
    grow_history(grown, first)
    grow_history(grown, second)
    history, one_by_one = 0, []
    for position, token in enumerate([*first, *second]):
        history = next_hash(history, token, position)
        one_by_one.append(history)
    assert grown.tolist() == one_by_one
