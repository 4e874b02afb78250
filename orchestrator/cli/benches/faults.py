"""`pdd bench faults`: thousands of troubled deployments in virtual time, or the story of one."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks import faults as faults_bench
from orchestrator.cli.main import FAILED, GOOD
from orchestrator.cli.output import Format, FormatOption, print_json
from orchestrator.errors import UserError
from orchestrator.virtual.faults.scenario import Scenario, load_scenario


def faults(
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds. Default: 200.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The first seed; alone: only it.")] = None,
    story: Annotated[
        bool,
        typer.Option("--story", help="With --seed: tell what happened to its broken requests."),
    ] = False,
    shrink: Annotated[
        bool,
        typer.Option(
            "--shrink", help="With --story: of the fewest faults and requests that break it."
        ),
    ] = False,
    request: Annotated[
        str | None, typer.Option(help="With --story: of this request, such as r7.")
    ] = None,
    scenario: Annotated[
        Path | None, typer.Option(help="What is drawn from. Default: configs/scenarios/faults.yaml")
    ] = None,
    calm: Annotated[
        bool, typer.Option("--calm", help="Leave the faults out: how fast it is.")
    ] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes. Default: all cores.")] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Small deployments with faults, in virtual time: is any promise broken?"""
    chosen = load_scenario(faults_bench.scenario_file(scenario))
    if story:
        if seed is None:
            raise UserError("--story: give the seed whose story is wanted, with --seed")
        broken = _tell_story(chosen, seed, smallest=shrink, request=request, output=output)
        raise typer.Exit(FAILED if broken else GOOD)
    if shrink or request is not None:
        raise UserError(f"--{'shrink' if shrink else 'request'}: it is for --story; give both")
    count = seeds or (200 if seed is None else 1)
    with _progress(count) as bar:
        task = bar.add_task("", total=count, broken=0)
        result = faults_bench.run(
            chosen,
            first=seed or 0,
            seeds=count,
            jobs=jobs,
            faults=not calm,
            tell_progress=lambda tally: bar.update(
                task, completed=tally.seeds, broken=len(tally.broken)
            ),
        )
    if output is Format.JSON:
        print_json(result)
    else:
        _summary(result)
    raise typer.Exit(FAILED if result["broken"] else GOOD)


def _tell_story(
    scenario: Scenario, seed: int, *, smallest: bool, request: str | None, output: Format
) -> bool:
    """Print what happened in a seed; whether it broke a promise."""
    lines, broken = faults_bench.explain(scenario, seed, smallest=smallest, request=request)
    if output is Format.JSON:
        print_json({"seed": seed, "broken": broken, "story": lines})
    else:
        print("\n".join(lines))
    return broken


def _progress(count: int) -> Progress:
    return Progress(
        BarColumn(),
        TextColumn(f"{{task.completed:.0f}} of {count} seeds, {{task.fields[broken]}} broken"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )


def _summary(result: dict[str, Any]) -> None:
    print(
        f"{result['seeds']} seeds, {result['requests']} requests, {result['faults']} faults in "
        f"{result['virtual_hours']:.1f} virtual hours: {len(result['broken'])} broke a promise"
    )
    print(
        f"{result['seeds_per_s']:.1f} seeds/s, {result['core_events_per_cpu_s']:.0f} core events "
        f"and {result['calls_per_cpu_s']:.0f} calls per CPU second, "
        f"{result['cpu_s_per_1000_requests']:.2f} CPU seconds per 1000 requests"
    )
    for outcome, count in result["outcomes"].items():
        print(f"  {outcome}: {count}")
    for seed in result["broken"][:10]:
        print(f"seed {seed['seed']} (pdd bench faults --seed {seed['seed']} --story)")
        for breach in seed["breaches"][:3]:
            print(f"  {breach}")
