"""The best assignment: all of them while they are few, guided swaps from good starts beyond."""

from collections.abc import Callable, Iterable
from enum import StrEnum
from itertools import product
from math import prod

from orchestrator.plan.assignment import Assignment, posts_of
from orchestrator.plan.problem import Ground, Problem
from orchestrator.plan.programme.bound import Bound, relaxed
from orchestrator.plan.programme.value import Value, value_of
from orchestrator.plan.starts import starts
from orchestrator.plan.swaps import swaps
from workers.api.record import record

FEW = 300  # assignments that are all tried
CLIMBS = 10  # starts from which to climb
MOST_TRIED = 150  # by each climb
BEAM = 12  # swaps that are tried before the best of them is taken
ENOUGH = 0.999  # of the demand


class Objective(StrEnum):
    """What is best. Either way a demand, if there is one, is served first."""

    PER_COST = "goodput-per-cost"  # requests within the goal per unit of money
    GOODPUT = "goodput"  # requests within the goal per second, then the cheapest


@record
class Plan:
    """The best assignment found. `tried`: all that were, best first; `whole`: none was left out.

    `bound`: what no assignment can pass, requests per money where `by_cost`, else per second;
    `gap`: by which part the plan is below it.
    """

    problem: Problem
    objective: Objective
    best: Value
    tried: tuple[Value, ...]
    whole: bool
    by_cost: bool
    bound: Bound
    gap: float


def plan(problem: Problem, objective: Objective = Objective.PER_COST) -> Plan:
    """Pure: the same problem gives the same plan. A plan that serves nothing says why in `best`.

    Raises ValueError for a problem without pools.
    """
    if not problem.pools:
        raise ValueError("a plan needs at least one pool")
    search = _Search(problem, objective)
    bound = relaxed(problem, per_cost=objective is Objective.PER_COST)
    by_cost = objective is Objective.PER_COST and bound.score > 0
    if not bound.score:  # all that is wanted cannot be had: as much as possible
        bound = relaxed(problem, per_cost=False)
    choices = [list(posts_of(pool)) for pool in problem.pools]
    whole = prod(map(len, choices)) <= FEW
    if whole:
        for posts in product(*choices):
            search.look(Assignment(posts=posts))
    else:
        search.climb(starts(problem, search.ground, bound, per_cost=by_cost))
    # What is rough was hopeless, so it is behind all that are exact.
    tried = sorted(search.tried.values(), key=lambda v: (not v.rough, search.key(v)), reverse=True)
    if not tried:
        search.look(Assignment(posts=tuple(options[-1] for options in choices)), always=True)
        tried = list(search.tried.values())
    best = tried[0]
    if by_cost and not ranks(problem, objective, best.served, best.cost_per_h)[0]:
        by_cost, bound = False, relaxed(problem, per_cost=False)
    score = best.per_cost if by_cost else best.served
    return Plan(
        problem=problem,
        objective=objective,
        best=best,
        tried=tuple(tried),
        whole=whole,
        by_cost=by_cost,
        bound=bound,
        gap=max(0.0, 1 - score / bound.score) if bound.score else 0.0,
    )


def ranks(
    problem: Problem, objective: Objective, served: float, cost_per_h: float
) -> tuple[float, ...]:
    """A key to compare by; higher is better. `served`: requests/s, at a cost in money an hour."""
    enough = problem.demand is None or served >= ENOUGH * problem.demand
    if objective is Objective.GOODPUT or not enough:
        return float(enough), served, -cost_per_h
    return float(enough), served / cost_per_h if cost_per_h else 0.0, served


class _Search:
    """What was tried, and the best of it that is exact."""

    def __init__(self, problem: Problem, objective: Objective) -> None:
        self.tried: dict[Assignment, Value] = {}
        self._problem, self._objective = problem, objective
        self._best: Value | None = None
        self.ground = Ground(problem)

    def key(self, value: Value) -> tuple[float, ...]:
        return ranks(self._problem, self._objective, value.served, value.cost_per_h)

    def look(self, assignment: Assignment, *, always: bool = False) -> Value | None:
        """Its value; None: it cannot serve anything, and is not `always` to be looked at."""
        known = self.tried.get(assignment)
        if known is not None or not (assignment.possible or always):
            return known
        value = value_of(self._problem, assignment, self.ground, self._hopeless(assignment))
        self.tried[assignment] = value
        if not value.rough and (self._best is None or self.key(value) > self.key(self._best)):
            self._best = value
        return value

    def _hopeless(self, assignment: Assignment) -> Callable[[float], bool]:
        """Whether it cannot be better than the best so far if it serves at most so much."""
        best, problem = self._best, self._problem
        if best is None:
            return lambda most: False
        cost_per_h, goal = assignment.chips_per_h(problem), self.key(best)

        def hopeless(most: float) -> bool:
            return ranks(problem, self._objective, problem.served(most), cost_per_h) < goal

        return hopeless

    def climb(self, starts: Iterable[Assignment]) -> None:
        """From the best starts by the best of the likeliest swaps, until none is better."""
        values = [value for start in starts if (value := self.look(start)) is not None]
        for value in sorted(values, key=self.key, reverse=True)[:CLIMBS]:
            here = value
            most = len(self.tried) + MOST_TRIED
            while len(self.tried) < most:
                likeliest = self._likeliest(here)
                around = [seen for swap in likeliest if (seen := self.look(swap)) is not None]
                top = max(around, key=self.key, default=here)
                if self.key(top) <= self.key(here):
                    break
                here = top

    def _likeliest(self, value: Value) -> list[Assignment]:
        """Of the swaps not tried yet, those that promise most."""
        promised: dict[Assignment, float] = {}
        for swap in swaps(self._problem, value):
            if swap.assignment not in self.tried:
                served = self._problem.served(swap.rate)
                if self._objective is Objective.PER_COST:
                    served = served / swap.cost_per_h if swap.cost_per_h > 0 else 0.0
                promised[swap.assignment] = served
        return sorted(promised, key=lambda assignment: -promised[assignment])[:BEAM]
