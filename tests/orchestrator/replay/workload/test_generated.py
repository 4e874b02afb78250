"""Generated workloads against what was asked for."""

import random
from dataclasses import replace
from itertools import islice, pairwise
from statistics import fmean, pstdev

import pytest

from orchestrator.replay.workload.draws import (
    NARROW,
    SKEWED,
    Arrivals,
    Burst,
    Hits,
    Lengths,
    Process,
    fixed,
)
from orchestrator.replay.workload.generated import Generated, pdd
from orchestrator.replay.workload.request import WorkloadError
from tests.orchestrator.replay.workload.description import describe

SMALL = Generated(
    arrivals=Arrivals(per_s=10.0), prompt=Lengths(mean=400), output=Lengths(mean=50), count=4000
)


@pytest.mark.parametrize(
    ("process", "cv", "spread"),
    [(Process.POISSON, 1.0, 1.0), (Process.UNIFORM, 1.0, 0.0), (Process.GAMMA, 2.0, 2.0)],
)
def test_gaps(process: Process, cv: float, spread: float) -> None:
    arrivals = Arrivals(per_s=10.0, process=process, cv=cv)
    times = [0.0, *islice(arrivals.times(random.Random(1)), 20_000)]
    gaps = [b - a for a, b in pairwise(times)]
    assert fmean(gaps) == pytest.approx(0.1, rel=0.05)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(spread, rel=0.05, abs=1e-9)


def test_bursts() -> None:
    bursts = (Burst(100.0, 200.0, 3.0), Burst(300.0, 400.0, 0.0))
    arrivals = Arrivals(per_s=20.0, bursts=bursts)
    times = list(islice(arrivals.times(random.Random(2)), 14_000))
    counts = [sum(a <= t < a + 100 for t in times) for a in (0, 100, 200, 300, 400)]
    assert counts == [
        pytest.approx(2000, rel=0.1),
        pytest.approx(6000, rel=0.1),
        pytest.approx(2000, rel=0.1),
        0,
        pytest.approx(2000, rel=0.1),
    ]
    assert times == sorted(times)


def test_bursts_that_touch() -> None:
    bursts = (Burst(0.0, 100.0, 5.0), Burst(100.0, 200.0, 2.0))
    arrivals = Arrivals(per_s=1.0, process=Process.UNIFORM, bursts=bursts)
    times = list(islice(arrivals.times(random.Random(2)), 800))
    counts = [sum(a < t <= a + 100 for t in times) for a in (0, 100, 200)]
    assert counts == pytest.approx([500, 200, 100], abs=1)  # one may round over an edge


@pytest.mark.parametrize(
    ("hits", "mean", "low", "high"),
    [(fixed(0.5), 0.5, 0.5, 0.5), (NARROW, 0.9, 0.85, 0.95), (SKEWED, 0.9, 0.02, 0.99)],
)
def test_hits(hits: Hits, mean: float, low: float, high: float) -> None:
    draw = random.Random(4)
    drawn = [hits.drawn(draw) for _ in range(20_000)]
    assert fmean(drawn) == pytest.approx(mean, abs=0.01)
    assert low <= min(drawn) <= max(drawn) <= high
    known = describe(replace(SMALL, hits=hits, prompt=Lengths(mean=4000), count=2000)).known
    assert known == pytest.approx(mean, abs=0.02)


def test_turns_contain_what_was_said_before() -> None:
    workload = replace(SMALL, turns=4, count=2000)
    sessions: dict[str, list] = {}
    last = 0.0
    for request in workload.requests():
        assert request.at >= last
        last = request.at
        assert request.session is not None
        sessions.setdefault(request.session, []).append(request)
    assert max(len(turns) for turns in sessions.values()) == 4
    for turns in sessions.values():
        for before, after in pairwise(turns):
            assert after.prompt == before.prompt + before.output + 64
            assert after.blocks[: len(before.blocks)] == before.blocks
            assert after.at >= before.at + before.output / 20.0 + 10.0
    names = [set(turns[0].blocks) for turns in sessions.values()]
    assert sum(map(len, names)) == len(set().union(*names))


def test_the_same_seed_gives_the_same_requests() -> None:
    assert list(SMALL.requests()) == list(SMALL.requests())
    assert list(SMALL.requests()) != list(replace(SMALL, seed=1).requests())


def test_count_and_duration() -> None:
    assert sum(1 for _ in replace(SMALL, count=7).requests()) == 7
    assert all(r.at < 5 for r in replace(SMALL, count=None, duration_s=5.0).requests())
    turns = replace(SMALL, count=None, duration_s=50.0, turns=3)
    assert max(r.at for r in turns.requests()) < 50


@pytest.mark.parametrize("narrow", [False, True])
def test_pdd(narrow: bool) -> None:
    found = describe(pdd(narrow=narrow))
    assert found.prompt[0] == 65_536
    assert found.known == pytest.approx(0.9, abs=0.01)
    assert found.requests == pytest.approx(70.4 * (275 + 15 * 2.7), rel=0.03)


def test_the_impossible_is_refused() -> None:
    with pytest.raises(WorkloadError, match="a count or a duration"):
        replace(SMALL, count=None)
    with pytest.raises(WorkloadError, match="turns: must be at least 1, got 0"):
        replace(SMALL, turns=0)
    with pytest.raises(WorkloadError, match="count: must be at least 1, got 0"):
        replace(SMALL, count=0)
    with pytest.raises(WorkloadError, match="duration_s: must be > 0, got nan"):
        replace(SMALL, duration_s=float("nan"))
    with pytest.raises(WorkloadError, match="tokens_per_s > 0"):
        replace(SMALL, tokens_per_s=0.0)
    with pytest.raises(ValueError, match="x 0"):
        Burst(5, float("inf"), 0)
    with pytest.raises(ValueError, match="must be > 0"):
        Arrivals(per_s=0)
    with pytest.raises(ValueError, match="in order"):
        Arrivals(per_s=1, bursts=(Burst(5, 9, 2), Burst(1, 6, 2)))
    with pytest.raises(ValueError, match="burst from 5 to 2 s"):
        Burst(5, 2, 1)
    with pytest.raises(ValueError, match="lengths of 5 tokens between 10"):
        Lengths(mean=5, least=10)
    with pytest.raises(ValueError, match="from 0 to 1"):
        Hits(((0.0, 0.5), (0.9, 0.6)))
    with pytest.raises(ValueError, match=r"parts must be in \[0, 1\)"):
        fixed(1.0)
