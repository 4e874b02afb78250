"""`pdd bench parity`: a live run's journal, fed to a fresh core."""

import importlib
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.benches.served import cannot_start_told
from orchestrator.cli.main import FAILED, GOOD
from orchestrator.cli.output import Format, FormatOption, print_json, tell


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
    with cannot_start_told():
        result = parity_bench.run(file, tell=tell)
    if output is Format.JSON:
        print_json(result)
    else:
        _verdict(result)
    raise typer.Exit(GOOD if result["identical"] else FAILED)


def _verdict(result: dict[str, Any]) -> None:
    print(
        f"{result['events']} events, {result['actions']} actions, {result['requests']} requests "
        f"({result['failed_requests']} failed): "
        + ("identical" if result["identical"] else "different")
    )
    if not result["identical"]:
        print_json(result["first_difference"])
