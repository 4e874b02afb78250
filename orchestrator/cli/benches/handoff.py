"""`pdd bench handoff`: what a user feels on each route."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import confirm
from benchmarks import handoff as handoff_bench
from orchestrator.cli.benches.served import cannot_start_told
from orchestrator.cli.output import Format, FormatOption, print_json, tell
from orchestrator.topology.load import load_topology
from orchestrator.topology.packaged import packaged_topology


class Engine(StrEnum):
    """What computes in the deployment that is measured."""

    TORCH = "torch"
    VLLM = "vllm"


OF_ENGINE = {Engine.TORCH: "laptop-4000km", Engine.VLLM: "laptop-vllm"}


def handoff(
    topology: Annotated[
        Path | None, typer.Option(help="The topology file. Default: the engine's own.")
    ] = None,
    engine: Annotated[
        Engine, typer.Option(help="Whose topology is the default: laptop-4000km, or laptop-vllm.")
    ] = Engine.TORCH,
    gateway_site: Annotated[
        str | None, typer.Option(help="Where the gateway stands. Default: as the file says.")
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests per route.")] = 5,
    logs: Annotated[Path | None, typer.Option(help="Keep the service's logs here.")] = None,
    replay: Annotated[
        bool, typer.Option("--replay", help="Replay it too, with constants from other requests.")
    ] = False,
    output: FormatOption = Format.TEXT,
) -> None:
    """What a user feels on each route: local, direct, and relay with each kind of handoff."""
    file = topology or packaged_topology(OF_ENGINE[engine])
    load_topology(file)
    with cannot_start_told():
        result = (confirm if replay else handoff_bench).run(
            file,
            gateway_site=gateway_site,
            requests=requests,
            logs=logs,
            tell=tell,
        )
    if output is Format.JSON:
        print_json(result)
    else:
        _table(result)


def _table(result: dict[str, Any]) -> None:
    table = Table(title=f"handoff, gateway at {result['gateway_site']}, medians")
    table.add_column("")
    for name in result["routes"]:
        table.add_column(name, justify="right")
    keys = [k for k in next(iter(result["routes"].values())) if k != "spread"]
    for key in keys:
        table.add_row(key, *(_cell(row[key]) for row in result["routes"].values()))
    Console().print(table)
    if "replay" in result:
        _replay_table(result)
    sampled = result["sampled"]
    print(
        f"sampled at temperature {sampled['temperature']}: tokens_equal {sampled['tokens_equal']}, "
        f"near_ties {sampled['near_ties']}"
    )


def _replay_table(result: dict[str, Any]) -> None:
    table = Table(title="live, replayed, and how far that is off")
    table.add_column("")
    for key in confirm.JUDGED:
        table.add_column(key, justify="right")
    for name, row in result["replay"].items():
        cells = [
            f"{row[key]['live']:.2f}, {row[key]['replay']:.2f}, {row[key]['error']:.1%}"
            for key in confirm.JUDGED
        ]
        table.add_row(name, *cells)
    Console().print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
