"""`pdd bench validate`: how near the replay comes to what others measured."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.validate import run as validate_bench
from orchestrator.cli.output import Format, FormatOption, print_json, tell
from orchestrator.errors import UserError


def validate(
    data: Annotated[
        Path, typer.Option(help="Where splitwise, distserve and llmservingsim lie.")
    ] = validate_bench.DATA,
    output: FormatOption = Format.TEXT,
) -> None:
    """Errors of the replay's costs and engines, as parts of what others measured."""
    try:
        result = validate_bench.run(data=data, tell=tell)
    except FileNotFoundError as error:
        raise UserError(f"--data: there is no {error.filename}") from error
    if output is Format.JSON:
        print_json(result)
    else:
        _print(result)


def _print(result: dict[str, Any]) -> None:
    table = Table(title="errors, as parts of what was measured")
    for name in ("", "constants from", "metric"):
        table.add_column(name)
    for name in ("n", "mean", "P50", "P90"):
        table.add_column(name, justify="right")
    for row in result["tables"]:
        shown = (f"{row[key]:.1%}" for key in ("error_mean", "error_p50", "error_p90"))
        table.add_row(row["name"], row["fit_on"], row["metric"], str(row["n"]), *shown)
    Console().print(table)
    print(f"skipping events and single steps differ by {result['fast_vs_step_s']:.1e} s at most")
