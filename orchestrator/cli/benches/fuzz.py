"""`pdd bench fuzz`: inputs that nobody should send, to every place that reads any."""

import dataclasses
from typing import Annotated, Any

import typer

from benchmarks.fuzz.campaign import Found, Outcome, run, run_round
from benchmarks.fuzz.targets import TARGETS
from orchestrator.cli.main import FAILED
from orchestrator.cli.output import Format, FormatOption, print_json, tell
from orchestrator.errors import UserError
from orchestrator.topology.mistakes import unknown


def fuzz(
    names: Annotated[
        list[str] | None, typer.Argument(help=f"Of {', '.join(TARGETS)}; left out: all.")
    ] = None,
    inputs: Annotated[int, typer.Option(min=1, help="For each of them.")] = 20_000,
    seed: Annotated[int, typer.Option(min=0, help="Of all inputs.")] = 0,
    round: Annotated[int | None, typer.Option(min=0, help="Only this one.")] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Is every input taken, or refused in one line by the place's own error?"""
    for name in names or ():
        if name not in TARGETS:
            raise UserError(unknown("target", name, list(TARGETS)))
    told: list[dict[str, Any]] = []
    found: str | None = None
    try:
        for name in names or TARGETS:
            target = TARGETS[name]
            if round is None:
                outcome = run(target, inputs, seed, lambda so_far: tell(_line(so_far)))
            else:
                outcome = Outcome(target=name)
                run_round(target, seed, round, outcome)
            told.append(_told(outcome))
            if output is Format.TEXT:
                print(_line(outcome))
    except Found as error:
        found = str(error)
    if output is Format.JSON:
        print_json({"seed": seed, "targets": told, "found": found})
    elif found is not None:
        print(found)
    if found is not None:
        raise typer.Exit(FAILED)


def _told(outcome: Outcome) -> dict[str, Any]:
    """As JSON values."""
    fields = {f.name: getattr(outcome, f.name) for f in dataclasses.fields(outcome)}
    return fields | {"outcomes": dict(outcome.outcomes)}


def _line(outcome: Outcome) -> str:
    counts = ", ".join(f"{count} {what}" for what, count in outcome.outcomes.most_common())
    rate = outcome.inputs / outcome.seconds if outcome.seconds else 0.0
    return (
        f"{outcome.target}: {outcome.inputs} inputs ({rate:.0f}/s, {outcome.cpu_s:.0f} s of CPU): "
        f"{counts}; slowest {outcome.slowest_ms:.0f} ms, grown {outcome.grown_mb:.0f} MB"
    )
