"""Who plays which role: the integers of the programme."""

from collections.abc import Iterator, Mapping
from itertools import product

from orchestrator.plan.problem import Pool, Problem, Shape
from workers.api.messages import MAIN, PREFILL, RELAY, Role
from workers.api.record import record

ROLES = (PREFILL, RELAY, MAIN)


@record
class Post:
    """What a pool's workers do, each over `parallel` chips. Chips of no worker are not paid for."""

    pool: str
    parallel: int
    prefill: int = 0
    relay: int = 0
    main: int = 0

    def count(self, role: Role) -> int:
        """Workers in a role."""
        return {PREFILL: self.prefill, RELAY: self.relay, MAIN: self.main}[role]

    @property
    def workers(self) -> int:
        return self.prefill + self.relay + self.main

    @property
    def chips(self) -> int:
        return self.workers * self.parallel

    def __str__(self) -> str:
        told = [f"{self.count(role)} {role.value}" for role in ROLES if self.count(role)]
        return f"{self.pool}: {' + '.join(told) or 'idle'} x {self.parallel}"


@record
class Assignment:
    """One post for each pool, in the problem's order."""

    posts: tuple[Post, ...]

    def post(self, pool: str) -> Post:
        """Raises KeyError for a pool that is not in it."""
        for post in self.posts:
            if post.pool == pool:
                return post
        raise KeyError(pool)

    @property
    def possible(self) -> bool:
        """Somebody prefills and somebody decodes."""
        return any(post.prefill for post in self.posts) and any(post.main for post in self.posts)

    def chips_per_h(self, problem: Problem) -> float:
        """What its chips cost."""
        prices = {pool.name: pool.price_per_h for pool in problem.pools}
        return sum(post.chips * prices[post.pool] for post in self.posts)

    def __str__(self) -> str:
        return "; ".join(str(post) for post in self.posts if post.workers)


@record
class Group:
    """Workers that are alike and do the same."""

    pool: Pool
    role: Role
    count: int
    shape: Shape

    @property
    def name(self) -> str:
        return f"{self.pool.name} {self.role.value}"


def groups_of(problem: Problem, assignment: Assignment) -> list[Group]:
    """The assignment's workers, in a fixed order."""
    found = []
    for pool, post in zip(problem.pools, assignment.posts, strict=True):
        for role in ROLES:
            if post.count(role):
                shape = pool.shape(post.parallel)
                found.append(Group(pool=pool, role=role, count=post.count(role), shape=shape))
    return found


def post_of(pool: Pool, parallel: int, counts: Mapping[Role, int]) -> Post:
    """A pool's workers by role; an idle pool has one form only."""
    if not any(counts.values()):
        parallel = min((shape.parallel for shape in pool.shapes), default=1)
    prefill, relay, main = (counts.get(role, 0) for role in ROLES)
    return Post(pool=pool.name, parallel=parallel, prefill=prefill, relay=relay, main=main)


def posts_of(pool: Pool) -> Iterator[Post]:
    """Every way to use a pool, idle first."""
    yield post_of(pool, 1, {})
    for shape in pool.shapes:
        most = [shape.most if role in pool.roles else 0 for role in ROLES]
        for counts in product(*(range(count + 1) for count in most)):
            if 0 < sum(counts) <= shape.most:
                yield post_of(pool, shape.parallel, dict(zip(ROLES, counts, strict=True)))
