"""What figures depend on, as digests: what has the same one need not be computed again."""

import hashlib
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import orjson

from orchestrator.errors import UserError
from orchestrator.replay.scenario.schema import LinePrice, Prices, Scenario
from orchestrator.replay.scenario.workload import make_workload, warming
from orchestrator.replay.sweep.axes.changes import topologies
from orchestrator.topology.schema import Topology

CODE = ("orchestrator", "transport", "workers")


def digest(value: object) -> str:
    """Of plain values, models' dumps and sets of texts."""
    return hashlib.sha256(orjson.dumps(value, default=sorted)).hexdigest()


@cache
def code_digest() -> str:
    """Of all our code: another version may find other figures."""
    found = hashlib.sha256()
    for package in CODE:
        for name, file in _sources(files(package), package):
            found.update(name.encode() + b"\0" + file.read_bytes() + b"\0")
    return found.hexdigest()


def _sources(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        name = f"{path}/{entry.name}"
        if entry.is_dir():
            yield from _sources(entry, name)
        elif name.endswith(".py"):
            yield name, entry


def scenario_digest(scenario: Scenario) -> str:
    """Of all that it says, and of the trace that it names."""
    return digest(
        {
            "file": scenario.file.model_dump(exclude_unset=True, exclude={"title", "timelines"}),
            "figures": [_figures(scenario, topology) for topology in topologies(scenario)],
            "trace": _trace(scenario),
        }
    )


def policy_digest(scenario: Scenario, policy: str) -> str:
    """Of what counts for one of its policies: not lines that its topology does not have."""
    file = scenario.file
    compared = next(found for found in file.policies if found.name == policy)
    topology = scenario.topology(compared)
    return digest(
        {
            "policy": compared.model_dump(exclude_unset=True, exclude={"topology"}),
            "topology": topology.model_dump(exclude_unset=True),
            "figures": _figures(scenario, topology),
            "workload": file.workload.model_dump(exclude_unset=True),
            "trace": _trace(scenario),
            "warming": _warming(scenario),
            "faults": [fault.model_dump(exclude_unset=True) for fault in file.faults],
            "lines": file.lines.model_dump(exclude_unset=True) if topology.links else None,
            "prices": _prices(file.prices, topology).model_dump(exclude_unset=True),
            "goal": asdict(scenario.goal),
            "seed": file.seed,
            "memory_use": file.memory_use,
        }
    )


def _prices(prices: Prices, topology: Topology) -> Prices:
    def is_here(line: LinePrice) -> bool:
        return topology.link(*line.between) is not None

    return prices.model_copy(update={"lines": tuple(filter(is_here, prices.lines))})


def _figures(scenario: Scenario, topology: Topology) -> dict[str, Any]:
    """Of the catalogue: its chips' and its model's."""
    pools = [pool for place in topology.sites.values() for pool in place.pools.values()]
    chips = sorted({pool.chip for pool in pools})
    known = scenario.catalogue
    return {
        "model": known.models[topology.model].model_dump(exclude_unset=True),
        "chips": [known.chips[chip].model_dump(exclude_unset=True) for chip in chips],
    }


def _warming(scenario: Scenario) -> int:
    """It follows from all policies' topologies. A trace, which takes time to read, has none."""
    return 0 if scenario.file.workload.trace else warming(make_workload(scenario))


def _trace(scenario: Scenario) -> str | None:
    name = scenario.file.workload.trace
    if name is None:
        return None
    path = scenario.directory / Path(name).expanduser()
    try:
        return _file_digest(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise UserError(f"workload: {name}: cannot be read: {error.strerror}") from None


@cache
def _file_digest(path: Path, changed_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
