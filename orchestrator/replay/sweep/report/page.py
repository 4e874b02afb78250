"""A sweep as one page, which asks nothing of any network."""

from importlib.resources import files
from pathlib import Path
from typing import Any

from orchestrator.replay.report.render import render, report_part
from orchestrator.replay.sweep.report.record import record
from orchestrator.replay.sweep.swept import Swept


def write_html(path: Path, swept: Swept) -> None:
    """Write the page. Raises OSError if it cannot be written."""
    path.write_text(page(swept), encoding="utf-8")


def page(swept: Swept) -> str:
    """The whole page. Names and texts of the user's are shown, never run."""
    return render(
        title=swept.title,
        body=_part("sweep.html"),
        script=report_part("elements.js") + report_part("plots.js") + _part("sweep.js"),
        data=_data(swept),
    )


def _data(swept: Swept) -> dict[str, Any]:
    """The record, with cells as plain lists in the order of the points."""
    told = record(swept)
    return told | {
        "facts": swept.facts,
        "policies": [{"policy": name} for name in swept.policies],
        "far": swept.far,
        "texts": [[axis.text(value) for value in axis.values] for axis in swept.axes],
    }


def _part(name: str) -> str:
    return (
        files("orchestrator.replay.sweep.report.parts").joinpath(name).read_text(encoding="utf-8")
    )
