"""The steps of a search, and the whole workers that it starts from."""

from dataclasses import replace

from orchestrator.plan.assignment import Assignment, Post, post_of, posts_of
from orchestrator.plan.problem import Pool
from orchestrator.plan.programme.value import value_of
from orchestrator.plan.starts import rounded
from orchestrator.plan.swaps import neighbours, swaps
from tests.orchestrator.plan.plan_problems import pool, problem
from workers.api.messages import MAIN, PREFILL, RELAY


def two_shapes() -> Pool:
    """Eight workers of one chip, or four of two, none of which relays."""
    made = pool("a/x", 8, roles=frozenset({PREFILL, MAIN}))
    (shape,) = made.shapes
    return replace(made, shapes=(shape, replace(shape, parallel=2, most=4)))


def test_every_neighbour_is_a_post_of_the_pool() -> None:
    whole = set(posts_of(two_shapes()))
    for post in whole:
        around = set(neighbours(two_shapes(), post))
        assert around - {post}
        assert around <= whole


def test_every_post_can_be_reached_from_an_idle_pool() -> None:
    reached: set[Post] = set()
    new = {post_of(two_shapes(), 1, {})}
    while new:
        reached |= new
        new = {step for post in new for step in neighbours(two_shapes(), post)} - reached
    assert reached == set(posts_of(two_shapes()))


def test_a_swap_promises_what_the_programme_says_it_is_worth() -> None:
    """One prefill worker is full: a second one promises twice the rate, and none promises none."""
    what = problem(pool("a/x", 3, price=2.0))
    posts = {n: Post(pool="a/x", parallel=1, prefill=n, main=1) for n in (1, 2)}
    value = value_of(what, Assignment(posts=(posts[1],)))
    found = {swap.assignment: swap for swap in swaps(what, value)}
    second = found[Assignment(posts=(posts[2],))]
    assert 1.7 * value.rate < second.rate < 2.3 * value.rate
    assert second.cost_per_h == value.cost_per_h + 2.0
    assert all(swap.assignment.possible for swap in found.values())


def test_whole_workers_out_of_a_split() -> None:
    split = {(2, PREFILL): 5.3, (2, MAIN): 2.4, (1, MAIN): 0.2}
    assert rounded(two_shapes(), split, 1.0) == post_of(two_shapes(), 2, {PREFILL: 3, MAIN: 1})
    assert rounded(two_shapes(), split, 0.0) == post_of(two_shapes(), 2, {PREFILL: 1, MAIN: 1})
    assert rounded(two_shapes(), {}, 1.0) == post_of(two_shapes(), 1, {})


def test_no_more_workers_than_fit() -> None:
    split = {(2, PREFILL): 3.9, (2, MAIN): 3.9, (2, RELAY): 0.2}
    assert rounded(two_shapes(), split, 1.0).workers == 4
