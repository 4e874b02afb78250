"""What a report says of the scenario it is of."""

from collections.abc import Iterator

from orchestrator.replay.report.about import About, Window
from orchestrator.replay.scenario.schema import FaultSection, Scenario, WorkloadSection
from orchestrator.replay.scenario.workload import warming_s
from orchestrator.replay.workload.request import Workload
from orchestrator.topology.schema import Topology
from orchestrator.topology.units import show_rate


def about(scenario: Scenario, workload: Workload) -> About:
    """For a reader who does not have the file."""
    start_s = warming_s(workload)
    return About(
        title=scenario.file.title or scenario.name,
        facts=tuple(_facts(scenario, workload)),
        faults=tuple(
            Window(
                text=_fault(fault),
                at_s=start_s + fault.at_s,
                until_s=None if fault.until_s is None else start_s + fault.until_s,
            )
            for fault in scenario.file.faults
        ),
    )


def _facts(scenario: Scenario, workload: Workload) -> Iterator[tuple[str, str]]:
    file = scenario.file
    yield "scenario", scenario.name
    yield "model", file.topology.model
    yield from _topology(file.topology)
    yield "workload", _workload(file.workload)
    if workload.bad:
        yield "bad lines of the trace", str(len(workload.bad))
    yield "seed", str(file.seed)
    for kind in (file.catalogue.chips, file.catalogue.models):
        for name, entry in kind.items():
            yield f"figures of its own for {name}", entry.name


def _topology(topology: Topology) -> Iterator[tuple[str, str]]:
    for site, place in topology.sites.items():
        pools = [
            f"{name}: {pool.count} x {pool.chip} as {pool.instances} "
            f"({', '.join(sorted(role.value for role in pool.roles))})"
            for name, pool in place.pools.items()
        ]
        here = " (users come here)" if site == topology.gateway.site else ""
        inside = f"{show_rate(place.rate_bytes_per_s)} inside"
        yield f"site {site}{here}", "; ".join([*pools, inside])
    for link in topology.links:
        yield (
            f"line {' - '.join(link.between)}",
            f"{show_rate(link.rate_bytes_per_s)}, {1e3 * link.delay_s:.3g} ms one way, jitter "
            f"{1e3 * link.jitter_s:.3g} ms, loss {link.loss:g}",
        )


def _workload(section: WorkloadSection) -> str:
    if section.trace is not None:
        text = section.trace
    elif section.generated is not None:
        made = section.generated
        turns = f", {made.turns} turns" if made.turns > 1 else ""
        text = (
            f"{made.arrivals}, {made.rate_per_s:g} a second{turns}, prompts of "
            f"{made.prompt.mean:g} and outputs of {made.output.mean:g} tokens"
        )
    else:
        text = f"preset {section.preset}"
    if section.rate_per_s is not None:
        text += f", at {section.rate_per_s:g} a second"
    return text if section.limit is None else f"{text}, the first {section.limit}"


def _fault(fault: FaultSection) -> str:
    line = "" if fault.between is None else " - ".join(fault.between)
    match fault.kind:
        case "cut":
            return f"{line} is cut"
        case "bandwidth":
            return f"{line} has {fault.factor:g} of its rate"
        case "hot_spot":
            return f"{fault.factor:g} times as many requests"
    return f"{fault.site or fault.worker} is lost"
