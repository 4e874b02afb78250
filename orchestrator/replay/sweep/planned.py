"""What a cell of a plan's sweep is turned into: the best plan there, and the best without lines."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from orchestrator.plan.explain import cost_per_million, routes
from orchestrator.plan.search import Objective, plan
from orchestrator.replay.scenario.problem import asked_rate, problem_of
from orchestrator.replay.scenario.schema import Scenario
from orchestrator.replay.sweep.axes import Axis
from orchestrator.replay.sweep.content import digest, scenario_digest
from orchestrator.replay.sweep.figures import Figures
from orchestrator.replay.sweep.grid import Cell, at_point, points
from orchestrator.topology.schema import Topology

PLAN, NEAR = "plan", "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to plan for: `rate` requests/s; None: the workload's own, or with `most` no bound."""

    rate: float | None
    most: bool
    objective: Objective
    keep_roles: bool


def plan_cells(scenario: Scenario, wanted: Wanted, axes: Sequence[Axis]) -> list[Cell]:
    """Two for each point: NEAR may use no line, so that what lines change does not count for it.

    Raises UserError.
    """
    cells = []
    for point in points(axes):
        here = at_point(scenario, axes, point)
        for name, meant in ((NEAR, _without_lines(here)), (PLAN, here)):
            key = digest({"plan": name, "of": scenario_digest(meant), "for": asdict(wanted)})
            cells.append(Cell(point=point, policy=name, scenario=meant, key=key))
    return cells


def plan_figures(wanted: Wanted, cell: Cell) -> Figures:
    """Plan once. Names as `pdd plan -o json` has them, and each pool's workers by role."""
    problem = problem_of(cell.scenario, keep_roles=wanted.keep_roles)
    if not wanted.most:
        problem = replace(problem, demand=wanted.rate or asked_rate(problem))
    found = plan(problem, wanted.objective)
    best = found.best
    figures: dict[str, float | None] = {
        "goodput_per_cost": best.per_cost if problem.priced else None,
        "goodput_per_s": best.served,
        "rate_per_s": best.rate,
        "cost_per_h": best.cost_per_h,
        "cost_per_million_tokens": cost_per_million(problem, best),
        "gap": found.gap,
    }
    figures |= {f"route {route}": part for route, part in routes(best).items()}
    for pool, post in zip(problem.pools, best.assignment.posts, strict=True):
        counts = {"prefill": post.prefill, "relay": post.relay, "main": post.main}
        figures |= {f"{pool.name} {role}": float(count) for role, count in counts.items()}
    return figures


def _without_lines(scenario: Scenario) -> Scenario:
    def alone(topology: Topology) -> Topology:
        return topology.model_copy(update={"links": ()})

    file = scenario.file
    policies = tuple(
        p if p.topology is None else p.model_copy(update={"topology": alone(p.topology)})
        for p in file.policies
    )
    prices = file.prices.model_copy(update={"lines": ()})
    changes = {"topology": alone(file.topology), "policies": policies, "prices": prices}
    return scenario.with_file(file.model_copy(update=changes))
