"""`pdd bench overload`: more than the service can do."""

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.reliability import overload as overload_bench
from orchestrator.cli.benches.served import cannot_start_told
from orchestrator.cli.output import Format, FormatOption, print_json, tell

COLUMNS = (
    "offered_per_s",
    "goodput_per_s",
    "ttft_p50_s",
    "ttft_p95_s",
    "refused",
    "refusal_p95_s",
)


def overload(
    seconds: Annotated[float, typer.Option(min=2.0, help="For each load.")] = 20.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the moments at which requests come.")] = 0,
    output: FormatOption = Format.TEXT,
) -> None:
    """Once, twice and ten times the capacity; short requests beside giants; a greedy tenant."""
    with cannot_start_told():
        result = overload_bench.run(seconds=seconds, seed=seed, tell=tell)
    if output is Format.JSON:
        print_json(result)
    else:
        _table(result)


def _table(result: dict[str, Any]) -> None:
    capacity = result["capacity_per_s"]
    table = Table(title=f"a service that can do {capacity:.1f} requests/s")
    table.add_column("")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    rows = {f"{load['load']:g} x": load for load in result["loads"]}
    rows["short ones alone"] = result["giants"]["alone"]
    rows["beside giants"] = result["giants"]["beside"]
    rows["a modest tenant"] = result["tenants"]["modest"]
    rows["beside a greedy one"] = result["tenants"]["greedy"]
    for name, row in rows.items():
        numbers = (row[column] for column in COLUMNS)
        table.add_row(name, *("-" if n is None else f"{n:.3g}" for n in numbers))
    Console().print(table)
    giants = ", ".join(f"{n} {what}" for what, n in result["giants"]["giants"].items())
    print(f"giants: {giants}")
