"""`pdd bench NAME`: measure a claim."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import handoff as handoff_bench
from benchmarks.service import ServeFailed
from orchestrator.cli.bench_codec import codec
from orchestrator.cli.bench_driver import driver
from orchestrator.cli.bench_faults import faults
from orchestrator.cli.bench_link import link
from orchestrator.cli.bench_mutants import mutants
from orchestrator.cli.bench_schedule import schedule
from orchestrator.cli.bench_turns import turns
from orchestrator.cli.main import FAILED, GOOD
from orchestrator.cli.output import Format, FormatOption, print_json
from orchestrator.topology.load import load_topology
from orchestrator.topology.packaged import packaged_topology

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

app.command()(codec)
app.command()(driver)
app.command()(faults)
app.command()(link)
app.command()(mutants)
app.command()(schedule)
app.command()(turns)


@app.callback()
def bench() -> None:
    """Measure a claim; every figure of the README comes from one of these."""


@app.command()
def handoff(
    topology: Annotated[
        Path | None, typer.Option(help="The topology file. Default: laptop-4000km.")
    ] = None,
    gateway_site: Annotated[
        str | None, typer.Option(help="Where the gateway stands. Default: as the file says.")
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests per route.")] = 5,
    logs: Annotated[Path | None, typer.Option(help="Keep the service's logs here.")] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """What a user feels on each route: local, direct, and relay with each kind of handoff."""
    file = topology or packaged_topology("laptop-4000km")
    load_topology(file)
    progress = Console(stderr=True, highlight=False)
    with _cannot_start_told():
        result = handoff_bench.run(
            file,
            gateway_site=gateway_site,
            requests=requests,
            logs=logs,
            tell=lambda line: progress.print(f"  {line}"),
        )
    if output is Format.JSON:
        print_json(result)
    else:
        _table(result)


@app.command()
def parity(
    file: Annotated[
        Path | None,
        typer.Argument(help="A journal of pdd serve --record. Default: one is recorded now."),
    ] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Feed a live run's events to a fresh core: exit code 1 unless its actions are identical."""
    # By name, when it is called: the model's tokenizer takes seconds to import.
    parity_bench = importlib.import_module("benchmarks.parity")
    progress = Console(stderr=True, highlight=False)
    with _cannot_start_told():
        result = parity_bench.run(file, tell=lambda line: progress.print(f"  {line}"))
    if output is Format.JSON:
        print_json(result)
    else:
        _verdict(result)
    raise typer.Exit(GOOD if result["identical"] else FAILED)


@contextlib.contextmanager
def _cannot_start_told() -> Iterator[None]:
    """A service that cannot be started ends the command with one line."""
    try:
        yield
    except ServeFailed as error:
        print(f"cannot start: {error}", file=sys.stderr)
        raise typer.Exit(FAILED) from error


def _verdict(result: dict[str, Any]) -> None:
    print(
        f"{result['events']} events, {result['actions']} actions, {result['requests']} requests "
        f"({result['failed_requests']} failed): "
        + ("identical" if result["identical"] else "different")
    )
    if not result["identical"]:
        print_json(result["first_difference"])


def _table(result: dict[str, Any]) -> None:
    table = Table(title=f"handoff, gateway at {result['gateway_site']}, medians")
    table.add_column("")
    for name in result["routes"]:
        table.add_column(name, justify="right")
    keys = [k for k in next(iter(result["routes"].values())) if k != "spread"]
    for key in keys:
        table.add_row(key, *(_cell(row[key]) for row in result["routes"].values()))
    Console().print(table)
    sampled = result["sampled"]
    print(
        f"sampled at temperature {sampled['temperature']}: tokens_equal {sampled['tokens_equal']}, "
        f"near_ties {sampled['near_ties']}"
    )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
