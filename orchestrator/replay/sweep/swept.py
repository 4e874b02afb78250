"""A sweep with all of its figures: what is shown of it starts here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.replay.scenario.schema import Compared, Scenario
from orchestrator.replay.sweep.axes.grammar import Axis
from orchestrator.replay.sweep.figures import Figures
from orchestrator.replay.sweep.grid import Cell, Point

PER_COST, PER_S = "goodput_per_cost", "goodput_per_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """Every policy's figures at every point. `near`: the policy that the others are held against.

    `measure`: the figure that says whether one pays: goodput per cost, or where nothing has a
    price, goodput.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    axes: tuple[Axis, ...]
    policies: tuple[str, ...]
    near: str
    figures: Mapping[tuple[Point, str], Figures]

    @property
    def measure(self) -> str:
        known = any(found.get(PER_COST) is not None for found in self.figures.values())
        return PER_COST if known else PER_S

    @property
    def points(self) -> list[Point]:
        return list(dict.fromkeys(point for point, _ in self.figures))

    @property
    def far(self) -> tuple[str, ...]:
        """The policies that are held against the near one."""
        return tuple(policy for policy in self.policies if policy != self.near)

    def value(self, point: Point, policy: str, name: str) -> float | None:
        """A figure; None: it was not there to be measured."""
        return self.figures[point, policy].get(name)

    def gain(self, point: Point, policy: str) -> float | None:
        """How much more a policy gives there than the near one, of the measure; above 0: it pays.

        None: one of the two is not known.
        """
        far, near = (self.value(point, name, self.measure) for name in (policy, self.near))
        return None if far is None or near is None else far - near


def near_policy(scenario: Scenario, policies: Sequence[Compared]) -> str:
    """One that needs no line: of route local, else in a single site; else the first."""
    for policy in policies:
        if (policy.route or scenario.topology(policy).policy.route) == "local":
            return policy.name
    for policy in policies:
        if len(scenario.topology(policy).sites) == 1:
            return policy.name
    return policies[0].name


def swept(
    *,
    title: str,
    facts: tuple[tuple[str, str], ...],
    axes: tuple[Axis, ...],
    near: str,
    cells: Sequence[Cell],
    known: Mapping[str, Figures],
) -> Swept:
    """From the figures by the cells' keys; all of them are known."""
    return Swept(
        title=title,
        facts=facts,
        axes=axes,
        policies=tuple(dict.fromkeys(cell.policy for cell in cells)),
        near=near,
        figures={(cell.point, cell.policy): known[cell.key] for cell in cells},
    )
