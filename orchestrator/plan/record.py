"""A plan as plain values, and the flows that a picture of it is drawn from."""

from collections.abc import Iterator
from math import inf
from typing import Any, NamedTuple

from orchestrator.plan.assignment import ROLES, Post
from orchestrator.plan.explain import Explanation, cost_per_million, routes
from orchestrator.plan.programme.paths import Net
from orchestrator.plan.programme.settle import Flows
from orchestrator.plan.programme.value import Value
from orchestrator.plan.search import Plan


class Flow(NamedTuple):
    """Requests/s from one place to the next, such as "hami/compute prefill".

    `stage`: prefill, then the route from there on; handoff: from relay to main.
    """

    stage: str
    source: str
    target: str
    per_s: float


def to_record(plan: Plan, explanation: Explanation | None) -> dict[str, Any]:
    """Plain values for JSON; keys are only ever added."""
    best, problem = plan.best, plan.problem
    found: dict[str, Any] = {
        "objective": plan.objective.value,
        "demand_per_s": problem.demand,
        "priced": problem.priced,
        "slo": {
            "ttft_s": problem.goal.ttft_s,
            "tpot_s": problem.goal.tpot_s,
            "second_token_s": problem.goal.second_s if problem.goal.second_s < inf else None,
        },
        "share_within_slo": problem.goal.share,
        "assignment": [_post(post) for post in best.assignment.posts],
        "rate_per_s": best.rate,
        "served_per_s": best.served,
        "programme_per_s": best.programme_rate,
        "cost_per_h": best.cost_per_h,
        "cost_per_million_tokens": cost_per_million(problem, best),
        "goodput_per_cost": best.per_cost,
        "bound": plan.bound.score,
        "bound_is": "requests per unit of money" if plan.by_cost else "requests/s",
        "gap": plan.gap,
        "tried": len(plan.tried),
        "all_tried": plan.whole,
        "rounds": best.rounds,
        "moved": best.moved,
        "routes": routes(best),
        "flows": [
            {"stage": flow.stage, "from": flow.source, "to": flow.target, "per_s": flow.per_s}
            for flow in flows_of(best)
        ],
        "lines": list(_lines(best)),
        "why_nothing": best.why or None,
    }
    if explanation is not None:
        found["explanation"] = explanation
    return found


def flows_of(value: Value) -> Iterator[Flow]:
    """From "requests" to the workers that decode last; nothing where nothing is served."""
    if value.solved is None:
        return
    net, flows = value.solved.net, value.solved.flows
    summed: dict[tuple[str, str, str], float] = {}

    def add(stage: str, source: str, target: str, rate: float) -> None:
        key = stage, source, target
        summed[key] = summed.get(key, 0.0) + rate

    parts = _prefill_parts(net, flows)
    for (_, place), rate in zip(net.entries, flows.entering, strict=True):
        add("prefill", "requests", net.groups[place].name, rate)
    for path, rate in zip(net.paths, flows.going, strict=True):
        if not rate:
            continue
        last = net.groups[path.main].name
        first = last if path.relay is None else net.groups[path.relay].name
        for place, part in parts[path.kind, path.site]:
            add(path.route, net.groups[place].name, first, part * rate)
        if path.relay is not None:
            add("handoff", first, last, rate)
    yield from (Flow(*key, rate) for key, rate in summed.items() if rate > 1e-9)


def _prefill_parts(net: Net, flows: Flows) -> dict[tuple[int, str], list[tuple[int, float]]]:
    """Of each class in each site, which part every group prefills."""
    found: dict[tuple[int, str], list[tuple[int, float]]] = {}
    for (kind, place), rate in zip(net.entries, flows.entering, strict=True):
        found.setdefault((kind, net.groups[place].pool.site), []).append((place, rate))
    return {
        where: [(place, rate / total) for place, rate in parts if rate]
        for where, parts in found.items()
        if (total := sum(rate for _, rate in parts))
    }


def _lines(value: Value) -> Iterator[dict[str, Any]]:
    """Each way of each; `used`: the part of it, `wait_s`: how long KV waits for its turn."""
    if value.solved is not None:
        state = value.solved.state
        for (a, b), used in state.line_load.items():
            yield {"from": a, "to": b, "used": used, "wait_s": state.line_wait_s[a, b]}


def _post(post: Post) -> dict[str, Any]:
    counts = {role.value: post.count(role) for role in ROLES}
    return {"pool": post.pool, "parallel": post.parallel, **counts}
