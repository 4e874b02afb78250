"""What a workload looks like in figures."""

from dataclasses import dataclass
from statistics import quantiles

from orchestrator.replay.workload.request import Workload, WorkloadError


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Figures of a workload. `per_s`: None where all come at once. `known`: the part of all prompt
    tokens that a cache without bounds would have seen before. Lengths as (mean, p50, p90, p99)."""

    requests: int
    seconds: float
    per_s: float | None
    prompt: tuple[float, float, float, float]
    output: tuple[float, float, float, float]
    known: float
    bad: int


def describe(workload: Workload) -> Description:
    """Goes through all of it. Raises WorkloadError if there is no request."""
    prompts, outputs = [], []
    seen: set[int] = set()
    known, last = 0, 0.0
    for request in workload.requests():
        prompts.append(request.prompt)
        outputs.append(request.output)
        last = request.at
        depth = 0
        for block in request.blocks:
            if block not in seen:
                break
            depth += 1
        known += depth * workload.block_tokens
        seen.update(request.blocks[depth:])
    if not prompts:
        raise WorkloadError("there is no request in this workload")
    return Description(
        requests=len(prompts),
        seconds=last,
        per_s=len(prompts) / last if last else None,
        prompt=_lengths(prompts),
        output=_lengths(outputs),
        known=known / sum(prompts),
        bad=len(workload.bad),
    )


def _lengths(values: list[int]) -> tuple[float, float, float, float]:
    mean = sum(values) / len(values)
    if len(values) == 1:
        return mean, mean, mean, mean
    cuts = quantiles(values, n=100, method="inclusive")
    return mean, cuts[49], cuts[89], cuts[98]
