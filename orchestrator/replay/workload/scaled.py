"""A part of a workload, faster or slower; and what a workload looks like in figures."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from statistics import quantiles

from orchestrator.replay.workload.request import BadLine, TraceRequest, Workload, WorkloadError


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """The first `limit` requests of `inner`, coming `factor` times as fast. See `Workload`."""

    inner: Workload
    factor: float = 1.0
    limit: int | None = None

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise WorkloadError(f"a workload cannot come {self.factor:g} times as fast")
        if self.limit is not None and self.limit < 1:
            raise WorkloadError(f"at least one request must be taken, not {self.limit}")

    @property
    def block_tokens(self) -> int:
        return self.inner.block_tokens

    @property
    def bad(self) -> tuple[BadLine, ...]:
        return self.inner.bad

    def requests(self) -> Iterator[TraceRequest]:
        for request in islice(self.inner.requests(), self.limit):
            yield replace(request, at=request.at / self.factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Figures of a workload. `known`: the part of all prompt tokens that a cache without bounds
    would have seen before. Lengths as (mean, p50, p90, p99)."""

    requests: int
    seconds: float
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
