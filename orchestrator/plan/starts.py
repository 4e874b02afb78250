"""Where a search starts: whole workers out of what relaxed programmes would split at will."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

from orchestrator.plan.assignment import ROLES, Assignment, Post, post_of
from orchestrator.plan.problem import Ground, Pool, Problem
from orchestrator.plan.programme.bound import Bound, Split, relaxed
from workers.api.messages import MAIN, PREFILL, RELAY, Role

SIZES = (1.0, 0.5, 0.25, 0.0)  # of a split: money may be best spent in less of it
PAIRS = 100  # of all pairs of pools, those of the highest bound
ALIKE = 4  # pairs of one bound: pools of equal chips
NOISE = 1e-6  # chips, and parts of a pool's: less is the solver's
NEAR = frozenset({PREFILL, RELAY})
FAR = frozenset({MAIN})


def starts(
    problem: Problem, ground: Ground, bound: Bound, *, per_cost: bool
) -> Iterator[Assignment]:
    """The whole programme's own split, those of the best pairs of pools, and pairs side by side.

    Money is best spent in few pools, whose parts a programme over all of them hides; a demand, or
    the most there is, wants many.
    """
    yield from _scaled(problem, bound)
    pairs = _pairs(problem, ground, per_cost=per_cost)
    for pair in pairs:
        yield from _scaled(problem, pair)
    yield from _joined(problem, pairs)


def _pairs(problem: Problem, ground: Ground, *, per_cost: bool) -> list[Bound]:
    """Bounds of those that prefill (and relay) in one pool and decode in one, the best first."""
    found = []
    for first, second in product(problem.pools, repeat=2):
        near, far = first.roles & NEAR, second.roles & FAR
        if PREFILL not in near or not far:
            continue
        pools = (
            (replace(first, roles=near | far),)
            if first is second
            else (replace(first, roles=near), replace(second, roles=far))
        )
        alone = replace(problem, pools=pools, demand=None)
        found.append(relaxed(alone, per_cost=per_cost, ground=ground))
    kept: dict[float, list[Bound]] = {}
    for pair in sorted(found, key=lambda pair: -pair.score):
        alike = kept.setdefault(round(pair.score, 6), [])
        if pair.score and len(alike) < ALIKE:
            alike.append(pair)
    return [pair for alike in kept.values() for pair in alike][:PAIRS]


def _scaled(problem: Problem, bound: Bound) -> Iterator[Assignment]:
    """A bound's split, whole and in parts."""
    for size in SIZES:
        yield _assigned(problem, bound.split, size)


def _joined(problem: Problem, pairs: list[Bound]) -> Iterator[Assignment]:
    """The best pair, then with the best of the pools that are left, and so on."""
    split: dict[str, dict[tuple[int, Role], float]] = {}
    for pair in pairs:
        if split.keys().isdisjoint(pair.split):
            split |= pair.split
            yield _assigned(problem, split, 1.0)


def _assigned(problem: Problem, split: Mapping[str, Split], size: float) -> Assignment:
    return Assignment(
        posts=tuple(rounded(pool, split.get(pool.name, {}), size) for pool in problem.pools)
    )


def rounded(pool: Pool, split: Split, size: float) -> Post:
    """Whole workers in the parts that `split` (chips by shape and role) gives each role.

    `size` 1: all that the split uses of the pool at its largest; 0: one worker where there is some.
    """
    idle = post_of(pool, 1, {})
    chips: dict[int, float] = {}
    for (parallel, _), amount in split.items():
        chips[parallel] = chips.get(parallel, 0.0) + amount
    if not chips or max(chips.values()) <= NOISE:
        return idle
    parallel = max(chips, key=lambda p: (chips[p], -p))
    room = pool.shape(parallel).most
    wanted = {
        role: size
        * sum(amount for (_, played), amount in split.items() if played is role)
        / parallel
        for role in ROLES
    }
    counts = {role: round(wanted[role]) for role in ROLES}
    for role in ROLES:
        named = split.get((parallel, role), 0.0)
        if not counts[role] and named > NOISE * pool.chips:
            counts[role] = 1  # without it there might be no way at all
    while sum(counts.values()) > room:
        most = max(ROLES, key=lambda role: counts[role] - wanted[role])
        counts[most] -= 1
    if not sum(counts.values()):
        return idle
    return post_of(pool, parallel, counts)
