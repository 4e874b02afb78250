"""Policies side by side as one page, which asks nothing of any network."""

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import orjson
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from orchestrator.replay.report import curves
from orchestrator.replay.report.about import About
from orchestrator.replay.report.metrics import Goal, Run, summarise
from orchestrator.replay.report.record import record
from orchestrator.replay.report.table import cells

_SCRIPTS = ("texts.js", "figures.js", "request.js", "page.js")
# Inside <script> nothing may end it early; these two ends of lines are none in JSON.
_ESCAPES = {character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def write_html(path: Path, runs: Sequence[Run], goal: Goal, about: About) -> None:
    """Write the page. Raises OSError if it cannot be written."""
    path.write_text(page(runs, goal, about), encoding="utf-8")


def page(runs: Sequence[Run], goal: Goal, about: About) -> str:
    """The whole page. Names and texts of the user's are shown, never run."""
    template = Template(_part("page.html"))
    return template.substitute(
        title=escape(about.title),
        style=_part("page.css"),
        plotly=get_plotlyjs(),
        data=_json_for_script(_data(runs, goal, about)),
        script="".join(_part(name) for name in _SCRIPTS),
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


def _json_for_script(value: object) -> str:
    text = orjson.dumps(value).decode()
    for character, escaped in _ESCAPES.items():
        text = text.replace(character, escaped)
    return text


def _part(name: str) -> str:
    return files("orchestrator.replay.report.parts").joinpath(name).read_text(encoding="utf-8")
