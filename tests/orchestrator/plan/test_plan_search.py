"""The search, its bound, and what is said of a plan."""

import re
from dataclasses import replace
from itertools import product

import pytest

from orchestrator.plan import search
from orchestrator.plan.assignment import Assignment, posts_of
from orchestrator.plan.demand import Asked, classes_of, total_rate
from orchestrator.plan.explain import explain
from orchestrator.plan.problem import Problem
from orchestrator.plan.programme.bound import relaxed
from orchestrator.plan.programme.value import value_of
from orchestrator.plan.record import to_record
from orchestrator.plan.search import Objective, plan
from tests.orchestrator.plan.plan_problems import line, pool, problem
from workers.api.messages import MAIN, PREFILL
from workers.costs import MeasuredCosts

FAST = MeasuredCosts(prefill_tokens_per_s=4000.0, decode_step_s=0.02, sequence_s=0.001)
SLOW = MeasuredCosts(prefill_tokens_per_s=500.0, decode_step_s=0.01, sequence_s=0.0005)


def two_sites() -> Problem:
    return problem(
        pool("a/x", 1, costs=FAST, price=2.0),
        pool("b/y", 2, costs=SLOW),
        lines=(line("a", "b", 1e7),),
        ttft_s=2.0,
    )


def over_a_line() -> Problem:
    """Prefill in one site, main in the other, and a line between them that is full first."""
    return problem(
        pool("a/x", 4, roles=frozenset({PREFILL})),
        pool("b/y", 4, roles=frozenset({MAIN})),
        lines=(line("a", "b", 5e5),),
    )


def brute(what: Problem, objective: Objective) -> float:
    best = 0.0
    for posts in product(*map(posts_of, what.pools)):
        who = Assignment(posts=posts)
        if who.possible:
            value = value_of(what, who)
            score = value.per_cost if objective is Objective.PER_COST else value.served
            best = max(best, score)
    return best


@pytest.mark.parametrize("objective", list(Objective))
def test_all_are_tried_while_they_are_few(objective: Objective) -> None:
    what = two_sites()
    found = plan(what, objective)
    score = found.best.per_cost if objective is Objective.PER_COST else found.best.served
    assert found.whole
    assert score == pytest.approx(brute(what, objective))


@pytest.mark.parametrize("objective", list(Objective))
def test_swaps_find_what_trying_all_finds(
    objective: Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = two_sites()
    best = brute(what, objective)
    monkeypatch.setattr(search, "FEW", 1)
    found = plan(what, objective)
    score = found.best.per_cost if objective is Objective.PER_COST else found.best.served
    assert not found.whole
    assert score >= 0.97 * best


@pytest.mark.parametrize("objective", list(Objective))
@pytest.mark.parametrize("bytes_per_s", [1e7, 1e5])
def test_nothing_passes_the_bound(objective: Objective, bytes_per_s: float) -> None:
    what = replace(two_sites(), lines=(line("a", "b", bytes_per_s),))
    bound = relaxed(what, per_cost=objective is Objective.PER_COST)
    assert bound.score >= brute(what, objective)


def test_a_demand_is_served_at_the_least_cost() -> None:
    what = replace(two_sites(), demand=10.0)
    found = plan(what)
    assert found.best.served == pytest.approx(10.0)
    cheapest = min(
        value.cost_per_h for value in found.tried if value.served >= 9.99 and not value.rough
    )
    assert found.best.cost_per_h == pytest.approx(cheapest)


def test_a_demand_that_is_too_much_is_served_as_far_as_it_goes() -> None:
    found = plan(replace(two_sites(), demand=1e6))
    assert found.best.served == pytest.approx(brute(two_sites(), Objective.GOODPUT))
    assert "too little" in explain(found).headline


def test_the_same_problem_gives_the_same_plan() -> None:
    assert to_record(plan(two_sites()), None) == to_record(plan(two_sites()), None)


def test_what_more_would_bring_is_what_planning_with_it_gives() -> None:
    what = over_a_line()
    found = plan(what, Objective.GOODPUT)
    (line_shadow,) = (shadow for shadow in explain(found).shadows if shadow.unit == "Gbps")
    (joined,) = what.lines
    wider = replace(what, lines=(replace(joined, bytes_per_s=joined.bytes_per_s + 0.125e9),))
    more = value_of(wider, found.best.assignment).rate - found.best.rate
    assert line_shadow.adds == pytest.approx(more)
    assert more > 0.5 * found.best.rate
    assert line_shadow.text == f"one more Gbps on a-b adds {more:.2g} requests/s"


def test_every_candidate_that_lost_says_by_how_much() -> None:
    why = explain(plan(two_sites()))
    assert why.rejected
    for lost in why.rejected:
        assert re.search(r"\d% (less|more)|^serves as much|^nobody|^no line|^only", lost.why), lost


def test_a_plan_of_nothing_says_why() -> None:
    found = plan(problem(pool("a/x", 1)))
    assert found.best.rate == 0
    assert "nothing can be served" in explain(found).headline


def test_classes_keep_rate_and_tokens() -> None:
    asked = [Asked(n / 10, 100 + n % 7 * 300, 20 + n % 3 * 50, n % 2 * 50) for n in range(1000)]
    classes = classes_of(asked, 5)
    assert len(classes) <= 5
    rate = total_rate(classes)
    assert rate == pytest.approx(10.0, rel=0.01)
    prompt = sum(each.rate * each.prompt for each in classes) / rate
    assert prompt == pytest.approx(sum(each.prompt for each in asked) / 1000)
    assert classes_of([], 5) == []
