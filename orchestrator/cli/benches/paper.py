"""`pdd bench paper`: the paper's result, in its own set-up."""

import os
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.paper import run as paper_bench
from orchestrator.cli.output import Format, FormatOption, print_json, tell


def paper(
    requests: Annotated[
        int | None,
        typer.Option(
            min=10, help="At most so many of each replay. Default: all; fewer say little."
        ),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes. Default: all cores.")] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Relay against direct, goodput for the money, and KV transfers, in PDD's own set-up."""
    result = paper_bench.run(requests=requests, jobs=jobs or os.cpu_count() or 1, tell=tell)
    if output is Format.JSON:
        print_json(result)
    else:
        _print(result)


def _print(result: dict[str, Any]) -> None:
    table = Table(title="the paper's figures (PDD, arXiv 2609.13161)", show_lines=True)
    for column in ("", "found", "wanted"):
        table.add_column(column, justify="left" if not column else "right")
    table.add_column("reached")
    table.add_column("by which parameter")
    for row in result["account"]:
        found = "-" if row["found"] is None else f"{row['found']:.3g}"
        reached = "yes" if row["reached"] else "no"
        table.add_row(row["figure"], found, f"{row['wanted']:.3g}", reached, row["why"])
    Console().print(table)
    worth = Table(title="requests within the SLO for the money")
    for column in ("", "requests/s", "goodput/s", "cost/h"):
        worth.add_column(column, justify="right")
    for row in result["deployments"]:
        figures = (row["rate_per_s"], row["goodput_per_s"], row["cost_per_h"])
        worth.add_row(row["deployment"], *(f"{figure:.1f}" for figure in figures))
    Console().print(worth)
