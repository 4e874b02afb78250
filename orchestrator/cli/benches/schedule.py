"""`pdd bench schedule`: whose KV goes first over a shared line, in virtual time."""

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import schedule as schedule_bench
from orchestrator.cli.output import Format, FormatOption, print_json, tell

PARTS = ("p50", "p99", "max")


def schedule(
    seeds: Annotated[int, typer.Option(min=1, help="How many draws of the workload.")] = 8,
    output: FormatOption = Format.TEXT,
) -> None:
    """P50 and P99 of PDD's transfers: fair shares, one after the other, our order, PDD's pool."""
    result = schedule_bench.run(seeds=seeds, tell=tell)
    if output is Format.JSON:
        print_json(result)
    else:
        _tables(result)


def _tables(result: dict[str, Any]) -> None:
    seconds = _table(f"KV transfer in s, load {result['load']}, medians of {result['seeds']}")
    for name in schedule_bench.WAYS:
        seconds.add_row(name, *_cells(result[name], "{:.3f}", "_s"))
    seconds.add_row("pool, fitted", *_cells(result["pool_fitted"], "{:.3f}", "_s"))
    seconds.add_section()
    for row in result["ageing"]:
        seconds.add_row(f"ageing {row['share']:.1%}", *_cells(row, "{:.3f}", "_s"))
    Console().print(seconds)
    better = _table("ours, times better: medians, (worst seed)")
    for name, times in result["times_better"].items():
        told = {
            spread: {
                part: f"{of['medians']:.2f} ({of['worst_seed']:.2f})" for part, of in parts.items()
            }
            for spread, parts in times.items()
        }
        better.add_row(name.removeprefix("ours_").replace("_", " "), *_cells(told, "{}", ""))
    Console().print(better)


def _table(title: str) -> Table:
    table = Table(title=title)
    table.add_column("")
    for spread in schedule_bench.MISSES:
        for part in PARTS:
            table.add_column(f"{spread} {part}", justify="right")
    return table


def _cells(row: dict[str, Any], shape: str, unit: str) -> list[str]:
    """One per spread and part; "-" where there is no figure."""
    values = [
        row[spread].get(f"{part}{unit}") for spread in schedule_bench.MISSES for part in PARTS
    ]
    return ["-" if value is None else shape.format(value) for value in values]
