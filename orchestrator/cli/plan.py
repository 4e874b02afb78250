"""`pdd plan FILE|NAME`: which pool should play which role, and why."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from orchestrator.cli.output import Format, FormatOption, print_json, tell
from orchestrator.cli.sweeping import (
    How,
    ResumeOption,
    SweepOption,
    check_writable,
    sweep_over,
)
from orchestrator.errors import UserError
from orchestrator.plan.assignment import ROLES
from orchestrator.plan.explain import Explanation, explain, routes
from orchestrator.plan.record import to_record
from orchestrator.plan.search import Objective, Plan
from orchestrator.plan.search import plan as make_plan
from orchestrator.replay.planning.page import write_html
from orchestrator.replay.scenario.about import about
from orchestrator.replay.scenario.load import load_scenario, scenario_names
from orchestrator.replay.scenario.workload import make_workload
from orchestrator.replay.sweep.axes.grammar import parse_axes
from orchestrator.replay.sweep.planned import (
    NEAR,
    Wanted,
    plan_cells,
    plan_figures,
    wanted_problem,
)

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def plan(
    file: Annotated[
        str, typer.Argument(help=f"A scenario's file, or one of {', '.join(scenario_names())}.")
    ],
    rate: Annotated[
        float | None,
        typer.Option(help="Serve so many requests a second. Default: as many as the workload has."),
    ] = None,
    most: Annotated[
        bool, typer.Option("--most", help="Whatever the workload's rate is, the best there is.")
    ] = False,
    objective: Annotated[
        Objective, typer.Option(help="What is best, once the rate is served.")
    ] = Objective.PER_COST,
    keep_roles: Annotated[
        bool, typer.Option("--keep-roles", help="Pools take only the roles that the file gives.")
    ] = False,
    explained: Annotated[
        bool, typer.Option("--explain", help="Say what limits it, what more would bring, who lost.")
    ] = False,
    sweep: SweepOption = None,
    resume: ResumeOption = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="A sweep's processes. Default: all cores.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write the plan, or a sweep's report, as one page.")
    ] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Find out which pool should play which role: the most within the SLO for the money."""
    if rate is not None and not 0 < rate < float("inf"):
        raise UserError(f"--rate: must be above 0, got {rate:g}")
    if rate is not None and most:
        raise UserError("--rate and --most: give one of them")
    scenario = load_scenario(file)
    wanted = Wanted(rate=rate, most=most, objective=objective, keep_roles=keep_roles)
    if sweep:
        axes = parse_axes(sweep, scenario)
        cells = plan_cells(scenario, wanted, axes)
        how = How(resume=resume, jobs=jobs, html=html, output=output)
        sweep_over("plan", scenario, axes, cells, partial(plan_figures, wanted), near=NEAR, how=how)
        return
    for option, given in (("--resume", resume), ("--jobs", jobs)):
        if given is not None:
            raise UserError(f"{option}: it is for --sweep; give both")
    if html is not None:
        check_writable(html)
    found = make_plan(wanted_problem(scenario, wanted), objective)
    if output is Format.JSON and html is None and not explained:
        print_json(to_record(found, None))
        return
    why = explain(found)
    if html is not None:
        write_html(html, found, why, about(scenario, make_workload(scenario)))
        tell(f"{html}: {html.stat().st_size / 1e6:.1f} MB, to be opened in a browser")
    if output is Format.JSON:
        print_json(to_record(found, why))
    else:
        _show(found, why, explained=explained)


def _show(found: Plan, why: Explanation, *, explained: bool) -> None:
    """As text; `explained`: with all that there is to say."""
    console = Console()

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False)

    console.print(_table(found))
    say(why.headline)
    parts = ", ".join(f"{part:.0%} {route}" for route, part in routes(found.best).items())
    if parts:
        say(f"routes: {parts}")
    say(why.binding)
    say(why.bound)
    if not explained:
        return
    say(why.fixed_point)
    say("\nwhat more would bring")
    for shadow in why.shadows:
        say(f"  {shadow.text}")
    say("\nwhat each site does")
    for site, text in why.sites.items():
        say(f"  {site} {text}")
    say("\nwhy others lost")
    for lost in why.rejected:
        say(f"  {lost.assignment}: {lost.why}")


def _table(found: Plan) -> Table:
    table = Table(title="plan")
    table.add_column("pool")
    for column in ("chips", "each worker", "prefill", "relay", "main", "idle chips"):
        table.add_column(column, justify="right")
    for pool, post in zip(found.problem.pools, found.best.assignment.posts, strict=True):
        counts = [str(post.count(role) or "") for role in ROLES]
        idle = pool.chips - post.chips
        each = f"{post.parallel} x {pool.chip}" if post.workers else pool.chip
        table.add_row(pool.name, str(pool.chips), each, *counts, str(idle) if idle else "")
    return table
