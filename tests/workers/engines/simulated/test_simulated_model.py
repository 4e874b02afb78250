"""The simulated model's arithmetic: one token at a time and a whole prompt give the same."""

from array import array

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workers.engines.simulated.model import _mix, _mix_all, grow_history, next_hash

WORDS = st.integers(0, 2**64 - 1)
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=60)


@given(words=st.lists(WORDS, max_size=9))
def test_a_word_is_mixed_alike_alone_and_in_an_array(words: list[int]) -> None:
    assert _mix_all(np.array(words, dtype=np.uint64)).tolist() == [_mix(x) for x in words]


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
