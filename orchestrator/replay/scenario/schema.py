"""The nouns of a scenario file. A field's alias is its key in the file; its name says the unit."""

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema

from orchestrator.catalogue import MEMORY_USE, Catalogue, Chip, ModelFacts
from orchestrator.replay.lines.model import Congestion, Sharing
from orchestrator.replay.report.metrics import Goal
from orchestrator.replay.scenario.units import parse_rate_per_s, parse_rent_per_h
from orchestrator.replay.workload.draws import Process
from orchestrator.replay.workload.traces import Format
from orchestrator.topology.schema import (
    NAME_PATTERN,
    CodecName,
    HandoffName,
    Name,
    Positive,
    PositiveSeconds,
    PricePerGB,
    PricePerHour,
    Quantity,
    Rate,
    Replan,
    RouteName,
    Seconds,
    Slo,
    Strict,
    Topology,
)
from workers.tiers.blocks import Tier
from workers.tiers.choice import ASSUMED_BYTES_PER_S, ASSUMED_LATENCY_S

RequestRate = Annotated[float, Quantity(parse_rate_per_s, "80/s"), Field(gt=0, allow_inf_nan=False)]
Rent = Annotated[float, Quantity(parse_rent_per_h, "40000/month"), Field(ge=0, allow_inf_nan=False)]
Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Two = Annotated[tuple[Name, Name], Field(strict=False)]
# A pool of a site, and a worker of a pool, as the rest of the project names them.
PoolName = Annotated[str, Field(pattern=rf"{NAME_PATTERN[:-1]}/{NAME_PATTERN[1:]}")]


def _part(value: object) -> float | str:
    if value in ("skewed", "narrow"):
        return str(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1:
        return float(value)
    raise ValueError(f"expected a part of at least 0 and below 1, skewed or narrow, got {value!r}")


PART = {"anyOf": [{"type": "number", "minimum": 0}, {"enum": ["skewed", "narrow"]}]}
PartKnown = Annotated[float | str, PlainValidator(_part), WithJsonSchema(PART)]


def _switch(value: object) -> object:
    return {"on": True, "off": False}.get(value, value) if isinstance(value, str) else value


SWITCH = {"enum": [True, False, "on", "off"]}
Switch = Annotated[bool, BeforeValidator(_switch), WithJsonSchema(SWITCH)]
# What its entries leave unsaid is as the packaged catalogue says, so they need not be whole.
ENTRIES = WithJsonSchema({"type": "object", "additionalProperties": {"type": "object"}})


class OrName:
    """A file may name it instead: then it is read from elsewhere before it is checked here."""

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, object]:
        return {"anyOf": [{"type": "string"}, handler(schema)]}


# ------------------------------------------------------------------------------------ workload


class Burst(Strict):
    """From one moment until another, requests come `factor` times as fast."""

    at_s: Seconds = Field(alias="from")
    until_s: PositiveSeconds = Field(alias="until")
    factor: Factor

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.at_s >= self.until_s:
            raise ValueError(f"until: {self.until_s:g} s is not after from, {self.at_s:g} s")
        return self


class Lengths(Strict):
    """Tokens: `mean` for all, or log-normal with that mean and coefficient of variation `cv`."""

    mean: Annotated[float, Field(ge=1, allow_inf_nan=False)]
    cv: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    least: Positive = 1
    most: Positive = 1 << 20

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.least <= self.mean <= self.most:
            raise ValueError(f"mean: {self.mean:g} is not between {self.least} and {self.most}")
        return self


class Generate(Strict):
    """Requests that are drawn: how they come, how long they are, what they share.

    `hits`: the part of a prompt that begins as one of `documents` does; `skewed` and `narrow` are
    PDD's. Each of `turns` comes `think` after the one before, with `turn` new tokens.
    """

    arrivals: Annotated[Process, Field(strict=False)] = Process.POISSON
    rate_per_s: RequestRate = Field(alias="rate")
    cv: Factor | None = None  # of the times between two arrivals, for gamma
    bursts: tuple[Burst, ...] = Field(default=(), strict=False)
    prompt: Lengths
    output: Lengths
    hits: PartKnown = 0.0
    documents: Positive = 16
    turns: Positive = 1
    turn: Lengths = Field(default_factory=lambda: Lengths(mean=64))
    think_s: Seconds = Field(default=10.0, alias="think")
    count: Positive | None = None
    duration_s: PositiveSeconds | None = Field(default=None, alias="duration")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if (self.arrivals is Process.GAMMA) != (self.cv is not None):
            raise ValueError("arrivals: gamma needs cv, and only it has one")
        if self.count is None and self.duration_s is None:
            raise ValueError("give count or duration, else it has no end")
        if any(a.until_s > b.at_s for a, b in pairwise(self.bursts)):
            raise ValueError("bursts: must be in order and apart")
        return self


class WorkloadSection(Strict):
    """What is asked: a recorded `trace`, requests that are `generated`, or a `preset`.

    `rate` speeds all of it up or down to so many requests a second; `limit` leaves out the rest;
    `output` is how long a preset's answers are instead.
    `warm`: what is generated finds its documents in the caches; asking for each of them once comes
    before the workload's start, and is not counted.
    """

    trace: str | None = Field(default=None, min_length=1)
    format: Annotated[Format, Field(strict=False)] | None = None  # None: its first line tells
    generated: Generate | None = None
    preset: Literal["pdd", "pdd-narrow"] | None = None
    rate_per_s: RequestRate | None = Field(default=None, alias="rate")
    output: Lengths | None = None
    limit: Positive | None = None
    warm: Switch = False

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [self.trace, self.generated, self.preset]
        if sum(source is not None for source in given) != 1:
            raise ValueError("give exactly one of trace, generated and preset")
        if self.format is not None and self.trace is None:
            raise ValueError("format: it is the trace's, and there is none")
        if self.output is not None and self.preset is None:
            raise ValueError("output: only a preset's can be given here")
        if self.warm and self.trace is not None:
            raise ValueError("warm: a trace has no documents to ask for first")
        return self


# ------------------------------------------------------------------------- policies and faults


class Compared(Strict):
    """One of the policies to compare. What it does not say is as the topology says.

    `topology` replays the same requests on another deployment.
    """

    name: Name
    route: RouteName | None = None
    handoff: HandoffName | None = None
    codec: CodecName | None = None
    share: Annotated[Sharing, Field(strict=False)] = Sharing.OURS
    prefix_caches: Switch = True
    kv_stores: Switch = True  # off: pools do without the stores that the topology gives them
    replan: Replan | None = None
    topology: Annotated[Topology | None, OrName()] = None


class FaultSection(Strict):
    """Something that happens in a window: see `NEEDS` for what each kind takes."""

    kind: Literal["cut", "bandwidth", "site", "worker", "hot_spot"]
    between: Two | None = None
    site: Name | None = None
    worker: str | None = None
    at_s: Seconds = Field(alias="from")
    until_s: PositiveSeconds | None = Field(default=None, alias="until")
    factor: Factor | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        needs = NEEDS[self.kind]
        for key in ("between", "site", "worker", "factor"):
            given = getattr(self, key) is not None
            if given != (key in needs):
                verb = "has no" if given else "needs"
                raise ValueError(f"kind {self.kind} {verb} {key}")
        if self.kind == "bandwidth" and self.factor is not None and self.factor >= 1:
            raise ValueError(f"factor: must be below 1 for a drop, got {self.factor:g}")
        if self.until_s is not None and self.until_s <= self.at_s:
            raise ValueError(f"until: {self.until_s:g} s is not after from, {self.at_s:g} s")
        if self.until_s is None and self.kind != "worker":
            raise ValueError(f"kind {self.kind} needs until")
        return self


NEEDS = {
    "cut": {"between"},
    "bandwidth": {"between", "factor"},  # the line goes on with so much of its rate
    "site": {"site"},
    "worker": {"worker"},
    "hot_spot": {"factor"},  # requests come so many times as fast
}


# ------------------------------------------------------------------------------------- the rest


class LinePrice(Strict):
    """What a line costs: by what goes over it, and by having it. `between` its two sites."""

    between: Two
    per_gb: PricePerGB | None = Field(default=None, alias="traffic")
    rent_per_h: Rent = Field(default=0.0, alias="rent")


class Prices(Strict):
    """Per chip hour by chip, or by pool (site/pool), which goes before; and per line.

    What is not here is as the topology says; a chip that has no price anywhere has none.
    """

    chips: dict[str, PricePerHour] = Field(default_factory=dict)
    pools: dict[PoolName, PricePerHour] = Field(default_factory=dict)
    lines: tuple[LinePrice, ...] = Field(default=(), strict=False)


class LinesSection(Strict):
    """How TCP is on every line between sites, and what codes KV at its ends.

    `overlap`: what of a prompt's KV goes as soon as it is computed, inside a site too.
    """

    connections: Positive = 8
    connection_bytes_per_s: Rate | None = Field(default=None, alias="connection")  # None: no cap
    congestion: Annotated[Congestion, Field(strict=False)] = Congestion.BBR
    warm: Switch = True  # connections are kept warm: no slow start
    codec_cores: Positive = 8  # at each end
    overlap: Literal["layer", "chunk"] = "layer"


class StoresSection(Strict):
    """How fast each store of KV blocks is: blocks from memory and from files, and a question's
    answer. What is left out is as workers assume until they measure.
    """

    dram_bytes_per_s: Rate = Field(default=ASSUMED_BYTES_PER_S[Tier.MEMORY], alias="dram")
    nvme_bytes_per_s: Rate = Field(default=ASSUMED_BYTES_PER_S[Tier.FILES], alias="nvme")
    answer_s: Seconds = Field(default=ASSUMED_LATENCY_S, alias="answer")


class CatalogueSection(Strict):
    """Figures that the packaged catalogue lacks, or others than it has."""

    chips: Annotated[dict[str, Chip], ENTRIES] = Field(default_factory=dict)
    models: Annotated[dict[str, ModelFacts], ENTRIES] = Field(default_factory=dict)


class ScenarioFile(Strict):
    """Everything a scenario's file says."""

    title: str | None = None
    topology: Annotated[Topology, OrName()]
    workload: WorkloadSection
    policies: tuple[Compared, ...] = Field(min_length=1, strict=False)
    faults: tuple[FaultSection, ...] = Field(default=(), strict=False)
    lines: LinesSection = Field(default_factory=LinesSection)
    stores: StoresSection = Field(default_factory=StoresSection)
    prices: Prices = Field(default_factory=Prices)
    slo: Slo | None = None
    seed: int = Field(default=0, ge=0)
    catalogue: Annotated[CatalogueSection, OrName()] = Field(default_factory=CatalogueSection)
    timelines: Annotated[int, Field(ge=0)] = 0  # of every so many requests; 0: of none
    memory_use: Annotated[float, Field(gt=0, le=1)] = (
        MEMORY_USE  # share of a chip's memory for its worker
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A good file. `directory` is where its relative paths begin; `catalogue` has its figures."""

    name: str
    file: ScenarioFile
    catalogue: Catalogue
    directory: Path

    def topology(self, policy: Compared) -> Topology:
        """What a policy is tried on."""
        return policy.topology or self.file.topology

    @property
    def goal(self) -> Goal:
        """What users should get: one for all policies, so that they compare."""
        slo = self.file.slo or self.file.topology.slo
        return Goal(ttft_s=slo.ttft_s, tpot_s=slo.tpot_s, second_token_s=slo.second_token_s)

    def with_file(self, file: ScenarioFile) -> "Scenario":
        """The same with other content."""
        return replace(self, file=file)
