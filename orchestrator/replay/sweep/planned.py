"""What a cell of a plan's sweep is turned into: the best plan there, and the best without lines."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from orchestrator.plan.assignment import ROLES
from orchestrator.plan.explain import cost_per_million, routes
from orchestrator.plan.problem import Problem
from orchestrator.plan.search import Objective, plan
from orchestrator.replay.scenario.problem import asked_rate, problem_of
from orchestrator.replay.scenario.schema import Scenario
from orchestrator.replay.sweep.axes.changes import each_topology
from orchestrator.replay.sweep.axes.grammar import Axis
from orchestrator.replay.sweep.content import digest, scenario_digest
from orchestrator.replay.sweep.figures import Figures
from orchestrator.replay.sweep.grid import Cell, at_point, points
from orchestrator.topology.schema import Topology

PLAN, NEAR = "plan", "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to plan for: `rate` requests/s; None: the workload's own, or with `most` no bound.

    `keep_roles`: pools take only the roles that the scenario gives them.
    """

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


def wanted_problem(scenario: Scenario, wanted: Wanted) -> Problem:
    """The scenario's problem with the demand that is to be served."""
    problem = problem_of(scenario, keep_roles=wanted.keep_roles)
    if wanted.most:
        return problem
    return replace(problem, demand=wanted.rate or asked_rate(problem))


def plan_figures(wanted: Wanted, cell: Cell) -> Figures:
    """Plan once. Names as `pdd plan -o json` has them, and each pool's workers by role."""
    problem = wanted_problem(cell.scenario, wanted)
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
        figures |= {f"{pool.name} {role}": float(post.count(role)) for role in ROLES}
    return figures


def _without_lines(scenario: Scenario) -> Scenario:
    def alone(topology: Topology) -> Topology:
        return topology.model_copy(update={"links": ()})

    prices = scenario.file.prices.model_copy(update={"lines": ()})
    file = scenario.file.model_copy(update={"prices": prices})
    return each_topology(scenario.with_file(file), alone)
