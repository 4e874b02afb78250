"""`pdd bench vtoken`: what tables and packing give back of evicted tokens' memory."""

import importlib
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from orchestrator.cli.output import Format, FormatOption, print_json, tell
from orchestrator.errors import UserError
from workers.engines.models import ModelError


def vtoken(
    short: Annotated[bool, typer.Option("--short", help="One cell of the table, no more.")] = False,
    output: FormatOption = Format.TEXT,
) -> None:
    """Blocks, requests at once and throughput against waiting for blocks that are wholly dead."""
    # By name, when it is called: torch and transformers take seconds to import.
    vtoken_bench = importlib.import_module("benchmarks.vtoken.run")
    try:
        result = vtoken_bench.run(short=short, tell=tell)
    except ModelError as error:
        raise UserError(str(error)) from error
    if output is Format.JSON:
        print_json(result)
    else:
        _print(result)


def _print(result: dict[str, Any]) -> None:
    paper = result["paper"]
    table = Table(title=f"against in place; in the paper: blocks {paper['blocks_saved']}")
    for name in ("policy", "die", "block", "lengths", "blocks saved", "at once", "throughput"):
        table.add_column(name, justify="left" if name in ("policy", "lengths") else "right")
    for cell in [*result["cells"], *result["control"]]:
        throughput = cell["throughput_gain"]
        table.add_row(
            cell["policy"],
            f"{cell['ratio']:.0%}",
            str(cell["block"]),
            cell["lengths"],
            f"{cell['blocks_saved']:.1%}",
            f"{cell['concurrency_gain']:.2f} x",
            "-" if throughput is None else f"{throughput:.2f} x",
        )
    Console().print(table)
    for row in result["random"]:
        print(
            f"random, {row['ratio']:.0%} die, blocks of {row['block']}: "
            f"{row['measured']:.1%} saved, by the formula {row['formula']:.1%}"
        )
    print(f"tables take {result['table_overhead']:.2%} of a decode step")
