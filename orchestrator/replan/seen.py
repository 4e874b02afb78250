"""What is measured of a running deployment, and the problem that it poses to the planner."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from orchestrator.plan.demand import RequestClass
from orchestrator.plan.problem import ALL_ROLES, Line, Pool, Problem
from orchestrator.state.links import LinkView
from orchestrator.state.views import World
from workers.api.messages import Role
from workers.api.record import record

# What a full line was measured to give counts for so long. A line that is avoided since is not
# measured any more; then it is as it was told again, and worth another try.
RECALL_S = 600.0


@record
class WorkerSeen:
    """A worker that takes new legs. `pool` is site/pool, as the planner names it."""

    name: str
    site: str
    pool: str
    roles: frozenset[Role]


@record
class LineSeen:
    """What a line gives each way, coded bytes, and how long one way takes."""

    bytes_per_s: float
    delay_s: float


@record
class Seen:
    """The deployment at one moment. `lines` by the planner's names of them."""

    workers: tuple[WorkerSeen, ...]
    lines: Mapping[str, LineSeen]
    classes: tuple[RequestClass, ...]

    @property
    def sites(self) -> frozenset[str]:
        """Those in which somebody works."""
        return frozenset(worker.site for worker in self.workers)

    @property
    def per_pool(self) -> Counter[str]:
        """Workers."""
        return Counter(worker.pool for worker in self.workers)

    def has(self, role: Role) -> bool:
        """Whether somebody may take a role."""
        return any(role in worker.roles for worker in self.workers)


def see(world: World, base: Problem, classes: tuple[RequestClass, ...] | None) -> Seen:
    """What the core knows of workers and lines now; `classes` None: those of `base`."""
    return Seen(
        workers=tuple(
            WorkerSeen(
                name=view.name, site=view.site, pool=f"{view.site}/{view.up.pool}", roles=view.roles
            )
            for view in world.workers.values()
            if not view.draining
        ),
        lines={line.name: _line_seen(world, line) for line in base.lines},
        classes=base.classes if classes is None else classes,
    )


def as_told(base: Problem, seen: Seen) -> Seen:
    """The workers that are there, with lines and requests as the plan took them to be."""
    lines = {line.name: _line_told(line) for line in base.lines}
    return replace(seen, lines=lines, classes=base.classes)


def problem_seen(base: Problem, seen: Seen) -> Problem:
    """`base`, whose pools have one shape each, with what there is of it now.

    Any worker may take any role, and as much as possible is wanted.
    """
    return replace(
        base,
        pools=tuple(_pools(base, seen)),
        lines=tuple(_line_now(line, seen.lines[line.name]) for line in base.lines),
        classes=seen.classes,
        demand=None,
    )


def of_workers(pool: Pool, count: int, roles: frozenset[Role], name: str) -> Pool:
    """A pool of so many of its workers, under a name of its own."""
    (shape,) = pool.shapes
    shapes = (replace(shape, most=count),)
    return replace(pool, name=name, chips=count * shape.parallel, shapes=shapes, roles=roles)


def _pools(base: Problem, seen: Seen) -> Iterator[Pool]:
    for pool in base.pools:
        count = seen.per_pool[pool.name]
        if count:
            yield of_workers(pool, count, ALL_ROLES, pool.name)


def _line_told(line: Line) -> LineSeen:
    return LineSeen(bytes_per_s=line.bytes_per_s / line.wire_ratio, delay_s=line.delay_s)


def _line_seen(world: World, line: Line) -> LineSeen:
    """The slower of both ways, and never more than was told."""
    told = _line_told(line)
    a, b = line.between
    ways = [link for link in (world.link(a, b), world.link(b, a)) if link is not None]
    measured = [rate for link in ways if (rate := _measured(link, world.now)) is not None]
    rtts = [link.rtt_s(world.now) for link in ways if link.seen_rtt is not None]
    return LineSeen(
        bytes_per_s=min([told.bytes_per_s, *measured]),
        delay_s=min(rtts) / 2 if rtts else told.delay_s,
    )


def _measured(link: LinkView, now: float) -> float | None:
    seen = link.seen_goodput
    return None if seen is None or now - seen.at > RECALL_S else max(1.0, seen.value)


def _line_now(line: Line, seen: LineSeen) -> Line:
    return replace(line, bytes_per_s=seen.bytes_per_s * line.wire_ratio, delay_s=seen.delay_s)
