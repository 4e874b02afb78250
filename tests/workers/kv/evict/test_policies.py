"""Budgets, and whom each policy names."""

import inspect
from dataclasses import replace

import numpy as np
import pytest

from workers.kv.evict.attention import Attention
from workers.kv.evict.config import Eviction, Heads
from workers.kv.evict.dying import name_dying
from workers.kv.evict.policies import POLICIES, View, with_neighbours

TIGHT = Eviction(policy="random", budget=0.5, slack=4, recent=8, first=2)


def dying(eviction: Eviction, tokens: int, prompt: int = 0, **more: object) -> list[int]:
    living = more.pop("living", np.arange(tokens))
    return name_dying(eviction, living, tokens, prompt, name="r", **more).tolist()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"budget": 0.0}, "budget"),
        ({"budget": 1.5}, "budget"),
        ({"budget": -1}, "budget"),
        ({"slack": 0}, "slack"),
        ({"recent": 0}, "recent"),
        ({"first": -1}, "first"),
        ({"waste": 1.1}, "waste"),
        ({"low": -0.1}, "low"),
        ({"heads": Heads.PER_HEAD}, "heads"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused_by_name(change: dict, named: str) -> None:
    with pytest.raises(ValueError, match=f"^{named}"):
        replace(TIGHT, **change)


def test_a_budget_is_a_share_or_a_number() -> None:
    assert TIGHT.allowed(100, 0) == 50
    assert replace(TIGHT, budget=30).allowed(100, 0) == 30
    assert replace(TIGHT, budget=30).allowed(20, 0) == 20


def test_nothing_dies_until_the_slack_is_used_up() -> None:
    absolute = replace(TIGHT, budget=30)
    assert dying(absolute, 33) == []
    assert len(dying(absolute, 34)) == 4
    assert absolute.most(1000, 0) == 34


@pytest.mark.parametrize("policy", ["random", "sink-recent"])
def test_first_and_recent_tokens_never_die(policy: str) -> None:
    gone = dying(replace(TIGHT, policy=policy, budget=1), 40)
    assert gone != []
    assert set(range(2, 32)) >= set(gone)
    assert len(gone) == 30  # what is protected is kept beyond the budget


def test_a_prompt_lives_on_where_that_is_asked_for() -> None:
    kept = replace(TIGHT, keep_prompt=True)
    assert min(dying(kept, 60, prompt=20)) >= 20
    assert dying(kept, 60, prompt=55) == []


def test_only_the_living_die() -> None:
    living = np.setdiff1d(np.arange(40), [10, 11])
    gone = dying(replace(TIGHT, budget=20), 40, living=living)
    assert len(gone) == 18
    assert not {10, 11} & set(gone)


def test_random_names_the_same_everywhere_and_others_for_another_sequence() -> None:
    assert dying(TIGHT, 100) == dying(TIGHT, 100)
    other = name_dying(TIGHT, np.arange(100), 100, 0, name="another").tolist()
    assert dying(TIGHT, 100) != other


def test_sink_recent_names_the_oldest() -> None:
    assert dying(replace(TIGHT, policy="sink-recent", budget=20), 26) == [2, 3, 4, 5, 6, 7]


def test_h2o_names_the_least_heeded_and_of_equals_the_oldest() -> None:
    paid = np.ones(26, dtype=np.float32)
    paid[[3, 5, 9]] = 0.1, 0.05, 0.2
    attention = Attention(mass=paid, hits=paid, queries=26)
    gone = dying(replace(TIGHT, policy="h2o", budget=21), 26, attention=attention)
    assert gone == [5, 3, 9, 2, 4]


def test_triattention_names_the_lowest_scores() -> None:
    gone = dying(replace(TIGHT, policy="triattention", budget=22), 26, score=lambda tokens: -tokens)
    assert gone == [17, 16, 15, 14]


def test_a_token_among_worthy_ones_is_not_torn_out_of_them() -> None:
    """Three tokens of one character: the middle one is worth nothing by itself."""
    worth = np.array([1, 1, 9, 0, 9, 1, 1, 1, 1], dtype=np.float32)
    assert with_neighbours(worth).tolist() == pytest.approx(
        [1, 11 / 3, 10 / 3, 6, 10 / 3, 11 / 3, 1, 1, 1]
    )
    view = View(np.arange(9), None, lambda tokens: worth, 0)
    assert 3 not in POLICIES["triattention"](view, 6).tolist()


def test_attention_sums_what_is_paid_and_counts_more_than_an_even_share() -> None:
    attention = Attention()
    attention.add(np.arange(4), np.array([[0.7, 0.1, 0.1, 0.1], [0.1, 0.6, 0.2, 0.1]]))
    assert attention.mass == pytest.approx([0.8, 0.7, 0.3, 0.2])
    assert attention.hits == pytest.approx([1 - 1 / 256, 1, 0, 0])
    attention.add(np.array([0, 2, 4]), np.array([[0.5, 0.4, 0.1]]))
    assert attention.mass == pytest.approx([1.3, 0.7, 0.7, 0.2, 0.1])
    assert attention.queries == 3
    attention.truncate(2)
    assert len(attention.mass) == len(attention.hits) == 2


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_is_short(name: str) -> None:
    assert len(inspect.getsource(POLICIES[name]).splitlines()) < 50
