"""The scenario file: which deployments, which load and which faults a seed may bring."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from orchestrator.topology.schema import Positive, PositiveSeconds, Rate, Seconds, Strict
from orchestrator.topology.strict import load_model
from orchestrator.virtual.faults.fault import MILD, OF_STORES, Kind

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
Sites = Annotated[int, Field(ge=2, le=3)]
ClockRate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Load(Strict):
    """The requests: `least` to `most` of them within `over`; lists are drawn from evenly."""

    least: Positive
    most: Positive
    over: PositiveSeconds
    bursts: Share  # of deployments in which half of the requests come at one moment
    leaving: Share  # of clients that go away before their answer is complete
    prompts: tuple[Positive, ...] = Field(min_length=1, strict=False)  # tokens
    outputs: tuple[Positive, ...] = Field(min_length=1, strict=False)  # tokens, at most

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.least > self.most:
            raise ValueError(f"least: {self.least} is above most, {self.most}")
        return self


class Line(Strict):
    """The line between two sites; lists are drawn from evenly."""

    one_way: tuple[Seconds, ...] = Field(min_length=1, strict=False)
    jitter: tuple[Seconds, ...] = Field(min_length=1, strict=False)
    bandwidth: tuple[Rate, ...] = Field(min_length=1, strict=False)


class Faults(Strict):
    """`least` to `most` faults within `over`, each kind as often as its weight says.

    `mild`: the share of cases with nothing but small accidents on the fastest line, which must
    cost no deadline. `back_after`: when what was killed is started again. `chances`: of loss,
    repetition and corruption, per message. `memory`: the share of a pool that something else
    takes.
    """

    least: Count
    most: Count
    over: PositiveSeconds
    mild: Share
    lasting: tuple[PositiveSeconds, ...] = Field(min_length=1, strict=False)
    back_after: tuple[PositiveSeconds, ...] = Field(min_length=1, strict=False)
    chances: tuple[Share, ...] = Field(min_length=1, strict=False)
    delays: tuple[PositiveSeconds, ...] = Field(min_length=1, strict=False)
    memory: tuple[Share, ...] = Field(min_length=1, strict=False)
    clock_rates: tuple[ClockRate, ...] = Field(min_length=1, strict=False)
    weights: dict[Annotated[Kind, Field(strict=False)], Weight]

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.least > self.most:
            raise ValueError(f"least: {self.least} is above most, {self.most}")
        if self.most and not any(self.weights.values()):
            raise ValueError("weights: at least one must be above 0")
        if self.most and self.mild and not any(self.weights.get(kind) for kind in MILD):
            raise ValueError(f"mild: 0, or a weight for one of {', '.join(sorted(MILD))}")
        return self


class Scenario(Strict):
    """What `pdd bench faults` draws from. `stores`: in this share of cases each pool has one."""

    sites: tuple[Sites, ...] = Field(min_length=1, strict=False)
    gateways: tuple[Positive, ...] = Field(min_length=1, strict=False)
    load: Load
    line: Line
    faults: Faults
    stores: Share = 0.0

    @model_validator(mode="after")
    def _stores_to_fail(self) -> Self:
        of_stores = [kind for kind in self.faults.weights if kind in OF_STORES]
        if of_stores and self.stores < 1.0:
            raise ValueError(f"stores: must be 1 where there is a weight for {of_stores[0]}")
        return self


def load_scenario(path: Path) -> Scenario:
    """The scenario in a file. Raises TopologyError with every mistake in it."""
    return load_model(Scenario, path)
