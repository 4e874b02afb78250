"""What `--sweep` does, for every command that has it."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from orchestrator.cli.output import Format, print_json, tell
from orchestrator.errors import UserError
from orchestrator.replay.scenario.about import about
from orchestrator.replay.scenario.schema import Compared, Scenario
from orchestrator.replay.scenario.workload import make_workload
from orchestrator.replay.sweep.axes import Axis, parse_axes
from orchestrator.replay.sweep.cluster import CellFailed, local_cluster
from orchestrator.replay.sweep.content import code_digest, scenario_digest
from orchestrator.replay.sweep.figures import Figures, replay_figures
from orchestrator.replay.sweep.grid import Cell, point_text, replay_cells
from orchestrator.replay.sweep.page import write_html
from orchestrator.replay.sweep.record import record
from orchestrator.replay.sweep.store import Head, Store
from orchestrator.replay.sweep.swept import near_policy, swept
from orchestrator.replay.sweep.table import tables
from workers.engines.models import cache_dir

SweepOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Over a grid instead of once, such as link.bandwidth=5..100Gbps,"
        "link.distance_km=0..8000/5; a list is 5|10|20Gbps."
    ),
]
ResumeOption = Annotated[
    Path | None,
    typer.Option(
        help="Where a sweep's results are kept, and those of one that was interrupted are found. "
        "Default: in the user's cache, by what the scenario says."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How a sweep is run and told. `jobs` None: as many as cores."""

    resume: Path | None
    jobs: int | None
    html: Path | None
    output: Format


def sweep_replay(
    scenario: Scenario, policies: Sequence[Compared], texts: Sequence[str], how: How
) -> None:
    """Replay the policies at every point. Raises UserError."""
    axes = parse_axes(texts, scenario)
    cells = replay_cells(scenario, policies, axes)
    sweep_over(
        "replay",
        scenario,
        axes,
        cells,
        replay_figures,
        near=near_policy(scenario, policies),
        how=how,
    )


def sweep_over(
    kind: str,
    scenario: Scenario,
    axes: tuple[Axis, ...],
    cells: Sequence[Cell],
    run_cell: Callable[[Cell], Figures],
    *,
    near: str,
    how: How,
) -> None:
    """Compute the cells that are not known yet, and show all. Raises UserError."""
    if how.html is not None:
        check_writable(how.html)
    head = Head(
        kind=kind,
        name=scenario.name,
        content=scenario_digest(scenario),
        code=code_digest(),
    )
    with Store(how.resume or _default_file(head), head) as store:
        left = list({cell.key: cell for cell in cells if cell.key not in store.figures}.values())
        distinct = len({cell.key for cell in cells})
        if len(left) < distinct:
            tell(f"{distinct - len(left)} of {distinct} cells are in {store.path} already")
        if left:
            _compute(left, distinct, run_cell, store, axes, how.jobs or os.cpu_count() or 1)
        facts = about(scenario, make_workload(scenario))
        found = swept(
            title=facts.title,
            facts=facts.facts + tuple((f"swept {axis.title}", axis.span) for axis in axes),
            axes=axes,
            near=near,
            cells=cells,
            known=store.figures,
        )
    if how.html is not None:
        write_html(how.html, found)
        tell(f"{how.html}: {how.html.stat().st_size / 1e6:.1f} MB, to be opened in a browser")
    if how.output is Format.JSON:
        print_json(record(found) | {"file": str(store.path)})
        return
    console = Console()
    console.print(found.title, markup=False, highlight=False)
    for title, table in tables(found):
        console.print(title, markup=False, highlight=False)
        console.print(table)


def check_writable(html: Path) -> None:
    """Before the work, not after it. Raises UserError."""
    if html.is_dir() or not os.access(html if html.exists() else html.absolute().parent, os.W_OK):
        raise UserError(f"--html: {html} cannot be written")


def _default_file(head: Head) -> Path:
    """Another scenario, or another version of us, has another one."""
    return (
        cache_dir() / "sweeps" / f"{head.kind}-{head.name}-{head.content[:8]}{head.code[:8]}.jsonl"
    )


def _compute(
    left: Sequence[Cell],
    distinct: int,
    run_cell: Callable[[Cell], Figures],
    store: Store,
    axes: Sequence[Axis],
    jobs: int,
) -> None:
    """Raises CellFailed."""
    jobs = min(jobs, len(left))
    try:
        with _progress(distinct, distinct - len(left)) as one_more, local_cluster(jobs) as cluster:

            def done(cell: Cell, figures: Figures) -> None:
                at = {axis.title: axis.text(v) for axis, v in zip(axes, cell.point, strict=True)}
                store.add(cell.key, figures, {"policy": cell.policy, "at": at})
                one_more()

            cluster.compute(left, run_cell, done)
    except BaseException as error:
        known = sum(cell.key in store.figures for cell in left) + distinct - len(left)
        tell(
            f"{known} of {distinct} cells are in {store.path}; the same command goes on from there"
        )
        if isinstance(error, CellFailed):
            where = f"{error.cell.policy} at {point_text(axes, error.cell.point)}"
            raise CellFailed(error.cell, f"{where}: {error}") from error
        raise


@contextmanager
def _progress(count: int, known: int) -> Iterator[Callable[[], None]]:
    """A bar on standard error, gone when all is done; what is given counts a cell."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f} of {task.total:.0f} cells"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task("sweep", total=count, completed=known)
    with bar:
        yield lambda: bar.advance(task)
