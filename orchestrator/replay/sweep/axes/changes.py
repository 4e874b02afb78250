"""How one thing of a scenario is made otherwise, in its topology and those of its policies."""

from collections.abc import Callable, Iterator
from dataclasses import asdict

from orchestrator.replay.scenario.schema import Generate, LinePrice, Scenario
from orchestrator.topology.schema import Link, Pool, Slo, Topology

Change = Callable[[Scenario, str | None, float], Scenario]  # of the named thing; None: of all


class CannotSweep(ValueError):
    """This scenario has no such thing to change; the text says what it has."""


def topologies(scenario: Scenario) -> Iterator[Topology]:
    """The scenario's own first, then those of its policies."""
    yield scenario.file.topology
    yield from (p.topology for p in scenario.file.policies if p.topology is not None)


def each_topology(scenario: Scenario, change: Callable[[Topology], Topology]) -> Scenario:
    """The scenario with each of them changed."""
    file = scenario.file
    policies = tuple(
        p if p.topology is None else p.model_copy(update={"topology": change(p.topology)})
        for p in file.policies
    )
    changes = {"topology": change(file.topology), "policies": policies}
    return scenario.with_file(file.model_copy(update=changes))


# ----------------------------------------- what can be named, and the name that we give it


def links(scenario: Scenario) -> dict[str, str]:
    """By their two ends, in either order."""
    found = {frozenset(link.between): link for t in topologies(scenario) for link in t.links}
    return {name: _names(link)[0] for link in found.values() for name in _names(link)}


def _names(link: Link) -> tuple[str, str]:
    return "-".join(link.between), "-".join(reversed(link.between))


def pools(scenario: Scenario) -> dict[str, str]:
    """As site/pool."""
    return {name: name for t in topologies(scenario) for name in _pools_of(t)}


def _pools_of(topology: Topology) -> dict[str, Pool]:
    return {
        f"{site}/{name}": pool
        for site, place in topology.sites.items()
        for name, pool in place.pools.items()
    }


def chips(scenario: Scenario) -> dict[str, str]:
    """As the catalogue names them."""
    return {p.chip: p.chip for t in topologies(scenario) for p in _pools_of(t).values()}


# -------------------------------------------------------------------------------------- changes


def link(update: Callable[[float], dict[str, float | None]]) -> Change:
    """Of all links, or the named one. `update`: the keys of a link that a value sets."""

    def change(scenario: Scenario, name: str | None, value: float) -> Scenario:
        def one(link: Link) -> Link:
            meant = name is None or name in _names(link)
            return link.model_copy(update=update(value)) if meant else link

        def all_of(topology: Topology) -> Topology:
            return topology.model_copy(update={"links": tuple(map(one, topology.links))})

        return each_topology(scenario, all_of)

    return change


def line_price(key: str) -> Change:
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


def pool_price(scenario: Scenario, name: str | None, value: float) -> Scenario:
    return _prices(scenario, pools={**scenario.file.prices.pools, str(name): value})


def chip_price(scenario: Scenario, name: str | None, value: float) -> Scenario:
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


def instances(scenario: Scenario, name: str | None, value: float) -> Scenario:
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

    return each_topology(scenario, change)


def _workload(scenario: Scenario, **update: object) -> Scenario:
    workload = scenario.file.workload.model_copy(update=update)
    return scenario.with_file(scenario.file.model_copy(update={"workload": workload}))


def rate(scenario: Scenario, name: str | None, value: float) -> Scenario:
    return _workload(scenario, rate_per_s=value)


def _generated(scenario: Scenario) -> Generate:
    made = scenario.file.workload.generated
    if made is None:
        raise CannotSweep("only a workload that is generated has it, not a trace or a preset")
    return made


def mean(key: str) -> Change:
    """Of the lengths of a workload that is generated: `prompt` or `output`."""

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


def hits(scenario: Scenario, name: str | None, value: float) -> Scenario:
    made = _generated(scenario)
    return _workload(scenario, generated=made.model_copy(update={"hits": value}))


def slo(key: str) -> Change:
    """One goal in seconds; the others stay as they are."""

    def change(scenario: Scenario, name: str | None, value: float) -> Scenario:
        goal = scenario.goal
        wanted = Slo().model_copy(update={**asdict(goal), key: value})
        return scenario.with_file(scenario.file.model_copy(update={"slo": wanted}))

    return change
