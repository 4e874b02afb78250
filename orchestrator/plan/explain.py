"""A plan in words and plain figures: what limits it, what more would bring, why others lost."""

from collections.abc import Iterator
from dataclasses import replace

from orchestrator.plan.assignment import ROLES, Assignment, Post, post_of
from orchestrator.plan.problem import Line, Pool, Problem
from orchestrator.plan.programme.flows import Limit, Row
from orchestrator.plan.programme.value import Solved, Value, value_of
from orchestrator.plan.search import ENOUGH, Plan, ranks
from workers.api.messages import MAIN, PREFILL, RELAY, Role
from workers.api.record import record

GBPS = 0.125e9  # bytes/s
SHOWN = 12  # candidates that lost
NOTHING = 0.005  # of the rate: less than that is not worth telling

DOES = {PREFILL: "prefills", RELAY: "relays", MAIN: "decodes"}
FULL = {  # what a limit is of; those that are not named are of workers
    Limit.LINE: "the line {where}",
    Limit.MEMORY: "KV memory of {where}",
    Limit.SLOTS: "decoding slots of {where}",
    Limit.LATE: "the part of requests that may be late",
}


@record
class Shadow:
    """What one unit more would bring. `adds`: requests/s, found by planning with it.

    `dual`: what the linear programme says to first order, with every wait as it is.
    """

    what: str
    unit: str
    adds: float
    dual: float
    text: str


@record
class Rejected:
    """A candidate that lost. `rate`: requests/s; `per_cost`: requests per unit of money."""

    assignment: str
    rate: float
    cost_per_h: float
    per_cost: float
    why: str


@record
class Explanation:
    """Everything that is told of a plan, in words but for the figures of `shadows` and `rejected`.

    `bound`: how near the plan is to what nothing can pass; `binding`: what is full first;
    `fixed_point`: how well it settled; `sites`: by site, what it does.
    """

    headline: str
    bound: str
    binding: str
    fixed_point: str
    shadows: tuple[Shadow, ...]
    sites: dict[str, str]
    rejected: tuple[Rejected, ...]


def explain(plan: Plan) -> Explanation:
    """Pure; plans once more for each line and each role that is played."""
    best = plan.best
    return Explanation(
        headline=_headline(plan),
        bound=_bound(plan),
        binding=_binding(best),
        fixed_point=(
            f"waits, hits and relay lengths settled after {best.rounds} rounds; the last one moved "
            f"the rate by {best.moved:.2%}"
        ),
        shadows=tuple(sorted(_shadows(plan), key=lambda shadow: -shadow.adds)),
        sites=dict(_sites(best)),
        rejected=tuple(_rejected(plan, value) for value in plan.tried[1 : SHOWN + 1]),
    )


def cost_per_million(problem: Problem, value: Value) -> float | None:
    """Money per million output tokens; None where nothing is served."""
    tokens = sum(
        share * what.output for share, what in zip(problem.shares, problem.classes, strict=True)
    )
    return value.cost_per_h / (value.served * tokens * 3600) * 1e6 if value.served else None


def routes(value: Value) -> dict[str, float]:
    """Parts of the requests by route."""
    parts: dict[str, float] = {}
    solved = value.solved
    if solved is None or not value.rate:
        return parts
    for path, rate in zip(solved.net.paths, solved.flows.going, strict=True):
        if rate:
            parts[path.route] = parts.get(path.route, 0.0) + rate / value.rate
    return parts


# -------------------------------------------------------------------------------------- parts


def _headline(plan: Plan) -> str:
    best = plan.best
    if not best.rate:
        return f"nothing can be served within the goal: {best.why}"
    text = f"{best.rate:.3g} requests/s within the goal"
    demand = plan.problem.demand
    if demand is not None:
        enough = best.served >= ENOUGH * demand
        text += f", which is {'enough' if enough else 'too little'} for the {demand:.3g} wanted"
    money = "" if plan.problem.priced else " chip hours (no prices given)"
    text += f"; {best.cost_per_h:.4g}{money} an hour, {best.per_cost:.4g} requests per unit of it"
    million = cost_per_million(plan.problem, best)
    return text if million is None else f"{text}, {million:.3g} per million output tokens"


def _bound(plan: Plan) -> str:
    unit = "requests per unit of money" if plan.by_cost else "requests/s"
    searched = (
        f"all {len(plan.tried)} assignments were tried"
        if plan.whole
        else f"{len(plan.tried)} assignments were tried, by guided swaps"
    )
    return (
        f"{searched}; with workers that could be split at will and no waits {plan.bound.score:.4g} "
        f"{unit} would be the most, the plan is {plan.gap:.0%} below that"
    )


def _binding(value: Value) -> str:
    if value.binding is None:
        return "nothing binds: nothing is served"
    return f"{_limit(value.binding)} is full first"


def _limit(row: Row) -> str:
    """A row as people name it."""
    return FULL.get(row.limit, "{limit} of {where}").format(limit=row.limit, where=row.where)


def _shadows(plan: Plan) -> Iterator[Shadow]:
    best = plan.best
    if best.solved is None or not best.rate:
        return
    for number, line in enumerate(plan.problem.lines):
        yield _line_shadow(plan, best.solved, number, line)
    for pool, post in zip(plan.problem.pools, best.assignment.posts, strict=True):
        for role in ROLES:
            if post.count(role):
                yield _worker_shadow(plan, best.solved, pool, post, role)


def _line_shadow(plan: Plan, solved: Solved, number: int, line: Line) -> Shadow:
    more = GBPS * line.wire_ratio
    lines = list(plan.problem.lines)
    lines[number] = replace(line, bytes_per_s=line.bytes_per_s + more)
    problem = replace(plan.problem, lines=tuple(lines))
    adds = max(0.0, value_of(problem, plan.best.assignment).rate - plan.best.rate)
    dual = sum(
        dual * more
        for row, dual in _duals(solved)
        if row.line is not None and set(row.line) == set(line.between)
    )
    return _told(plan, f"Gbps on {line.name}", "Gbps", adds, dual)


def _worker_shadow(plan: Plan, solved: Solved, pool: Pool, post: Post, role: Role) -> Shadow:
    """With one worker more than the pool has chips for, if need be."""
    shapes = tuple(replace(shape, most=shape.most + 1) for shape in pool.shapes)
    pools = tuple(
        replace(other, shapes=shapes) if other.name == pool.name else other
        for other in plan.problem.pools
    )
    counts = {each: post.count(each) + (each is role) for each in ROLES}
    more = post_of(pool, post.parallel, counts)
    posts = tuple(more if other is post else other for other in plan.best.assignment.posts)
    value = value_of(replace(plan.problem, pools=pools), Assignment(posts=posts))
    groups = solved.net.groups
    dual = sum(
        dual * row.most / post.count(role)
        for row, dual in _duals(solved)
        if row.place is not None
        and (groups[row.place].pool.name, groups[row.place].role) == (pool.name, role)
    )
    adds = max(0.0, value.rate - plan.best.rate)
    what = f"{role} worker of {post.parallel} {pool.chip} in {pool.name}"
    return _told(plan, what, "workers", adds, dual)


def _duals(solved: Solved) -> Iterator[tuple[Row, float]]:
    yield from zip(solved.answer.rows, solved.answer.duals, strict=True)


def _told(plan: Plan, what: str, unit: str, adds: float, dual: float) -> Shadow:
    if adds < NOTHING * plan.best.rate:
        text = f"one more {what} adds nothing"
    else:
        text = f"one more {what} adds {adds:.2g} requests/s"
    return Shadow(what=what, unit=unit, adds=adds, dual=dual, text=text)


def _sites(value: Value) -> Iterator[tuple[str, str]]:
    """What each site ends up doing, and how full it is."""
    if value.solved is None:
        return
    net, state = value.solved.net, value.solved.state
    told: dict[str, list[str]] = {site: [] for site in net.ground.sites}
    for place, group in enumerate(net.groups):
        load = max(state.load[place], state.held[place])
        told[group.pool.site].append(
            f"{DOES[group.role]} on {group.count} x {group.shape.parallel} {group.pool.chip} "
            f"({_speed(value.solved, place)}, {load:.0%} busy)"
        )
    for site, parts in told.items():
        yield site, "; ".join(parts) or f"does nothing: {_idle(net.problem, site)}"


def _speed(solved: Solved, place: int) -> str:
    """What decides for a role: seconds per prompt, or tokens per second within the goal."""
    net, state = solved.net, solved.state
    if net.groups[place].role is PREFILL:
        mix = net.mixes(solved.flows.entering)[place]
        return f"{net.service(place, mix, state.cached[place]).mean_s:.2g} s a prompt"
    return f"{state.batch[place]:.0f} at once, {1e3 * state.step_s[place]:.3g} ms a token"


def _idle(problem: Problem, site: str) -> str:
    """Why a site is left out."""
    if not any(pool.site == site for pool in problem.pools):
        return "it has no chips"
    return "its chips serve less for their price, or nobody needs them"


def _rejected(plan: Plan, value: Value) -> Rejected:
    return Rejected(
        assignment=str(value.assignment),
        rate=value.rate,
        cost_per_h=value.cost_per_h,
        per_cost=value.per_cost,
        why=_lost(plan, value),
    )


def _lost(plan: Plan, value: Value) -> str:
    """Against the best, by the first thing that decides."""
    best, problem = plan.best, plan.problem
    if not value.rate:
        return value.why
    mine, its = (ranks(problem, plan.objective, v.served, v.cost_per_h) for v in (best, value))
    limit = "" if value.binding is None else f", where {_limit(value.binding)} is full"
    if mine[0] > its[0] and problem.demand is not None:
        return f"serves {value.rate:.3g} of {problem.demand:.3g} requests/s{limit}"
    less = 1 - value.served / best.served if best.served else 0.0
    dearer = value.cost_per_h / best.cost_per_h - 1 if best.cost_per_h else 0.0
    worse = 1 - value.per_cost / best.per_cost if best.per_cost else 0.0
    if less > NOTHING and dearer > NOTHING:
        return f"serves {less:.0%} less{limit}, and costs {dearer:.0%} more"
    if less > NOTHING:
        saved = f"; it saves {-dearer:.0%}" if dearer < -NOTHING else ""
        return f"serves {less:.0%} less{limit}{saved}"
    if dearer > NOTHING:
        gained = f" for {-less:.0%} more" if less < -NOTHING else ""
        return f"costs {dearer:.0%} more{gained}: {worse:.0%} less for its money{limit}"
    return "serves as much for as much; the first in order is taken"
