"""`pdd replay FILE|NAME`: what users would feel of a deployment, and what it would cost."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from orchestrator.cli.output import Format, FormatOption, print_json, tell
from orchestrator.cli.sweeping import How, ResumeOption, SweepOption, check_writable, sweep_replay
from orchestrator.errors import UserError
from orchestrator.plan.explain import explain
from orchestrator.plan.record import to_record
from orchestrator.plan.search import Plan, plan
from orchestrator.replay.report.metrics import Summary, summarise
from orchestrator.replay.report.page import write_html
from orchestrator.replay.report.record import record
from orchestrator.replay.report.table import table
from orchestrator.replay.scenario.about import about
from orchestrator.replay.scenario.compare import TellAll, compare
from orchestrator.replay.scenario.load import load_scenario, scenario_names
from orchestrator.replay.scenario.problem import asked_rate, problem_of, with_plan
from orchestrator.replay.scenario.schema import Compared, Scenario
from orchestrator.replay.scenario.workload import expected_requests, make_workload
from orchestrator.replay.workload.request import BadLine
from orchestrator.topology.mistakes import unknown

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

TIMELINES = 100  # of single requests in a page, of each policy
PLANNED = "plan"  # the policy that replays the plan
SHOWN_BAD = 5  # lines of a trace that are shown in the text


@app.command()
def replay(
    file: Annotated[
        str, typer.Argument(help=f"A scenario's file, or one of {', '.join(scenario_names())}.")
    ],
    policy: Annotated[
        list[str] | None, typer.Option(help="Only this policy of the file's; may be repeated.")
    ] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="At most so many requests.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="A trace instead of the file's workload.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="So many requests a second, instead of the workload's.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Instead of the file's.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes. Default: all cores.")] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write the report as one page that needs no network.")
    ] = None,
    planned: Annotated[
        bool, typer.Option("--plan", help="Also replay the roles that pdd plan finds.")
    ] = False,
    sweep: SweepOption = None,
    resume: ResumeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Find out in virtual time what a scenario's policies give and cost."""
    if rate is not None and not 0 < rate < float("inf"):
        raise UserError(f"--rate: must be above 0, got {rate:g}")
    scenario = _changed(load_scenario(file), requests, trace, rate, seed)
    best: Plan | None = None
    if planned:
        problem = problem_of(scenario)
        best = plan(replace(problem, demand=asked_rate(problem)))
        if not best.best.rate:
            raise UserError(f"--plan: {explain(best).headline}")
        scenario = with_plan(scenario, best.best.assignment, PLANNED)
    policies = _chosen(scenario, policy)
    workload = make_workload(scenario)
    if html is not None:
        check_writable(html)
    if sweep:
        how = How(resume=resume, jobs=jobs, html=html, output=output)
        sweep_replay(scenario, policies, sweep, how)
        return
    if resume is not None:
        raise UserError("--resume: it is for --sweep; give both")
    if html is not None:
        scenario = _with_timelines(scenario, expected_requests(workload))
    _tell_bad(workload.bad)
    with _progress(policies, expected_requests(workload)) as tell_all:
        runs = compare(scenario, policies, workload, jobs=jobs, tell=tell_all)
    summaries = [summarise(run, scenario.goal) for run in runs]
    what = about(scenario, workload)
    if html is not None:
        given = _given(file, policy, requests, trace, rate, seed, html)
        made = (("version", version("pdd-orchestrator")), ("command", shlex.join(given)))
        write_html(html, runs, scenario.goal, replace(what, facts=what.facts + made))
        tell(f"{html}: {html.stat().st_size / 1e6:.1f} MB, to be opened in a browser")
    if output is Format.JSON:
        told = record(summaries, scenario.goal, what)
        with_it = {"plan": to_record(best, None)} if best is not None else {}
        print_json(told | {"bad_lines": workload.bad} | with_it)
    else:
        console = Console()
        console.print(what.title, markup=False, highlight=False)
        console.print(table(summaries, scenario.goal))
        for summary in summaries:
            for line in summary.roles:
                console.print(f"{summary.policy}: {line}", markup=False, highlight=False)
            if best is not None and summary.policy == PLANNED:
                console.print(_beside(best, summary), markup=False, highlight=False)


def _beside(best: Plan, summary: Summary) -> str:
    """What the plan says, and what came of it."""
    value = best.best
    return (
        f"plan: {value.assignment}\n"
        f"planned: {value.served:.3g} requests/s within the goal (up to {value.rate:.3g}), "
        f"{value.cost_per_h:.4g} an hour; simulated: {summary.goodput_per_s:.3g} requests/s, "
        f"{summary.within_slo:.1%} of all"
    )


def _given(
    file: str,
    policies: Sequence[str] | None,
    requests: int | None,
    trace: Path | None,
    rate: float | None,
    seed: int | None,
    html: Path,
) -> Iterator[str]:
    """The command that writes the page again: what changes no figure in it is left out."""
    yield from ("pdd", "replay", file)
    for name in policies or ():
        yield from ("--policy", name)
    options = {"requests": requests, "trace": trace, "rate": rate, "seed": seed, "html": html}
    for option, value in options.items():
        if value is not None:
            yield from (f"--{option}", f"{value}")


def _changed(
    scenario: Scenario,
    requests: int | None,
    trace: Path | None,
    rate: float | None,
    seed: int | None,
) -> Scenario:
    """The scenario with what the command line says instead."""
    workload = scenario.file.workload
    if trace is not None:
        changes = {"trace": str(trace.absolute()), "format": None, "generated": None}
        workload = workload.model_copy(update=changes | {"preset": None, "rate_per_s": None})
    if rate is not None:
        workload = workload.model_copy(update={"rate_per_s": rate})
    if requests is not None:
        limit = min(requests, workload.limit or requests)
        workload = workload.model_copy(update={"limit": limit})
    file = scenario.file.model_copy(update={"workload": workload})
    if seed is not None:
        file = file.model_copy(update={"seed": seed})
    return scenario.with_file(file)


def _with_timelines(scenario: Scenario, count: int | None) -> Scenario:
    """A page shows some, also of a scenario that does not ask for any."""
    if scenario.file.timelines:
        return scenario
    every = max(1, (count or 0) // TIMELINES)
    return scenario.with_file(scenario.file.model_copy(update={"timelines": every}))


def _chosen(scenario: Scenario, names: Sequence[str] | None) -> list[Compared]:
    """The policies in the file's order. Raises UserError for one that it does not have."""
    policies = list(scenario.file.policies)
    known = [policy.name for policy in policies]
    for name in names or ():
        if name not in known:
            raise UserError(f"--policy: {unknown('policy', name, known)}")
    return [policy for policy in policies if not names or policy.name in names]


def _tell_bad(bad: Sequence[BadLine]) -> None:
    if not bad:
        return
    tell(f"{len(bad)} lines of the trace are not as they should be")
    for line in bad[:SHOWN_BAD]:
        tell(f"  {line}")
    if len(bad) > SHOWN_BAD:
        tell(f"  and {len(bad) - SHOWN_BAD} more; -o json has them all")


@contextmanager
def _progress(policies: Sequence[Compared], count: int | None) -> Iterator[TellAll]:
    """A bar for each policy on standard error; gone when all are done."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f} of {task.fields[of]} requests"),
        TimeRemainingColumn() if count else TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    of = "?" if count is None else f"{count}"
    tasks = [bar.add_task(policy.name, total=count, of=of) for policy in policies]

    def tell_all(counts: Sequence[int]) -> None:
        for task, come in zip(tasks, counts, strict=True):
            bar.update(task, completed=come)

    with bar:
        yield tell_all
