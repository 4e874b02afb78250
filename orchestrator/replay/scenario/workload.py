"""From a scenario's workload section to requests."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.replay.scenario.schema import FaultSection, Generate, Scenario, WorkloadSection
from orchestrator.replay.scenario.schema import Lengths as LengthsSection
from orchestrator.replay.workload.draws import (
    NARROW,
    SKEWED,
    Arrivals,
    Burst,
    Hits,
    Lengths,
    fixed,
)
from orchestrator.replay.workload.generated import Generated, pdd
from orchestrator.replay.workload.request import Around, TraceRequest, Workload, WorkloadError
from orchestrator.replay.workload.scaled import Scaled
from orchestrator.replay.workload.traces import Trace, read_trace
from workers.api.messages import Role

WARM_S = 10.0  # KV of whole documents has crossed the line by then
HITS = {"skewed": SKEWED, "narrow": NARROW}


@dataclass(frozen=True, slots=True)
class Hot(Around):
    """`inner`, of which in each window (from, until, factor) so many times as much comes.

    The requests are the same: those of a window's later times come in it already, and all that
    follow come sooner.
    """

    windows: tuple[tuple[float, float, float], ...]

    def requests(self) -> Iterator[TraceRequest]:
        for request in self.inner.requests():
            yield replace(request, at=self._moved(request.at))

    def _moved(self, at: float) -> float:
        """When what came at `at` comes now."""
        now, left = 0.0, at
        for begin, end, factor in self.windows:
            if left <= begin - now:
                break
            left -= begin - now
            if left <= (end - begin) * factor:
                return begin + left / factor
            left -= (end - begin) * factor
            now = end
        return now + left


@dataclass(frozen=True, slots=True)
class Warmed(Around):
    """`inner` after `count` requests that bring each of `source`'s documents into the caches.

    They are the first ones. WARM_S apart `times` ask for one document at once, so that each goes to
    a worker of its own.
    """

    source: Generated
    times: int

    @property
    def count(self) -> int:
        return self.source.documents * self.times

    def requests(self) -> Iterator[TraceRequest]:
        tokens = round(self.source.prompt.mean)
        for document in range(self.source.documents):
            blocks = self.source.document(document, tokens // self.block_tokens)
            for _ in range(self.times):
                yield TraceRequest(at=document * WARM_S, prompt=tokens, output=2, blocks=blocks)
        for request in self.inner.requests():
            yield replace(request, at=request.at + warming_s(self))


def warming(workload: Workload) -> int:
    """How many of the first requests only warm the caches."""
    return workload.count if isinstance(workload, Warmed) else 0


def warming_s(workload: Workload) -> float:
    """How long that takes; only then begins what the scenario speaks of."""
    return workload.source.documents * WARM_S if isinstance(workload, Warmed) else 0.0


def make_workload(scenario: Scenario) -> Workload:
    """What is asked, hot spots included. Raises UserError for a trace that cannot be read."""
    file = scenario.file
    try:
        source = workload = _source(file.workload, scenario.directory, file.seed)
        if file.workload.limit is not None:
            workload = Scaled(inner=workload, limit=file.workload.limit)
    except (WorkloadError, ValueError) as error:
        raise UserError(f"workload: {error}") from None
    windows = tuple(_windows(file.faults))
    if windows:
        workload = Hot(workload, windows)
    if file.workload.warm and isinstance(source, Generated):
        return Warmed(workload, source, times=_most_workers(scenario))
    return workload


def _most_workers(scenario: Scenario) -> int:
    """Of one role, in any of the policies' topologies."""
    counts: Counter[tuple[str, Role]] = Counter()
    for policy in scenario.file.policies:
        for site in scenario.topology(policy).sites.values():
            for pool in site.pools.values():
                counts.update({(policy.name, role): pool.instances for role in pool.roles})
    return max(counts.values())


def expected_requests(workload: Workload) -> int | None:
    """How many there will be, about; None: nobody knows."""
    match workload:
        case Hot(inner=inner):
            return expected_requests(inner)
        case Warmed(inner=inner, count=count):
            asked = expected_requests(inner)
            return None if asked is None else asked + count
        case Scaled(inner=inner, limit=limit):
            return _least(limit, expected_requests(inner))
        case Trace(rows=rows):
            return len(rows)
        case Generated(count=count, duration_s=duration_s, arrivals=arrivals, turns=turns):
            if duration_s is None:
                return count
            bursts = sum((b.end - b.begin) * (b.factor - 1) for b in arrivals.bursts)
            return _least(count, int(arrivals.per_s * (duration_s + bursts) * turns))
    return None


def _least(*counts: int | None) -> int | None:
    return min((count for count in counts if count is not None), default=None)


def _source(section: WorkloadSection, directory: Path, seed: int) -> Workload:
    rate = section.rate_per_s
    if section.trace is not None:
        trace = read_trace(directory / Path(section.trace).expanduser(), section.format)
        span = trace.rows[-1].at
        if rate is None:
            return trace
        if not span:
            raise WorkloadError(f"{section.trace}: all of it comes at once, so it has no rate")
        return Scaled(inner=trace, factor=rate * span / len(trace.rows))
    if section.generated is not None:
        made = _generated(section.generated, seed)
    else:
        made = pdd(narrow=section.preset == "pdd-narrow", seed=seed)
        if section.output is not None:
            made = replace(made, output=_lengths(section.output))
    if rate is not None:
        made = replace(made, arrivals=replace(made.arrivals, per_s=rate))
    return made


def _generated(section: Generate, seed: int) -> Generated:
    return Generated(
        arrivals=Arrivals(
            per_s=section.rate_per_s,
            process=section.arrivals,
            cv=section.cv or 1.0,
            bursts=tuple(Burst(b.at_s, b.until_s, b.factor) for b in section.bursts),
        ),
        prompt=_lengths(section.prompt),
        output=_lengths(section.output),
        count=section.count,
        duration_s=section.duration_s,
        hits=_hits(section.hits),
        documents=section.documents,
        turns=section.turns,
        turn=_lengths(section.turn),
        think_s=section.think_s,
        seed=seed,
    )


def _lengths(section: LengthsSection) -> Lengths:
    return Lengths(mean=section.mean, cv=section.cv, least=section.least, most=section.most)


def _hits(known: float | str) -> Hits:
    return HITS[known] if isinstance(known, str) else fixed(known)


def _windows(faults: Iterable[FaultSection]) -> Iterator[tuple[float, float, float]]:
    hot = [fault for fault in faults if fault.kind == "hot_spot"]
    for fault in sorted(hot, key=lambda fault: fault.at_s):
        assert fault.until_s is not None
        assert fault.factor is not None
        yield fault.at_s, fault.until_s, fault.factor
