"""`pdd bench replay`: how fast a replay is at scale, and what memory it takes."""

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import replay as replay_bench
from orchestrator.cli.output import Format, FormatOption, print_json, tell

COLUMNS = {
    "requests": "{:.0f}",
    "s_per_1000": "{:.3f}",
    "wall_s": "{:.1f}",
    "events_per_request": "{:.1f}",
    "peak_MiB": "{:.0f}",
}


def replay(
    requests: Annotated[
        int, typer.Option(min=1, help="Of the largest generated workload.")
    ] = 1_000_000,
    output: FormatOption = Format.TEXT,
) -> None:
    """CPU seconds per 1000 requests: Mooncake's trace, and ever larger generated workloads."""
    result = replay_bench.run(requests=requests, tell=tell)
    if output is Format.JSON:
        print_json(result)
    else:
        _table(result)


def _table(result: dict[str, Any]) -> None:
    table = Table(title="replay at scale, CPU seconds")
    table.add_column("")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    rows = [("Mooncake", result["mooncake"])]
    rows.append(("without caches", result["mooncake_without_caches"]))
    rows += [("generated", row) for row in result["scaling"]]
    for name, row in rows:
        if row is not None:
            table.add_row(name, *(shape.format(row[key]) for key, shape in COLUMNS.items()))
    Console().print(table)
    core = "compiled" if result["compiled"] else "interpreted"
    print(f"the core is {core}; one addition in a loop: {result['loop_ns']:.1f} ns")
