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
from orchestrator.replay.sweep.axes.grammar import Axis, parse_axes
from orchestrator.replay.sweep.cluster import CellFailed, local_cluster
from orchestrator.replay.sweep.content import code_digest, scenario_digest
from orchestrator.replay.sweep.figures import Figures, replay_figures
from orchestrator.replay.sweep.grid import Cell, point_text, replay_cells
from orchestrator.replay.sweep.report.page import write_html
from orchestrator.replay.sweep.report.record import record
from orchestrator.replay.sweep.report.table import tables
from orchestrator.replay.sweep.store import Head, Store
from orchestrator.replay.sweep.swept import Swept, near_policy, swept
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
    """Replay the policies at every point. Raises UserError and CellFailed."""
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
    """Compute the cells that are not known yet, and show all. Raises UserError and CellFailed."""
    if how.html is not None:
        check_writable(how.html)
    content, code = scenario_digest(scenario), code_digest()
    head = Head(kind=kind, name=scenario.name, content=content, code=code)
    with Store(how.resume or _default_file(head), head) as store:
        _fill(store, cells, run_cell, axes, how.jobs or os.cpu_count() or 1)
        facts = about(scenario, make_workload(scenario))
        found = swept(
            title=facts.title,
            facts=facts.facts + tuple((f"swept {axis.title}", axis.span) for axis in axes),
            axes=axes,
            near=near,
            cells=cells,
            known=store.figures,
        )
    _show(found, store.path, how)


def _show(found: Swept, kept: Path, how: How) -> None:
    """As the options say; `kept`: the file of its results."""
    if how.html is not None:
        write_html(how.html, found)
        tell(f"{how.html}: {how.html.stat().st_size / 1e6:.1f} MB, to be opened in a browser")
    if how.output is Format.JSON:
        print_json(record(found) | {"file": str(kept)})
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
    name = f"{head.kind}-{head.name}-{head.content[:8]}{head.code[:8]}.jsonl"
    return cache_dir() / "sweeps" / name


def _fill(
    store: Store,
    cells: Sequence[Cell],
    run_cell: Callable[[Cell], Figures],
    axes: Sequence[Axis],
    jobs: int,
) -> None:
    """Compute what the store lacks; what is there before an interruption stays.

    Raises CellFailed, with the policy and the point.
    """
    distinct = {cell.key: cell for cell in cells}
    left = [cell for key, cell in distinct.items() if key not in store.figures]
    known = len(distinct) - len(left)
    if known:
        tell(f"{known} of {len(distinct)} cells are in {store.path} already")
    if not left:
        return
    try:
        with (
            _progress(len(distinct), known) as one_more,
            local_cluster(min(jobs, len(left))) as cluster,
        ):

            def done(cell: Cell, figures: Figures) -> None:
                at = {axis.title: axis.text(v) for axis, v in zip(axes, cell.point, strict=True)}
                store.add(cell.key, figures, {"policy": cell.policy, "at": at})
                one_more()

            cluster.compute(left, run_cell, done)
    except BaseException as error:
        known = sum(key in store.figures for key in distinct)
        tell(
            f"{known} of {len(distinct)} cells are in {store.path}; the same command goes on "
            "from there"
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
