"""`pdd bench chaos`: faults of the running service, in every phase of a request."""

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.reliability import chaos as chaos_bench
from orchestrator.cli.benches.served import cannot_start_told
from orchestrator.cli.main import FAILED, GOOD
from orchestrator.cli.output import Format, FormatOption, print_json, tell
from orchestrator.errors import UserError


def chaos(
    fault: Annotated[
        list[str] | None, typer.Option(help="Only this one; may be given again. Default: all.")
    ] = None,
    phase: Annotated[
        list[str] | None, typer.Option(help="Only this one; may be given again. Default: all.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the prompts.")] = 0,
    output: FormatOption = Format.TEXT,
) -> None:
    """Workers, agents and the line fail under the running service: what do clients get?"""
    faults = _chosen("--fault", fault, chaos_bench.NAMES)
    phases = _chosen("--phase", phase, chaos_bench.PHASES)
    with cannot_start_told():
        result = chaos_bench.run(faults=faults, phases=phases, seed=seed, tell=tell)
    if output is Format.JSON:
        print_json(result)
    else:
        _table(result)
    raise typer.Exit(FAILED if result["broken"] else GOOD)


def _chosen(option: str, given: list[str] | None, known: tuple[str, ...]) -> tuple[str, ...]:
    for name in given or ():
        if name not in known:
            raise UserError(f"{option}: no {name!r}; there are {', '.join(known)}")
    return tuple(given or known)


def _table(result: dict[str, Any]) -> None:
    table = Table(title="faults of the running service")
    for column in (
        "fault",
        "in",
        "clients got",
        "added s",
        "longest gap s",
        "free after s",
        "left",
    ):
        table.add_column(column)
    for cell in result["cells"]:
        outcomes = ", ".join(f"{count} {what}" for what, count in cell["outcomes"].items())
        numbers = (cell["added_s"], cell["longest_gap_s"], cell["free_s"])
        shown = ("-" if number is None else f"{number:.1f}" for number in numbers)
        table.add_row(cell["fault"], cell["phase"], outcomes, *shown, str(cell["left"]))
    Console().print(table)
    broken = result["broken"]
    print(f"broken: {', '.join(broken)}" if broken else "no promise was broken")
