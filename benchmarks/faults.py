"""Seeds of trouble in virtual time: how many break a promise, and how fast they are run."""

import contextlib
import gc
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from orchestrator.children import end_with_parent
from orchestrator.errors import UserError
from orchestrator.state.actions import Finish
from orchestrator.topology.mistakes import unknown
from orchestrator.topology.packaged import packaged_scenario
from orchestrator.virtual.client import Client
from orchestrator.virtual.faults.cases import Case, generate, play
from orchestrator.virtual.faults.checks import check
from orchestrator.virtual.faults.scenario import Scenario
from orchestrator.virtual.faults.shrink import shrink
from orchestrator.virtual.faults.story import tell

SEEDS_PER_TASK = 25


@dataclass(slots=True)
class Tally:
    """What some seeds came to. `broken`: the breaches of each seed that broke a promise.

    `cpu_s` is this machine's, `virtual_s` the time that passed in the deployments, in seconds.
    """

    seeds: int = 0
    requests: int = 0
    faults: int = 0
    calls: int = 0  # of the virtual schedule
    events: int = 0  # told to the core
    cpu_s: float = 0.0
    virtual_s: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    core: Counter[str] = field(default_factory=Counter)
    broken: dict[int, list[str]] = field(default_factory=dict)

    def add(self, other: "Tally") -> None:
        self.seeds += other.seeds
        self.requests += other.requests
        self.faults += other.faults
        self.calls += other.calls
        self.events += other.events
        self.cpu_s += other.cpu_s
        self.virtual_s += other.virtual_s
        self.outcomes += other.outcomes
        self.kinds += other.kinds
        self.core += other.core
        self.broken |= other.broken


def run(
    scenario: Scenario,
    *,
    first: int,
    seeds: int,
    jobs: int | None = None,
    faults: bool = True,
    tell_progress: Callable[[Tally], None] = lambda tally: None,
) -> dict[str, Any]:
    """Live through the seeds [first, first + seeds), on all cores unless `jobs` says otherwise."""
    measured_on = machine()
    began = time.monotonic()
    total = Tally()
    tasks = [
        range(at, min(at + SEEDS_PER_TASK, first + seeds))
        for at in range(first, first + seeds, SEEDS_PER_TASK)
    ]
    for tally in _spread(scenario, tasks, faults, min(jobs or os.cpu_count() or 1, len(tasks))):
        total.add(tally)
        tell_progress(total)
    took_s = time.monotonic() - began
    return {
        "seeds": total.seeds,
        "requests": total.requests,
        "broken": [
            {"seed": seed, "breaches": breaches} for seed, breaches in sorted(total.broken.items())
        ],
        "seeds_per_s": total.seeds / took_s,
        "faults": total.faults,
        "fault_kinds": dict(sorted(total.kinds.items())),
        "outcomes": dict(sorted(total.outcomes.items())),
        "core_counts": dict(sorted(total.core.items())),
        "calls_per_cpu_s": total.calls / total.cpu_s,
        "core_events_per_cpu_s": total.events / total.cpu_s,
        "cpu_s_per_1000_requests": 1000 * total.cpu_s / total.requests,
        "virtual_hours": total.virtual_s / 3600,
        "took_s": took_s,
        "machine": measured_on,
    }


def explain(
    scenario: Scenario, seed: int, *, smallest: bool, request: str | None = None
) -> tuple[list[str], bool]:
    """The lines of a request's story, and whether any promise is broken.

    Without a request, of those that a broken promise names, or of the one that went through most.
    `smallest`: of the least part of the case that still breaks it. Raises UserError when the seed
    has no such request.
    """
    case = generate(scenario, seed)
    with _quiet_logs():
        world = play(case)
        breaches = check(world)
        if smallest and breaches:
            case = shrink(case)
            world = play(case)
            breaches = check(world)
    whose = {breach.who.partition(",")[0] for breach in breaches}  # of a leg: "r1, epoch 0"
    if request is not None and request not in world.clients:
        raise UserError(f"--request: {unknown('request', request, list(world.clients))}")
    hurt = [name for name in world.clients if name in whose]
    requests = (
        [request]
        if request
        else hurt or [max(world.clients, key=lambda name: _recoveries(world.clients[name]))]
    )
    return list(tell(case, world, breaches, requests)), bool(breaches)


def _recoveries(client: Client) -> int:
    return client.end.summary.recoveries if isinstance(client.end, Finish) else 0


def _spread(scenario: Scenario, tasks: Sequence[range], faults: bool, jobs: int) -> Iterator[Tally]:
    if jobs <= 1:
        yield from (live(scenario, task, faults) for task in tasks)
        return
    with ProcessPoolExecutor(jobs, initializer=end_with_parent) as pool:
        yield from pool.map(live, repeat(scenario), tasks, repeat(faults))


def live(scenario: Scenario, seeds: range, faults: bool = True) -> Tally:
    """Live through some seeds in this process; with `faults` False without their faults."""
    tally = Tally()
    began = time.process_time()
    with _quiet_logs(), _rare_collections():
        for seed in seeds:
            case = generate(scenario, seed)
            _add_case(tally, case if faults else replace(case, faults=()))
    tally.cpu_s = time.process_time() - began
    return tally


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """A world is one large cycle: looking for smaller ones while it lives finds nothing."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()


@contextlib.contextmanager
def _quiet_logs() -> Iterator[None]:
    """What the code logs of every lost worker and lapsed lease is nothing to read here."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _add_case(tally: Tally, case: Case) -> None:
    world = play(case)
    breaches = check(world)
    tally.seeds += 1
    tally.requests += len(world.clients)
    tally.faults += len(case.faults)
    tally.calls += world.schedule.done
    tally.virtual_s += world.now
    tally.kinds.update(fault.kind.value for fault in case.faults)
    tally.outcomes.update(map(_outcome, world.clients.values()))
    for gateway in [*world.ended, *world.gateways]:
        tally.events += len(gateway.log)
        tally.core.update(gateway.machine.ctx.counts)
    if breaches:
        tally.broken[case.seed] = [str(breach) for breach in breaches]


def _outcome(client: Client) -> str:
    if client.left:
        return "left"
    if client.cut_off:
        return "gateway died"
    if client.end is None:
        return "hung"
    return "finished" if isinstance(client.end, Finish) else f"failed: {client.end.failure}"


def scenario_file(given: Path | None) -> Path:
    """The scenario that is used: the one that came with the package unless another is given."""
    return given or packaged_scenario("faults")
