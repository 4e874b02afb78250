"""A plan as one page, which asks nothing of any network."""

from importlib.resources import files
from pathlib import Path
from typing import Any

from orchestrator.plan.explain import Explanation
from orchestrator.plan.record import to_record
from orchestrator.plan.search import Plan
from orchestrator.replay.report.about import About
from orchestrator.replay.report.render import render, report_part


def write_html(path: Path, plan: Plan, why: Explanation, about: About) -> None:
    """Write the page. Raises OSError if it cannot be written."""
    path.write_text(page(plan, why, about), encoding="utf-8")


def page(plan: Plan, why: Explanation, about: About) -> str:
    """The whole page. Names and texts of the user's are shown, never run."""
    return render(
        title=about.title,
        body=_part("plan.html"),
        script=report_part("elements.js") + report_part("plots.js") + _part("plan.js"),
        data=_data(plan, why, about),
    )


def _data(plan: Plan, why: Explanation, about: About) -> dict[str, Any]:
    """The record, and what each pool has to give."""
    return to_record(plan, why) | {
        "facts": about.facts,
        "policies": [],
        "pools": [
            {"name": pool.name, "chip": pool.chip, "chips": pool.chips}
            for pool in plan.problem.pools
        ],
    }


def _part(name: str) -> str:
    return files("orchestrator.replay.planning.parts").joinpath(name).read_text(encoding="utf-8")
