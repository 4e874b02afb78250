"""What of a scenario can be swept: `PARAMETERS` is the one table of it.

A parameter changes the scenario's topology and those that its policies bring along, as far as they
have what it is about.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from orchestrator.replay.scenario.schema import Generate, LinePrice, Scenario
from orchestrator.replay.scenario.units import parse_rate_per_s, parse_rent_per_h
from orchestrator.topology.schema import FIBRE_S_PER_KM, ROUTE_FACTOR, Link, Pool, Slo, Topology
from orchestrator.topology.units import (
    UnitError,
    parse_distance_km,
    parse_duration_s,
    parse_price_per_gb,
    parse_price_per_h,
    parse_rate_bytes_per_s,
)

Change = Callable[[Scenario, str | None, float], Scenario]  # of the named thing; None: of all


class CannotSweep(ValueError):
    """This scenario has no such thing to change; the text says what it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One thing that can be otherwise. Its key is that of `PARAMETERS`.

    `unit`: what a number without one is in; None: it needs one. `sets`: what it decides; two
    parameters that set the same are one too many. `names`: what can stand in brackets, and the name
    that we give it.
    """

    example: str
    about: str
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


# ---------------------------------------------------------------------------------------- names


def topologies(scenario: Scenario) -> Iterator[Topology]:
    """The scenario's own first, then those of its policies."""
    yield scenario.file.topology
    yield from (p.topology for p in scenario.file.policies if p.topology is not None)


def _links(scenario: Scenario) -> dict[str, str]:
    """By their two ends, in either order."""
    links = {frozenset(link.between): link for t in topologies(scenario) for link in t.links}
    return {name: _names(link)[0] for link in links.values() for name in _names(link)}


def _names(link: Link) -> tuple[str, str]:
    return "-".join(link.between), "-".join(reversed(link.between))


def _pools(scenario: Scenario) -> dict[str, str]:
    return {name: name for t in topologies(scenario) for name in _pools_of(t)}


def _pools_of(topology: Topology) -> dict[str, Pool]:
    return {
        f"{site}/{name}": pool
        for site, place in topology.sites.items()
        for name, pool in place.pools.items()
    }


def _chips(scenario: Scenario) -> dict[str, str]:
    return {p.chip: p.chip for t in topologies(scenario) for p in _pools_of(t).values()}


# -------------------------------------------------------------------------------------- changes


def _each_topology(scenario: Scenario, change: Callable[[Topology], Topology]) -> Scenario:
    file = scenario.file
    policies = tuple(
        p if p.topology is None else p.model_copy(update={"topology": change(p.topology)})
        for p in file.policies
    )
    changes = {"topology": change(file.topology), "policies": policies}
    return scenario.with_file(file.model_copy(update=changes))


def _link(update: Callable[[float], dict[str, float | None]]) -> Change:
    def change(scenario: Scenario, name: str | None, value: float) -> Scenario:
        def one(link: Link) -> Link:
            meant = name is None or name in _names(link)
            return link.model_copy(update=update(value)) if meant else link

        def all_of(topology: Topology) -> Topology:
            return topology.model_copy(update={"links": tuple(map(one, topology.links))})

        return _each_topology(scenario, all_of)

    return change


def _line_price(key: str) -> Change:
    """The scenario's own prices of lines go before a link's."""

    def change(scenario: Scenario, name: str | None, value: float) -> Scenario:
        prices = scenario.file.prices
        lines = {frozenset(line.between): line for line in prices.lines}
        for link in (link for t in topologies(scenario) for link in t.links):
            if name is None or name in _names(link):
                ends = frozenset(link.between)
                line = lines.get(ends, LinePrice(between=link.between))
                lines[ends] = line.model_copy(update={key: value})
        return _prices(scenario, lines=tuple(lines.values()))

    return change


def _prices(scenario: Scenario, **update: object) -> Scenario:
    prices = scenario.file.prices.model_copy(update=update)
    return scenario.with_file(scenario.file.model_copy(update={"prices": prices}))


def _pool_price(scenario: Scenario, name: str | None, value: float) -> Scenario:
    return _prices(scenario, pools={**scenario.file.prices.pools, str(name): value})


def _chip_price(scenario: Scenario, name: str | None, value: float) -> Scenario:
    """Also where a pool of it says another price: this is the price of all of them."""
    prices = scenario.file.prices
    pools = {
        pool: price for pool, price in prices.pools.items() if not _is_of(scenario, pool, name)
    }
    return _prices(scenario, pools=pools, chips={**prices.chips, str(name): value})


def _is_of(scenario: Scenario, pool: str, chip: str | None) -> bool:
    return any(
        found.chip == chip
        for t in topologies(scenario)
        for name, found in _pools_of(t).items()
        if name == pool
    )


def _instances(scenario: Scenario, name: str | None, value: float) -> Scenario:
    """With as many chips as they need, so that the bill follows."""
    site, pool = str(name).split("/")

    def change(topology: Topology) -> Topology:
        place = topology.sites.get(site)
        if place is None or pool not in place.pools:
            return topology
        old, count = place.pools[pool], int(value)
        new = old.model_copy(update={"instances": count, "count": count * old.parallel})
        place = place.model_copy(update={"pools": {**place.pools, pool: new}})
        return topology.model_copy(update={"sites": {**topology.sites, site: place}})

    return _each_topology(scenario, change)


def _workload(scenario: Scenario, **update: object) -> Scenario:
    workload = scenario.file.workload.model_copy(update=update)
    return scenario.with_file(scenario.file.model_copy(update={"workload": workload}))


def _rate(scenario: Scenario, name: str | None, value: float) -> Scenario:
    return _workload(scenario, rate_per_s=value)


def _generated(scenario: Scenario) -> Generate:
    made = scenario.file.workload.generated
    if made is None:
        raise CannotSweep("only a workload that is generated has it, not a trace or a preset")
    return made


def _mean(key: str) -> Change:
    def change(scenario: Scenario, name: str | None, value: float) -> Scenario:
        made = _generated(scenario)
        lengths = getattr(made, key)
        if not lengths.least <= value <= lengths.most:
            raise CannotSweep(
                f"{value:g} is not between the workload's {key}.least, {lengths.least}, and "
                f"{key}.most, {lengths.most}"
            )
        lengths = lengths.model_copy(update={"mean": value})
        return _workload(scenario, generated=made.model_copy(update={key: lengths}))

    return change


def _hits(scenario: Scenario, name: str | None, value: float) -> Scenario:
    made = _generated(scenario)
    return _workload(scenario, generated=made.model_copy(update={"hits": value}))


def _slo(key: str) -> Change:
    def change(scenario: Scenario, name: str | None, value: float) -> Scenario:
        goal = scenario.goal
        slo = Slo().model_copy(update={**asdict(goal), key: value})
        return scenario.with_file(scenario.file.model_copy(update={"slo": slo}))

    return change


# ---------------------------------------------------------------------------------------- table


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UnitError(f"expected a number without a unit, got {text!r}") from None


def _distance(km: float) -> dict[str, float | None]:
    return {"distance_km": km, "delay_s": km * ROUTE_FACTOR * FIBRE_S_PER_KM}


PARAMETERS = {
    "link.bandwidth": Parameter(
        example="5..100Gbps",
        about="bandwidth of all lines or of one",
        parse=parse_rate_bytes_per_s,
        change=_link(lambda value: {"rate_bytes_per_s": value}),
        sets="bandwidth",
        names=_links,
        log=True,
        positive=True,
    ),
    "link.distance_km": Parameter(
        example="0..8000",
        about="their length, and with it their delay",
        parse=parse_distance_km,
        change=_link(_distance),
        sets="delay",
        names=_links,
        unit="km",
    ),
    "link.delay": Parameter(
        example="0..50ms",
        about="their delay, one way",
        parse=parse_duration_s,
        change=_link(lambda value: {"distance_km": None, "delay_s": value}),
        sets="delay",
        names=_links,
    ),
    "link.loss": Parameter(
        example="1e-6..1e-3",
        about="share of packets that are lost",
        parse=_number,
        change=_link(lambda value: {"loss": value}),
        sets="loss",
        names=_links,
        unit="",
        log=True,
        below=1.0,
    ),
    "link.price": Parameter(
        example="0..0.1/GB",
        about="price of what goes over a line",
        parse=parse_price_per_gb,
        change=_line_price("per_gb"),
        sets="traffic",
        names=_links,
    ),
    "link.rent": Parameter(
        example="0..50000/month",
        about="price of having a line",
        parse=parse_rent_per_h,
        change=_line_price("rent_per_h"),
        sets="rent",
        names=_links,
    ),
    "pool.instances": Parameter(
        example="1..4",
        about="workers of a pool, with the chips that they need",
        parse=_number,
        change=_instances,
        sets="instances",
        names=_pools,
        named=True,
        unit="",
        whole=True,
        positive=True,
    ),
    "pool.price": Parameter(
        example="1..4/h",
        about="price of a chip of a pool",
        parse=parse_price_per_h,
        change=_pool_price,
        sets="pool price",
        names=_pools,
        named=True,
    ),
    "chip.price": Parameter(
        example="1..4/h",
        about="price of a kind of chip, wherever it is",
        parse=parse_price_per_h,
        change=_chip_price,
        sets="chip price",
        names=_chips,
        named=True,
    ),
    "workload.rate": Parameter(
        example="1..80/s",
        about="requests, or sessions, that come",
        parse=parse_rate_per_s,
        change=_rate,
        sets="rate",
        log=True,
        positive=True,
    ),
    "workload.prompt": Parameter(
        example="1024..65536",
        about="tokens of a prompt, the mean",
        parse=_number,
        change=_mean("prompt"),
        sets="prompt",
        unit="",
        log=True,
        whole=True,
        positive=True,
    ),
    "workload.output": Parameter(
        example="64..1024",
        about="tokens of an answer, the mean",
        parse=_number,
        change=_mean("output"),
        sets="output",
        unit="",
        log=True,
        whole=True,
        positive=True,
    ),
    "workload.hits": Parameter(
        example="0..0.9",
        about="part of a prompt that others share",
        parse=_number,
        change=_hits,
        sets="hits",
        unit="",
        below=1.0,
    ),
    "slo.ttft": Parameter(
        example="0.5..4s",
        about="the time to the first token that counts as good",
        parse=parse_duration_s,
        change=_slo("ttft_s"),
        sets="ttft",
        positive=True,
    ),
    "slo.second_token": Parameter(
        example="0.5..4s",
        about="the time to the second token that counts as good",
        parse=parse_duration_s,
        change=_slo("second_token_s"),
        sets="second_token",
        positive=True,
    ),
    "slo.tpot": Parameter(
        example="20..100ms",
        about="the time per token that counts as good",
        parse=parse_duration_s,
        change=_slo("tpot_s"),
        sets="tpot",
        positive=True,
    ),
}
