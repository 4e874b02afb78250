"""A sweep for programs."""

from typing import Any

from orchestrator.replay.sweep.report.breakeven import break_evens, text
from orchestrator.replay.sweep.swept import Swept


def record(swept: Swept) -> dict[str, Any]:
    """What `-o json` prints, of plain values.

    {"title", "facts", "axes": [{"parameter", "unit", "log", "values"}], "policies", "near",
    "measure": which figure says whether one pays, "cells": [{"at": [a value of each axis],
    "policies": {name: {figure: value}}}], "break_even": [{"policy", "along": a parameter, "at":
    {the other parameters: value}, "pays": [[from, to]], "text"}]}. Keys are only ever added; null
    as an end of what pays: beyond the axis; null else: what was not there to be measured.
    """
    axes = swept.axes
    return {
        "title": swept.title,
        "facts": dict(swept.facts),
        "axes": [
            {"parameter": a.title, "unit": a.unit, "log": a.log, "values": a.values} for a in axes
        ],
        "policies": swept.policies,
        "near": swept.near,
        "measure": swept.measure,
        "cells": [
            {
                "at": point,
                "policies": {policy: swept.figures[point, policy] for policy in swept.policies},
            }
            for point in swept.points
        ],
        "break_even": [
            {
                "policy": found.policy,
                "along": axes[found.axis].title,
                "at": {axes[place].title: value for place, value in found.others},
                "pays": found.windows,
                "text": text(found, axes),
            }
            for found in break_evens(swept)
        ],
    }
