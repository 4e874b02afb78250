"""`pdd bench mutants`: rules broken on purpose, tried on the seeds of trouble."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.mutants import run as mutants_bench
from benchmarks.mutants.catalogue import MUTANTS
from orchestrator.cli.main import FAILED, GOOD
from orchestrator.cli.output import Format, FormatOption, print_json, tell
from orchestrator.errors import UserError
from orchestrator.topology.mistakes import unknown


def mutants(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which; a part's name for all of it. Default: all.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds each is tried on.")] = 2000,
    jobs: Annotated[int | None, typer.Option(min=1, help="At a time. Default: all cores.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the table to this file.")] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Break one rule at a time: which seed of `pdd bench faults` notices?"""
    chosen = _chosen(names or [])
    if markdown is not None and not markdown.parent.is_dir():
        raise UserError(f"--markdown: there is no folder {markdown.parent}")
    verdicts = mutants_bench.run(
        chosen,
        seeds=seeds,
        jobs=jobs or os.cpu_count() or 1,
        tell=lambda v: tell(f"{v.mutant.name}: {_words(v)}"),
    )
    if markdown is not None:
        markdown.write_text(mutants_bench.table(verdicts, seeds), encoding="utf-8")
    unexplained = [v.mutant.name for v in verdicts if not v.caught and v.mutant.exempt is None]
    if output is Format.JSON:
        rows = [_row(verdict) for verdict in verdicts]
        print_json({"seeds": seeds, "mutants": rows, "not_caught": unexplained})
    else:
        caught = sum(v.caught for v in verdicts)
        print(f"{caught} of {len(verdicts)} rules noticed; not noticed and not explained:")
        print("\n".join(unexplained) or "none")
    raise typer.Exit(FAILED if unexplained else GOOD)


def _chosen(names: list[str]) -> list[str]:
    parts = dict.fromkeys(mutant.part for mutant in MUTANTS.values())
    chosen: list[str] = []
    for name in names:
        if name not in MUTANTS and name not in parts:
            raise UserError(unknown("mutant", name, [*MUTANTS, *parts]))
        chosen += [m.name for m in MUTANTS.values() if name in (m.name, m.part)]
    return chosen or list(MUTANTS)


def _row(verdict: mutants_bench.Verdict) -> dict[str, Any]:
    mutant = verdict.mutant
    return {
        "part": mutant.part,
        "name": mutant.name,
        "module": mutant.module,
        "seed": verdict.seed,
        "breach": verdict.breach,
        "exempt": mutant.exempt,
    }


def _words(verdict: mutants_bench.Verdict) -> str:
    if verdict.caught:
        return f"seed {verdict.seed}, {verdict.breach}"
    return verdict.mutant.exempt or "NOT NOTICED"
