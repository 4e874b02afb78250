"""`pdd bench driver`: how fast requests are replayed in virtual time."""

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import driver as driver_bench
from orchestrator.cli.output import Format, FormatOption, print_json, tell

COLUMNS = {
    "requests": "{:.0f}",
    "events_per_request": "{:.1f}",
    "events_per_s": "{:.0f}",
    "cpu_s_per_1000_requests": "{:.3f}",
}


def driver(
    requests: Annotated[int, typer.Option(min=4, help="How many, over all routes.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Of arrivals and lengths.")] = 1,
    output: FormatOption = Format.TEXT,
) -> None:
    """Speed of the replay, and how far it is from taking every decode step by itself."""
    result = driver_bench.run(requests=requests, seed=seed, tell=tell)
    if output is Format.JSON:
        print_json(result)
    else:
        _table(result)


def _table(result: dict[str, Any]) -> None:
    table = Table(title="replay, no faults")
    table.add_column("")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    table.add_column("max_difference_s", justify="right")
    stepped = result["step_by_step"]["routes"]
    for name, row in result["routes"].items():
        cells = [shape.format(row[column]) for column, shape in COLUMNS.items()]
        table.add_row(name, *cells, f"{stepped[name]['max_difference_s']:.2g}")
    Console().print(table)
    print(
        f"{result['cpu_s_per_1000_requests']:.3f} CPU seconds per 1000 requests, step by step "
        f"{result['step_by_step']['cpu_s_per_1000_requests']:.2f}; a loop of "
        f"{driver_bench.LOOP_ADDITIONS / 1e6:.0f} million additions takes "
        f"{result['python_loop_s']:.3f}"
    )
