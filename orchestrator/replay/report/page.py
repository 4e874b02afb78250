"""Policies side by side as one page, which asks nothing of any network."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.replay.report import curves
from orchestrator.replay.report.about import About
from orchestrator.replay.report.metrics import Goal, Run, summarise
from orchestrator.replay.report.record import record
from orchestrator.replay.report.render import render, report_part
from orchestrator.replay.report.table import cells

_SCRIPTS = ("elements.js", "texts.js", "plots.js", "figures.js", "request.js", "page.js")


def write_html(path: Path, runs: Sequence[Run], goal: Goal, about: About) -> None:
    """Write the page. Raises OSError if it cannot be written."""
    path.write_text(page(runs, goal, about), encoding="utf-8")


def page(runs: Sequence[Run], goal: Goal, about: About) -> str:
    """The whole page. Names and texts of the user's are shown, never run."""
    return render(
        title=about.title,
        body=report_part("page.html"),
        script="".join(map(report_part, _SCRIPTS)),
        data=_data(runs, goal, about),
    )


def _data(runs: Sequence[Run], goal: Goal, about: About) -> dict[str, Any]:
    summaries = [summarise(run, goal) for run in runs]
    return record(summaries, goal, about) | {
        "facts": about.facts,
        "rows": cells(summaries),
        "cdfs": [curves.cdfs(run) for run in runs],
        "uses": curves.uses(runs),
        "timelines": curves.timelines(runs),
    }
