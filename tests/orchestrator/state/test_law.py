"""The law of one request: its ids and the history before each index."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.state.law import Law
from workers.api.history import EMPTY_HISTORY, extend_history
from workers.api.messages import TokenLogprobs

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=20)


def law_of(*ids: int) -> Law:
    law = Law()
    law.extend(ids, None, None)
    return law


@given(first=IDS, second=IDS)
def test_histories_are_the_chain_over_the_ids_before(first: list[int], second: list[int]) -> None:
    law = law_of(*first)
    law.extend(second, None, None)
    ids = [*first, *second]
    assert law.ids == ids
    for i in range(len(ids) + 1):
        assert law.history(i) == extend_history(EMPTY_HISTORY, ids[:i])
    assert len(law) == len(ids)
    assert not law.logprobs
    assert not law.margins


def test_what_was_reported_about_a_token_stays_beside_it() -> None:
    law = law_of(1)
    law.extend((2, 3), (TokenLogprobs(logprob=-1.0), TokenLogprobs(logprob=-2.0)), (0.5, 0.01))
    assert law.logprobs == {1: TokenLogprobs(logprob=-1.0), 2: TokenLogprobs(logprob=-2.0)}
    assert law.margins == {1: 0.5, 2: 0.01}


@pytest.mark.parametrize(
    ("index", "after", "ids", "agrees"),
    [
        (0, (), (1, 2), True),
        (0, (), (1, 2, 3, 4), True),  # what is beyond the law cannot disagree
        (0, (), (1, 9), False),
        (1, (1,), (2, 3), True),
        (1, (9,), (2, 3), False),  # the right index and tokens after another history
        (3, (1, 2, 3), (4,), True),
        (3, (1, 2, 9), (4,), False),
        (2, (1, 2), (), True),
    ],
)
def test_whether_a_run_tells_the_laws_own_story(
    index: int, after: tuple[int, ...], ids: tuple[int, ...], agrees: bool
) -> None:
    law = law_of(1, 2, 3)
    assert law.agrees(index, extend_history(EMPTY_HISTORY, after), ids) is agrees
