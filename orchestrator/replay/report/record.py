"""Policies side by side, for programs."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from orchestrator.replay.report.about import About
from orchestrator.replay.report.metrics import Goal, Summary


def record(summaries: Sequence[Summary], goal: Goal, about: About) -> dict[str, Any]:
    """What `-o json` prints, of plain values.

    {"title", "facts": {name: text}, "faults": [{"text", "at_s", "until_s"}],
    "slo": {"ttft_s", "tpot_s", "second_token_s"}, "policies": [a `Summary`'s fields]}.
    Keys are only ever added; seconds, bytes/1e9, and parts of 1; null is what was not there to be
    measured.
    """
    return {
        "title": about.title,
        "facts": dict(about.facts),
        "faults": [asdict(fault) for fault in about.faults],
        "slo": asdict(goal),
        "policies": [asdict(summary) for summary in summaries],
    }
