"""What cannot be: routes without a path, models that do not fit, chips without figures.

Every refusal says the numbers that make it impossible.
"""

from collections.abc import Iterator

from orchestrator.catalogue import Catalogue, kv_memory_bytes
from orchestrator.errors import UserError
from orchestrator.replay.scenario.schema import FaultSection, Scenario
from orchestrator.topology.mistakes import Path, unknown
from orchestrator.topology.rules import Draft, Found, broken_rules
from orchestrator.topology.schema import Pool, Topology

GB = 1e9


def impossible(scenario: Scenario) -> Iterator[Found]:
    """Everything in a well-formed scenario that cannot be."""
    file = scenario.file
    yield from _doubled(scenario)
    places: list[tuple[Path, Topology]] = [(("topology",), file.topology)]
    for i, policy in enumerate(file.policies):
        if policy.topology is not None:
            places.append((("policies", i, "topology"), policy.topology))
    for place, topology in places:
        yield from _too_large(place, topology, scenario)
    for i, policy in enumerate(file.policies):
        topology = scenario.topology(policy)
        route = policy.route or topology.policy.route
        for where, message in broken_rules(_draft(topology, route)):
            if where == ("policy", "route"):
                yield ("policies", i, "route"), message
    for i, fault in enumerate(file.faults):
        yield from _faults(("faults", i), fault, file.topology)
    yield from _prices(scenario, [topology for _, topology in places])


def kv_gb(scenario: Scenario, topology: Topology, pool: Pool) -> float:
    """Memory for KV of one worker of a pool; 0: the weights do not fit, or nobody knows.

    A pool that says its scale-up domain is a supernode, whose memory is one: each of its workers
    has an equal share, also of the chips that nobody computes on.
    """
    chip = scenario.catalogue.chips[pool.chip]
    model, use = scenario.catalogue.models[topology.model], scenario.file.memory_use
    try:
        left = kv_memory_bytes(chip, model, pool.parallel, use) / GB
    except UserError:
        return 0.0
    if pool.scale_up is not None and chip.memory_gb is not None:
        idle = max(0, pool.count - pool.instances * pool.parallel)
        left += idle * chip.memory_gb.value * use / pool.instances
    return left


def says(pool: Pool, key: str) -> bool:
    """Whether a pool's own figure counts: it is in the file, or the engine is simulated."""
    return key in pool.model_fields_set or pool.engine == "simulated"


# ---------------------------------------------------------------------------------------- parts


def _doubled(scenario: Scenario) -> Iterator[Found]:
    first: dict[str, int] = {}
    for i, policy in enumerate(scenario.file.policies):
        if policy.name in first:
            message = f"policies[{first[policy.name]}] is called {policy.name} already"
            yield ("policies", i, "name"), message
        first.setdefault(policy.name, i)


def _too_large(place: Path, topology: Topology, scenario: Scenario) -> Iterator[Found]:
    catalogue = scenario.catalogue
    model = catalogue.models.get(topology.model)
    if model is None:
        message = (
            f"replay needs the catalogue's figures of the model, and {topology.model} has none"
        )
        yield (*place, "model"), message
        return
    pools = [pool for place_of in topology.sites.values() for pool in place_of.pools.values()]
    if model.architecture is None and any(pool.engine != "simulated" for pool in pools):
        message = f"the catalogue has no architecture of {topology.model}; give one in the"
        yield (*place, "model"), f"{message} scenario's catalogue.models.{topology.model}"
    for site, place_of in topology.sites.items():
        for name, pool in place_of.pools.items():
            path = (*place, "sites", site, "pools", name)
            yield from _chip_figures((*path, "chip"), f"{site}.{name}", pool, catalogue)
            chip = catalogue.chips[pool.chip]
            if chip.memory_gb is None or says(pool, "kv_tokens"):
                continue
            try:
                kv_memory_bytes(chip, model, pool.parallel, scenario.file.memory_use)
            except UserError as error:
                yield (*path, "parallel"), f"a worker of {site}.{name} is too small: {error}"


def _chip_figures(path: Path, name: str, pool: Pool, catalogue: Catalogue) -> Iterator[Found]:
    chip = catalogue.chips[pool.chip]
    needed = [] if says(pool, "kv_tokens") else ["memory_gb"]
    if pool.engine != "simulated":
        needed += ["bf16_tflops", "memory_tb_s"]
        needed += ["link_gb_s"] if pool.parallel > 1 else []
    missing = [key for key in needed if getattr(chip, key) is None]
    if missing:
        yield (
            path,
            f"the catalogue has no {' and no '.join(missing)} of {pool.chip}, which {name} needs; "
            f"give one in the scenario's catalogue.chips.{pool.chip}, with a grade and a source",
        )


def _draft(topology: Topology, route: str) -> Draft:
    return Draft(
        roles={
            site: {name: pool.roles for name, pool in place.pools.items()}
            for site, place in topology.sites.items()
        },
        pools={},
        ends=tuple(link.between for link in topology.links),
        listeners=(),
        elsewhere=frozenset(),
        gateway_site=topology.gateway.site,
        route=route,
        codec=None,
    )


def _faults(place: Path, fault: FaultSection, topology: Topology) -> Iterator[Found]:
    sites = list(topology.sites)
    if fault.between is not None:
        yield from _known_line((*place, "between"), fault.between, topology)
    if fault.site is not None and fault.site not in sites:
        yield (*place, "site"), unknown("site", fault.site, sites)
    workers = [name for site in sites for name in _names(site, topology)]
    if fault.worker is not None and fault.worker not in workers:
        yield (*place, "worker"), unknown("worker", fault.worker, workers)


def _known_line(path: Path, ends: tuple[str, str], topology: Topology) -> Iterator[Found]:
    if topology.link(*ends) is None:
        known = [" - ".join(link.between) for link in topology.links]
        yield path, f"there is no link between {' and '.join(ends)}; links: {', '.join(known)}"


def _names(site: str, topology: Topology) -> Iterator[str]:
    """site/pool, all of its workers, and site/pool/number of each."""
    for name, pool in topology.sites[site].pools.items():
        yield f"{site}/{name}"
        yield from (f"{site}/{name}/{number}" for number in range(pool.instances))


def _prices(scenario: Scenario, topologies: list[Topology]) -> Iterator[Found]:
    """A price of something that is nowhere is a slip of the pen."""
    prices = scenario.file.prices
    pools = {
        f"{site}/{name}": pool.chip
        for topology in topologies
        for site, place in topology.sites.items()
        for name, pool in place.pools.items()
    }
    for chip in prices.chips:
        if chip not in pools.values():
            yield ("prices", "chips", chip), unknown("chip", chip, sorted(set(pools.values())))
    for pool in prices.pools:
        if pool not in pools:
            yield ("prices", "pools", pool), unknown("pool", pool, list(pools))
    for i, line in enumerate(prices.lines):
        if all(topology.link(*line.between) is None for topology in topologies):
            path: Path = ("prices", "lines", i, "between")
            yield from _known_line(path, line.between, scenario.file.topology)
