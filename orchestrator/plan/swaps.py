"""Assignments one step from another, and what the duals of its programme promise of each."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from orchestrator.plan.assignment import ROLES, Assignment, Post, post_of
from orchestrator.plan.problem import Pool, Problem
from orchestrator.plan.programme.value import Value
from workers.api.messages import Role


class Swap(NamedTuple):
    """One pool with another post. `rate`: requests/s to expect, to first order."""

    assignment: Assignment
    rate: float
    cost_per_h: float


def swaps(problem: Problem, value: Value) -> Iterator[Swap]:
    """All of them that can serve anything; the same assignment may come twice."""
    worth = _worths(value)
    posts = value.assignment.posts
    for place, pool in enumerate(problem.pools):
        for other in neighbours(pool, posts[place]):
            swapped = Assignment(posts=(*posts[:place], other, *posts[place + 1 :]))
            if swapped.possible:
                gained = _gained(pool.name, posts[place], other, worth)
                cost = (other.chips - posts[place].chips) * pool.price_per_h
                yield Swap(swapped, max(0.0, value.rate + gained), value.cost_per_h + cost)


def neighbours(pool: Pool, post: Post) -> Iterator[Post]:
    """Posts one step away: workers more or less, of another role, or of another shape."""
    if not post.workers:
        yield from _begun(pool, post)
        return
    counts = {role: post.count(role) for role in ROLES}

    def made(changes: Mapping[Role, int]) -> Post:
        return post_of(pool, post.parallel, {**counts, **changes})

    left = pool.shape(post.parallel).most - post.workers
    for role in ROLES:
        if role in pool.roles:
            yield from (made({role: counts[role] + n}) for n in _strides(left))
        for n in _strides(counts[role]):
            yield made({role: counts[role] - n})
            for other in ROLES:
                if other is not role and other in pool.roles:
                    yield made({role: counts[role] - n, other: counts[other] + n})
    yield post_of(pool, post.parallel, {})
    for shape in pool.shapes:
        if shape.parallel != post.parallel:
            scaled = {
                role: round(count * post.parallel / shape.parallel) or count
                for role, count in counts.items()
            }
            if 0 < sum(scaled.values()) <= shape.most:
                yield post_of(pool, shape.parallel, scaled)


def _begun(pool: Pool, idle: Post) -> Iterator[Post]:
    """An idle pool with some of its workers in one role."""
    for shape in pool.shapes:
        counts = _strides(shape.most) if shape.parallel == idle.parallel else [1, shape.most]
        for role in ROLES:
            if role in pool.roles:
                yield from (post_of(pool, shape.parallel, {role: count}) for count in counts)


def _strides(most: int) -> list[int]:
    """One, a quarter, half, and all of so many."""
    return sorted({n for n in (1, most // 4, most // 2, most) if 0 < n <= most})


def _gained(pool: str, post: Post, other: Post, worth: Mapping[tuple[str, Role], float]) -> float:
    """Requests/s that another post of a pool brings, to first order."""
    gained = 0.0
    for role in ROLES:
        more = other.count(role) * other.parallel - post.count(role) * post.parallel
        each = worth.get((pool, role))
        if each is None:  # nobody there does it: what it is worth elsewhere
            each = max((w for (_, played), w in worth.items() if played is role), default=0.0)
        gained += each * more
    return gained


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
