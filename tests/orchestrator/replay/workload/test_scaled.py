"""Parts of a workload, faster, slower and again; and its figures."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from orchestrator.replay.workload.request import BadLine, TraceRequest, WorkloadError
from orchestrator.replay.workload.scaled import Scaled
from tests.orchestrator.replay.workload.description import describe


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


def times(workload: Scaled) -> list[float]:
    return [request.at for request in workload.requests()]


def test_factor_and_limit() -> None:
    assert times(Scaled(inner=FOUR, factor=0.5, limit=2)) == [2.0, 4.0]
    part = Scaled(inner=FOUR, limit=2)
    assert [request.prompt for request in part.requests()] == [25, 20]
    assert list(part.requests()) == list(part.requests())
    assert (part.bad, part.block_tokens) == (FOUR.bad, 10)


def test_the_impossible_is_refused() -> None:
    for factor in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(WorkloadError, match="times as fast"):
            Scaled(inner=FOUR, factor=factor)
    with pytest.raises(WorkloadError, match="not 0"):
        Scaled(inner=FOUR, limit=0)


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
