"""`pdd bench overload`: the short form, and how its figures come about."""

import json

import pytest

from benchmarks.reliability.asking import WHOLE, Answer
from benchmarks.reliability.overload import LOADS, Offered
from orchestrator.cli.main import run


@pytest.mark.timeout(600)
def test_goodput_stays_and_what_is_refused_is_told_when_to_come(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["bench", "overload", "--seconds", "3", "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    loads = {load["load"]: load for load in told["loads"]}
    assert tuple(loads) == LOADS
    assert loads[10.0]["refused"] > 0
    tenants = told["tenants"]
    for row in (*loads.values(), told["giants"]["beside"], *tenants.values()):
        assert row["without_retry_after"] == 0
        assert row["other"] == {}, "neither hung nor cut off nor wrong"
        assert row["whole"] > 0
    assert set(told["giants"]["giants"]) == {WHOLE}
    refused = {
        name: row["refused"] / (row["refused"] + row["whole"]) for name, row in tenants.items()
    }
    assert refused["modest"] < refused["greedy"] / 2, "it asks for no more than its share"


def test_figures_of_what_was_offered() -> None:
    def answer(outcome: str, status: int, at: float, took: float, **more: object) -> Answer:
        return Answer(outcome=outcome, status=status, asked_at=at, ended_at=at + took, **more)

    offered = Offered(
        seconds=2.0,
        answers=[
            answer(WHOLE, 200, 0.0, 1.0, token_times=[0.25, 1.0]),
            answer(WHOLE, 200, 1.0, 3.0, token_times=[0.75, 3.0]),
            answer("overloaded", 503, 1.5, 0.01, retry_after="1"),
            answer("overloaded", 503, 1.5, 0.01),
            answer("hangs", 200, 1.5, 150.0),
        ],
    )
    told = offered.describe()
    assert told["offered_per_s"] == 2.5
    assert told["goodput_per_s"] == 0.5, "it took until the last end"
    assert told["ttft_p50_s"] == pytest.approx(0.5)
    assert (told["whole"], told["refused"], told["without_retry_after"]) == (2, 2, 1)
    assert told["other"] == {"hangs": 1}
