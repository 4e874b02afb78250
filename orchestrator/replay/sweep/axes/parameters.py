"""What of a scenario can be swept: `PARAMETERS` is the one table of it.

A parameter changes the scenario's topology and those that its policies bring along, as far as they
have what it is about.
"""

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.replay.scenario.schema import Scenario
from orchestrator.replay.scenario.units import parse_rate_per_s, parse_rent_per_h
from orchestrator.replay.sweep.axes import changes
from orchestrator.replay.sweep.axes.changes import Change
from orchestrator.topology.schema import FIBRE_S_PER_KM, ROUTE_FACTOR
from orchestrator.topology.units import (
    UnitError,
    parse_distance_km,
    parse_duration_s,
    parse_price_per_gb,
    parse_price_per_h,
    parse_rate_bytes_per_s,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One thing that can be otherwise. Its key is that of `PARAMETERS`.

    `unit`: what a number without one is in; None: it needs one. `sets`: what it decides; two
    parameters that set the same are one too many. `names`: what can stand in brackets, and the name
    that we give it.
    """

    example: str
    parse: Callable[[str], float]
    change: Change
    sets: str
    names: Callable[[Scenario], dict[str, str]] | None = None
    named: bool = False  # only with a name
    unit: str | None = None
    log: bool = False  # steps are even in ratio where the range is wide
    whole: bool = False
    positive: bool = False  # 0 is none of its values
    below: float = float("inf")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UnitError(f"expected a number without a unit, got {text!r}") from None


def _distance(km: float) -> dict[str, float | None]:
    return {"distance_km": km, "delay_s": km * ROUTE_FACTOR * FIBRE_S_PER_KM}


PARAMETERS = {
    "link.bandwidth": Parameter(  # bandwidth of all lines or of one
        example="5..100Gbps",
        parse=parse_rate_bytes_per_s,
        change=changes.link(lambda value: {"rate_bytes_per_s": value}),
        sets="bandwidth",
        names=changes.links,
        log=True,
        positive=True,
    ),
    "link.distance_km": Parameter(  # their length, and with it their delay
        example="0..8000",
        parse=parse_distance_km,
        change=changes.link(_distance),
        sets="delay",
        names=changes.links,
        unit="km",
    ),
    "link.delay": Parameter(  # their delay, one way
        example="0..50ms",
        parse=parse_duration_s,
        change=changes.link(lambda value: {"distance_km": None, "delay_s": value}),
        sets="delay",
        names=changes.links,
    ),
    "link.loss": Parameter(  # share of packets that are lost
        example="1e-6..1e-3",
        parse=_number,
        change=changes.link(lambda value: {"loss": value}),
        sets="loss",
        names=changes.links,
        unit="",
        log=True,
        below=1.0,
    ),
    "link.price": Parameter(  # price of what goes over a line
        example="0..0.1/GB",
        parse=parse_price_per_gb,
        change=changes.line_price("per_gb"),
        sets="traffic",
        names=changes.links,
    ),
    "link.rent": Parameter(  # price of having a line
        example="0..50000/month",
        parse=parse_rent_per_h,
        change=changes.line_price("rent_per_h"),
        sets="rent",
        names=changes.links,
    ),
    "pool.instances": Parameter(  # workers of a pool, with the chips that they need
        example="1..4",
        parse=_number,
        change=changes.instances,
        sets="instances",
        names=changes.pools,
        named=True,
        unit="",
        whole=True,
        positive=True,
    ),
    "pool.price": Parameter(  # price of a chip of a pool
        example="1..4/h",
        parse=parse_price_per_h,
        change=changes.pool_price,
        sets="pool price",
        names=changes.pools,
        named=True,
    ),
    "chip.price": Parameter(  # price of a kind of chip, wherever it is
        example="1..4/h",
        parse=parse_price_per_h,
        change=changes.chip_price,
        sets="chip price",
        names=changes.chips,
        named=True,
    ),
    "workload.rate": Parameter(  # requests, or sessions, that come
        example="1..80/s",
        parse=parse_rate_per_s,
        change=changes.rate,
        sets="rate",
        log=True,
        positive=True,
    ),
    "workload.prompt": Parameter(  # tokens of a prompt, the mean
        example="1024..65536",
        parse=_number,
        change=changes.mean("prompt"),
        sets="prompt",
        unit="",
        log=True,
        whole=True,
        positive=True,
    ),
    "workload.output": Parameter(  # tokens of an answer, the mean
        example="64..1024",
        parse=_number,
        change=changes.mean("output"),
        sets="output",
        unit="",
        log=True,
        whole=True,
        positive=True,
    ),
    "workload.hits": Parameter(  # part of a prompt that others share
        example="0..0.9",
        parse=_number,
        change=changes.hits,
        sets="hits",
        unit="",
        below=1.0,
    ),
    "slo.ttft": Parameter(  # the time to the first token that counts as good
        example="0.5..4s",
        parse=parse_duration_s,
        change=changes.slo("ttft_s"),
        sets="ttft",
        positive=True,
    ),
    "slo.second_token": Parameter(  # the time to the second token that counts as good
        example="0.5..4s",
        parse=parse_duration_s,
        change=changes.slo("second_token_s"),
        sets="second_token",
        positive=True,
    ),
    "slo.tpot": Parameter(  # the time per token that counts as good
        example="20..100ms",
        parse=parse_duration_s,
        change=changes.slo("tpot_s"),
        sets="tpot",
        positive=True,
    ),
}
