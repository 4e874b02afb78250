"""The grid of a sweep, and its cells."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from orchestrator.errors import UserError
from orchestrator.replay.scenario.impossible import impossible
from orchestrator.replay.scenario.schema import Compared, Scenario
from orchestrator.replay.sweep.axes.changes import CannotSweep
from orchestrator.replay.sweep.axes.grammar import Axis
from orchestrator.replay.sweep.content import policy_digest
from orchestrator.topology.mistakes import path_text

MOST_POINTS = 10_000
MOST_AXES = 3  # the page has a picture for two, and a choice of the third's values

Point = tuple[float, ...]  # one value of each axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One policy at one point. `key` is the same for cells of which nothing that counts differs."""

    point: Point
    policy: str
    scenario: Scenario
    key: str


def points(axes: Sequence[Axis]) -> list[Point]:
    """All of them; the last axis's values vary fastest. Raises UserError for too many."""
    if len(axes) > MOST_AXES:
        raise UserError(f"--sweep: {len(axes)} axes, but at most {MOST_AXES} can be shown")
    count = prod(len(axis.values) for axis in axes)
    if count > MOST_POINTS:
        raise UserError(f"--sweep: {count} points are more than {MOST_POINTS}; take fewer steps")
    return list(product(*(axis.values for axis in axes)))


def at_point(scenario: Scenario, axes: Sequence[Axis], point: Point) -> Scenario:
    """The scenario as it is there. Raises UserError for one that cannot be."""
    where = f"--sweep, at {point_text(axes, point)}"
    try:
        for axis, value in zip(axes, point, strict=True):
            scenario = axis.change(scenario, value)
    except CannotSweep as error:
        raise UserError(f"{where}: {error}") from None
    for place, message in impossible(scenario):
        raise UserError(f"{where}: {path_text(place)}: {message}")
    return scenario


def point_text(axes: Sequence[Axis], point: Point) -> str:
    """As people read it: link.bandwidth 5 Gbps, link.distance_km 4000 km."""
    pairs = zip(axes, point, strict=True)
    return ", ".join(f"{axis.title} {axis.text(value)}" for axis, value in pairs)


def replay_cells(
    scenario: Scenario, policies: Sequence[Compared], axes: Sequence[Axis]
) -> list[Cell]:
    """One for each point and policy, in order. Raises UserError."""
    scenario = scenario.with_file(scenario.file.model_copy(update={"timelines": 0}))
    cells = []
    for point in points(axes):
        here = at_point(scenario, axes, point)
        for policy in policies:
            key = policy_digest(here, policy.name)
            cells.append(Cell(point=point, policy=policy.name, scenario=here, key=key))
    return cells
