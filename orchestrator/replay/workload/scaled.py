"""A part of a workload, faster or slower; and what a workload looks like in figures."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from math import inf
from statistics import quantiles

from orchestrator.replay.workload.request import BadLine, TraceRequest, Workload, WorkloadError


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """Of `inner` the first `limit` requests after `offset`, `factor` times as fast. See `Workload`.

    All of that comes `repeats` times: each time from others, who have sessions and blocks of their
    own, one mean gap after the time before. The first request comes when it did in `inner`, or at 0
    when there is an offset.
    """

    inner: Workload
    factor: float = 1.0
    limit: int | None = None
    offset: int = 0
    repeats: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.factor < inf:
            raise WorkloadError(f"a workload cannot come {self.factor:g} times as fast")
        if self.limit is not None and self.limit < 1:
            raise WorkloadError(f"at least one request must be taken, not {self.limit}")
        if self.offset < 0 or self.repeats < 1:
            raise WorkloadError(
                f"offset {self.offset}, repeats {self.repeats}: must be at least 0 and 1"
            )

    @property
    def block_tokens(self) -> int:
        return self.inner.block_tokens

    @property
    def bad(self) -> tuple[BadLine, ...]:
        return self.inner.bad

    def requests(self) -> Iterator[TraceRequest]:
        if self.repeats == 1:
            yield from self._part()
            return
        count, last, low, high = 0, 0.0, 0, 0
        for request in self._part():
            count, last = count + 1, request.at
            low, high = min(low, *request.blocks, 0), max(high, *request.blocks, 0)
            yield request
        each_s = last * count / (count - 1) if count > 1 else last
        names = high - low + 1
        for time in range(1, self.repeats):
            for request in self._part():
                yield replace(
                    request,
                    at=request.at + time * each_s,
                    blocks=tuple(block + time * names for block in request.blocks),
                    session=None if request.session is None else f"{request.session}/{time}",
                )

    def _part(self) -> Iterator[TraceRequest]:
        until = None if self.limit is None else self.offset + self.limit
        start: float | None = None if self.offset else 0.0
        for request in islice(self.inner.requests(), self.offset, until):
            if start is None:
                start = request.at
            yield replace(request, at=(request.at - start) / self.factor)


def scaled(
    workload: Workload,
    *,
    per_s: float,
    limit: int | None = None,
    offset: int = 0,
    repeats: int = 1,
) -> Scaled:
    """`Scaled` to so many requests a second on average; goes through all of it once.

    Raises WorkloadError where there is no rate to change: less than two moments.
    """
    same = Scaled(inner=workload, limit=limit, offset=offset)
    count, first, last = 0, 0.0, 0.0
    for request in same.requests():
        first = request.at if not count else first
        count, last = count + 1, request.at
    if last <= first:
        raise WorkloadError(f"{count} requests that all come at once have no rate")
    factor = per_s * (last - first) / (count - 1)
    return replace(same, factor=factor, repeats=repeats)


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
