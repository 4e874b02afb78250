"""Parts of a workload, faster, slower and again; and its figures."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from orchestrator.replay.workload.draws import Arrivals, Lengths, fixed
from orchestrator.replay.workload.generated import Generated
from orchestrator.replay.workload.request import BadLine, TraceRequest, WorkloadError
from orchestrator.replay.workload.scaled import Scaled, describe, scaled


@dataclass(frozen=True)
class Given:
    rows: tuple[TraceRequest, ...]
    block_tokens: int = 10
    bad: tuple[BadLine, ...] = (BadLine(7, "because"),)

    def requests(self) -> Iterator[TraceRequest]:
        return iter(self.rows)


FOUR = Given(
    (
        TraceRequest(at=1.0, prompt=25, output=1, blocks=(1, 2), session="a"),
        TraceRequest(at=2.0, prompt=20, output=2, blocks=(1, -3)),
        TraceRequest(at=4.0, prompt=35, output=3, blocks=(1, 2, 5)),
        TraceRequest(at=7.0, prompt=20, output=4),
    )
)
MANY = Generated(
    arrivals=Arrivals(per_s=4.0), prompt=Lengths(mean=400), output=Lengths(mean=50), count=2000
)


def times(workload: Scaled) -> list[float]:
    return [request.at for request in workload.requests()]


def test_factor_limit_and_offset() -> None:
    assert times(Scaled(inner=FOUR, factor=0.5, limit=2)) == [2.0, 4.0]
    assert times(Scaled(inner=FOUR, factor=2.0, offset=1)) == [0.0, 1.0, 2.5]
    part = Scaled(inner=FOUR, offset=1, limit=2)
    assert [request.prompt for request in part.requests()] == [20, 35]
    assert list(part.requests()) == list(part.requests())
    assert (part.bad, part.block_tokens) == (FOUR.bad, 10)


def test_repeats_are_others_with_the_same_habits() -> None:
    thrice = list(Scaled(inner=FOUR, offset=1, repeats=3).requests())
    # Requests 2, 3 and 5 s apart from the first: a mean gap of 2.5 s between the times.
    assert [request.at for request in thrice] == [0, 2, 5, 7.5, 9.5, 12.5, 15, 17, 20]
    names = [{b for request in thrice[n : n + 3] for b in request.blocks} for n in (0, 3, 6)]
    assert names[0] == {1, 2, 5, -3}
    assert len(set.union(*names)) == 12
    for n in (3, 6):
        assert thrice[n].blocks[0] == thrice[n + 1].blocks[0]
    twice = list(Scaled(inner=FOUR, limit=1, repeats=2).requests())
    assert [request.session for request in twice] == ["a", "a/1"]
    workload = replace(MANY, hits=fixed(0.5))
    once, again = describe(workload), describe(Scaled(inner=workload, repeats=3))
    assert again.requests == 3 * once.requests
    assert again.known == pytest.approx(once.known, abs=1e-9)
    assert again.per_s == pytest.approx(once.per_s, rel=1e-2)


def test_so_many_a_second() -> None:
    for workload in (scaled(MANY, per_s=10.0), scaled(MANY, per_s=10.0, offset=500, repeats=2)):
        found = describe(workload)
        assert found.per_s == pytest.approx(10.0, rel=0.01)
    assert times(scaled(FOUR, per_s=1.0, limit=3)) == pytest.approx([2 / 3, 4 / 3, 8 / 3])
    with pytest.raises(WorkloadError, match="1 requests that all come at once"):
        scaled(FOUR, per_s=1.0, limit=1)


def test_the_impossible_is_refused() -> None:
    for factor in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(WorkloadError, match="times as fast"):
            Scaled(inner=FOUR, factor=factor)
    with pytest.raises(WorkloadError, match="not 0"):
        Scaled(inner=FOUR, limit=0)
    with pytest.raises(WorkloadError, match="at least 0 and 1"):
        Scaled(inner=FOUR, offset=-1)
    with pytest.raises(WorkloadError, match="at least 0 and 1"):
        Scaled(inner=FOUR, repeats=0)


def test_figures() -> None:
    found = describe(FOUR)
    assert (found.requests, found.seconds, found.bad) == (4, 7.0, 1)
    assert found.per_s == pytest.approx(4 / 7)
    assert found.prompt[:2] == (25.0, 22.5)
    assert found.output[0] == 2.5
    assert found.known == pytest.approx(30 / 100)  # one block of the second, two of the third
    one = describe(Given(FOUR.rows[:1]))
    assert one.prompt == (25, 25, 25, 25)
    assert describe(Given((replace(FOUR.rows[0], at=0.0),))).per_s is None
    with pytest.raises(WorkloadError, match="no request"):
        describe(Given(()))
