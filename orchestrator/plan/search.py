"""The best assignment: all of them while they are few, guided swaps from good starts beyond."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import product
from math import prod

from orchestrator.plan.assignment import ROLES, Assignment, Post, post_of, posts_of
from orchestrator.plan.problem import Ground, Pool, Problem
from orchestrator.plan.programme.bound import Bound, relaxed
from orchestrator.plan.programme.value import Value, value_of
from orchestrator.plan.starts import starts
from workers.api.messages import Role
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
    """Higher is better."""
    enough = problem.demand is None or served >= ENOUGH * problem.demand
    if objective is Objective.GOODPUT or not enough:
        return float(enough), served, -cost_per_h
    return float(enough), served / cost_per_h if cost_per_h else 0.0, served


class _Search:
    def __init__(self, problem: Problem, objective: Objective) -> None:
        self.tried: dict[Assignment, Value] = {}
        self._problem, self._objective = problem, objective
        self._best: Value | None = None
        self.ground = Ground(problem)

    def key(self, value: Value) -> tuple[float, ...]:
        return ranks(self._problem, self._objective, value.served, value.cost_per_h)

    def look(self, assignment: Assignment, *, always: bool = False) -> Value | None:
        """Its value; None: it cannot serve anything, or nobody would want to know."""
        known = self.tried.get(assignment)
        if known is not None or not (assignment.possible or always):
            return known
        value = value_of(self._problem, assignment, self.ground, self._hopeless(assignment))
        self.tried[assignment] = value
        if not value.rough and (self._best is None or self.key(value) > self.key(self._best)):
            self._best = value
        return value

    def _hopeless(self, assignment: Assignment) -> Callable[[float], bool]:
        best, problem = self._best, self._problem
        if best is None:
            return lambda most: False
        cost_per_h, goal = assignment.chips_per_h(problem), self.key(best)

        def hopeless(most: float) -> bool:
            served = most if problem.demand is None else min(most, problem.demand)
            return ranks(problem, self._objective, served, cost_per_h) < goal

        return hopeless

    def climb(self, starts: Iterable[Assignment]) -> None:
        """From the best starts by the best of the likeliest swaps, until none is better."""
        values = [value for start in starts if (value := self.look(start)) is not None]
        for value in sorted(values, key=self.key, reverse=True)[:CLIMBS]:
            here = value
            most = len(self.tried) + MOST_TRIED
            while len(self.tried) < most:
                around = [
                    seen
                    for swap in list(self._swaps(here))[:BEAM]
                    if (seen := self.look(swap)) is not None
                ]
                top = max(around, key=self.key, default=here)
                if self.key(top) <= self.key(here):
                    break
                here = top

    def _swaps(self, value: Value) -> Iterator[Assignment]:
        """Neighbours that were not tried yet, those first of which the programme expects most."""
        worth = _worths(value)
        found: dict[Assignment, float] = {}
        for place, pool in enumerate(self._problem.pools):
            post = value.assignment.posts[place]
            for other in neighbours(pool, post):
                posts = list(value.assignment.posts)
                posts[place] = other
                swap = Assignment(posts=tuple(posts))
                if swap.possible and swap not in self.tried:
                    found[swap] = self._expected(value, pool, post, other, worth)
        yield from sorted(found, key=lambda swap: -found[swap])

    def _expected(
        self,
        value: Value,
        pool: Pool,
        post: Post,
        other: Post,
        worth: Mapping[tuple[str, Role], float],
    ) -> float:
        """Requests/s (per money, where that is what counts) after a swap, to first order."""
        rate = value.rate
        for role in ROLES:
            more = other.count(role) * other.parallel - post.count(role) * post.parallel
            each = worth.get((pool.name, role))
            if each is None:  # nobody there does it: what it is worth elsewhere
                each = max((w for (_, where), w in worth.items() if where is role), default=0.0)
            rate += each * more
        rate = max(0.0, rate)
        demand = self._problem.demand
        served = rate if demand is None else min(rate, demand)
        if self._objective is Objective.GOODPUT:
            return served
        cost = value.cost_per_h + (other.chips - post.chips) * pool.price_per_h
        return served / cost if cost > 0 else 0.0


def _worths(value: Value) -> dict[tuple[str, Role], float]:
    """Requests/s that one more chip of each pool in each role would add, by the duals."""
    worth: dict[tuple[str, Role], float] = {}
    if value.solved is None:
        return worth
    answer, groups = value.solved.answer, value.solved.net.groups
    for row, dual in zip(answer.rows, answer.duals, strict=True):
        if row.place is not None:
            group = groups[row.place]
            key = group.pool.name, group.role
            chips = group.count * group.shape.parallel
            worth[key] = worth.get(key, 0.0) + dual * row.most / chips
    return worth


def neighbours(pool: Pool, post: Post) -> Iterator[Post]:
    """Posts one step away: a worker more or less, of another role, or of another shape."""
    room = max((s.most for s in pool.shapes if s.parallel == post.parallel), default=0)
    counts: dict[Role, int] = {role: post.count(role) for role in ROLES}

    def made(changes: Mapping[Role, int], parallel: int = post.parallel) -> Post:
        return post_of(pool, parallel, {**counts, **changes})

    for role in ROLES:
        left = room - post.workers
        if role in pool.roles:
            yield from (made({role: counts[role] + n}) for n in _strides(left))
        for n in _strides(counts[role]):
            yield made({role: counts[role] - n})
            for other in ROLES:
                if other is not role and other in pool.roles:
                    yield made({role: counts[role] - n, other: counts[other] + n})
    if post.workers:
        yield made(dict.fromkeys(ROLES, 0))
    for shape in pool.shapes:
        if shape.parallel == post.parallel:
            continue
        if post.workers:
            scaled = {
                role: round(counts[role] * post.parallel / shape.parallel) or counts[role]
                for role in ROLES
            }
            if 0 < sum(scaled.values()) <= shape.most:
                yield made(scaled, shape.parallel)
        else:
            for role in ROLES:
                if role in pool.roles:
                    yield made({role: 1}, shape.parallel)
                    yield made({role: shape.most}, shape.parallel)
    if not post.workers and room > 1:
        for role in ROLES:
            if role in pool.roles:
                yield made({role: room})


def _strides(most: int) -> list[int]:
    """One, a quarter, half, and all of so many."""
    return sorted({n for n in (1, most // 4, most // 2, most) if 0 < n <= most})
