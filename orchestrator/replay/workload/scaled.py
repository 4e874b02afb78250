"""A part of a workload, faster or slower."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from math import inf

from orchestrator.replay.workload.request import Around, TraceRequest, WorkloadError


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled(Around):
    """The first `limit` requests of `inner`, `factor` times as fast. See `Workload`."""

    factor: float = 1.0
    limit: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.factor < inf:
            raise WorkloadError(f"a workload cannot come {self.factor:g} times as fast")
        if self.limit is not None and self.limit < 1:
            raise WorkloadError(f"at least one request must be taken, not {self.limit}")

    def requests(self) -> Iterator[TraceRequest]:
        for request in islice(self.inner.requests(), self.limit):
            yield replace(request, at=request.at / self.factor)
