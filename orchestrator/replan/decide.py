"""New roles for a measured world, if they are worth it, with the fewest workers that change."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from orchestrator.plan.assignment import ROLES, Assignment, post_of
from orchestrator.plan.problem import ALL_ROLES, Problem
from orchestrator.plan.programme.value import value_of
from orchestrator.plan.search import Objective, plan
from orchestrator.replan.seen import Seen, WorkerSeen, of_workers, problem_seen
from workers.api.messages import MAIN, PREFILL, Role
from workers.api.record import record

SHOWN = 4  # changes that one line names


@record
class Case:
    """A world that is not the one that was planned for. `why`: in words, what is different.

    `urgent`: requests may have nobody to serve them as they should be.
    """

    base: Problem
    seen: Seen
    why: tuple[str, ...]
    gain: float
    urgent: bool = False


@record
class Change:
    """A worker's new legs have other roles from now on."""

    worker: str
    before: frozenset[Role]
    after: frozenset[Role]

    def __str__(self) -> str:
        return f"{self.worker} {_told(self.before)} > {_told(self.after)}"


@record
class Decision:
    """Who changes, and why or why not. Requests/s within the goal: of the roles as they are, and
    of the best that were found.
    """

    changes: tuple[Change, ...]
    rate_before: float
    rate_after: float
    text: str


def decide(case: Case) -> Decision:
    """Plan anew; pure, and slow: some seconds.

    The new roles are taken if they serve more by the case's gain; if nothing keeps the goal and
    nobody prefills or nobody decodes, every worker takes every role.
    """
    seen = case.seen
    problem = problem_seen(case.base, seen)
    before = rate_of(problem, seen.workers)
    best = plan(problem, Objective.GOODPUT).best
    roles: Mapping[str, frozenset[Role]] = {}
    if best.rate > (1 + case.gain) * before:
        roles = roles_of(seen.workers, best.assignment)
    elif not best.rate and not (seen.has(PREFILL) and seen.has(MAIN)):
        roles = {worker.name: ALL_ROLES for worker in seen.workers}
    changes = tuple(
        Change(worker=worker.name, before=worker.roles, after=roles[worker.name])
        for worker in seen.workers
        if roles.get(worker.name, worker.roles) != worker.roles
    )
    return Decision(
        changes=changes,
        rate_before=before,
        rate_after=best.rate,
        text=f"{'; '.join(case.why)}: {_outcome(changes, before, best.rate)}",
    )


def rate_of(problem: Problem, workers: Sequence[WorkerSeen]) -> float:
    """Requests/s within the goal that workers serve in the roles they have.

    A worker that has several is whichever suits best.
    """
    alike = Counter((worker.pool, worker.roles) for worker in workers if worker.roles)
    pools = tuple(
        of_workers(problem.pool(name), count, roles, f"{name} {_told(roles)}")
        for (name, roles), count in alike.items()
    )
    if not pools:
        return 0.0
    problem = replace(problem, pools=pools)
    if any(len(pool.roles) > 1 for pool in pools):
        return plan(problem, Objective.GOODPUT).best.rate
    posts = tuple(
        post_of(pool, pool.shapes[0].parallel, dict.fromkeys(pool.roles, pool.shapes[0].most))
        for pool in pools
    )
    assignment = Assignment(posts=posts)
    return value_of(problem, assignment).rate if assignment.possible else 0.0


def roles_of(workers: Sequence[WorkerSeen], assignment: Assignment) -> dict[str, frozenset[Role]]:
    """Each worker's role by an assignment. Those that it leaves idle stay what they are."""
    found: dict[str, frozenset[Role]] = {}
    for post in assignment.posts:
        left = {role: post.count(role) for role in ROLES}
        pool = [worker for worker in workers if worker.pool == post.pool]
        for worker, role in _matched(pool, left):
            left[role] -= 1
            found[worker.name] = frozenset({role})
        rest = [worker for worker in pool if worker.name not in found]
        for worker, role in zip(rest, Counter(left).elements(), strict=False):
            found[worker.name] = frozenset({role})
    return found


def _matched(
    pool: Sequence[WorkerSeen], left: Mapping[Role, int]
) -> Iterator[tuple[WorkerSeen, Role]]:
    """Workers that have a role of which some are still wanted; those that have no other first."""
    for worker in sorted(pool, key=lambda worker: len(worker.roles)):
        for role in ROLES:
            if role in worker.roles and left[role]:
                yield worker, role
                break


def _outcome(changes: Sequence[Change], before: float, after: float) -> str:
    if not changes:
        return (
            f"roles stay; they serve {before:.3g} requests/s within the goal, the best that were "
            f"found {after:.3g}"
        )
    names = ", ".join(map(str, changes[:SHOWN]))
    more = f" and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
    if not after:
        return f"{names}{more}; nothing keeps the goal, so everybody takes what comes"
    return f"{names}{more}; {after:.3g} requests/s within the goal instead of {before:.3g}"


def _told(roles: frozenset[Role]) -> str:
    return "+".join(role.value for role in ROLES if role in roles) or "nothing"
