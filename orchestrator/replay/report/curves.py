"""What the page draws: curves of a few hundred points, whatever the number of requests."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from orchestrator.replay.outcome import Outcome, Stage, Use
from orchestrator.replay.report.metrics import (
    METRICS,
    Run,
    end_to_end_s,
    exposed_stall_s,
    second_token_s,
    tpot_s,
    ttft_s,
    values,
)

# Where a distribution is read: evenly, and more finely where few requests wait long.
QUANTILES = np.unique(np.concatenate([np.linspace(0, 1, 251), np.linspace(0.99, 1, 101)]))
USE_POINTS = 200
TIMELINES = 400  # requests

Curve = dict[str, list[float]]


def cdfs(run: Run) -> dict[str, Curve]:
    """Of each metric {"x": seconds, "y": part of the requests that took no longer}."""
    return {name: cdf(values(run.outcomes, name)) for name in METRICS}


def cdf(found: np.ndarray) -> Curve:
    """Of sorted values, at most len(QUANTILES) points."""
    if not len(found):
        return {"x": [], "y": []}
    parts = QUANTILES if len(found) > len(QUANTILES) else np.linspace(0, 1, len(found))
    return {"x": _rounded(np.quantile(found, parts)), "y": _rounded(parts)}


def use(found: Use) -> dict[str, Any]:
    """{"every_s", "samples"}: at most USE_POINTS means, the last over what is left."""
    together = max(1, -(-len(found.samples) // USE_POINTS))
    parts = range(0, len(found.samples), together)
    means = [float(np.mean(found.samples[at : at + together])) for at in parts]
    return {"every_s": found.every_s * together, "samples": _rounded(means)}


def uses(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Each line and pool of any run: {"name", "policies": one per run, None where it is not}."""
    names = dict.fromkeys(name for run in runs for name in run.uses)
    return [
        {"name": name, "policies": [_use(run.uses, name) for run in runs]} for name in sorted(names)
    ]


def timelines(runs: Sequence[Run]) -> dict[str, Any]:
    """The requests whose stages were written down, TIMELINES of them, evenly.

    {"of": how many there were, "requests": [{"name", "asked_at", "prompt", "policies": one per
    run, None where it has none}]}; a policy's has its spans as [stage, where, from, to] in seconds
    from when it was asked. "stall" is a stage too.
    """
    known = [
        {outcome.name: outcome for outcome in run.outcomes if outcome.spans is not None}
        for run in runs
    ]
    names = list(dict.fromkeys(name for outcomes in known for name in outcomes))
    step = max(1, -(-len(names) // TIMELINES))
    return {
        "of": len(names),
        "requests": [
            _request(name, [outcomes.get(name) for outcomes in known]) for name in names[::step]
        ],
    }


def _request(name: str, outcomes: Sequence[Outcome | None]) -> dict[str, Any]:
    one = next(outcome for outcome in outcomes if outcome is not None)
    return {
        "name": name,
        "asked_at": _short(one.asked_at),
        "prompt": one.prompt,
        "policies": [None if outcome is None else _timeline(outcome) for outcome in outcomes],
    }


def _timeline(outcome: Outcome) -> dict[str, Any]:
    return {
        "tokens": outcome.tokens,
        "prefill_hit": outcome.prefill_hit,
        "main_hit": outcome.main_hit,
        "ttft_s": _short(ttft_s(outcome)),
        "second_token_s": _short(second_token_s(outcome)),
        "exposed_stall_s": _short(exposed_stall_s(outcome)),
        "tpot_s": _short(tpot_s(outcome)),
        "end_to_end_s": _short(end_to_end_s(outcome)),
        "spans": _spans(outcome),
    }


def _spans(outcome: Outcome) -> list[list[Any]]:
    """As they are; but of main's, with no relay before it, the part in which it waits for KV."""
    asked_at, stages = outcome.asked_at, {span.stage for span in outcome.spans or ()}
    stall_s = 0.0 if Stage.RELAY in stages else exposed_stall_s(outcome) or 0.0
    spans = []
    for stage, where, began_at, ended_at in outcome.spans or ():
        came_at = min(began_at + stall_s, ended_at) if stage is Stage.MAIN else began_at
        if came_at > began_at:
            spans.append(["stall", where, _short(began_at - asked_at), _short(came_at - asked_at)])
        spans.append([stage.value, where, _short(came_at - asked_at), _short(ended_at - asked_at)])
    return spans


def _use(found: Mapping[str, Use], name: str) -> dict[str, Any] | None:
    return use(found[name]) if name in found else None


def _rounded(found: Iterable[float]) -> list[float]:
    return [float(f"{value:.6g}") for value in found]


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.7g}")
