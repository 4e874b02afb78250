"""The metrics of a replay against their formulas, worked by hand; and the table of them."""

import pytest
from rich.console import Console

from orchestrator.replay.outcome import Outcome, Use
from orchestrator.replay.report.metrics import (
    Goal,
    Run,
    end_to_end_s,
    exposed_stall_s,
    keeps,
    second_token_s,
    summarise,
    tpot_s,
    ttft_s,
)
from orchestrator.replay.report.table import cells, seconds, table
from orchestrator.state.actions import Fail, Failure
from tests.orchestrator.replay.report import made
from tests.orchestrator.replay.report.made import finished

GOAL = Goal(ttft_s=1.0, tpot_s=0.1)


def outcome(**changes: object) -> Outcome:
    found = Outcome(
        name="r",
        asked_at=10.0,
        prompt=100,
        first_at=10.5,
        second_at=10.9,
        last_at=11.8,
        tokens=11,
        wire_bytes=2e9,
        prefill_hit=25,
        main_hit=50,
        end=finished(),
    )
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def test_formulas() -> None:
    found = outcome()
    assert ttft_s(found) == pytest.approx(0.5)
    assert second_token_s(found) == pytest.approx(0.9)
    assert tpot_s(found) == pytest.approx(1.3 / 10)
    assert exposed_stall_s(found) == pytest.approx(0.4 - 0.9 / 9)
    assert end_to_end_s(found) == pytest.approx(1.8)
    assert keeps(found, Goal(ttft_s=0.51, tpot_s=0.131))
    assert not keeps(found, GOAL)
    assert not keeps(found, Goal(ttft_s=0.4, tpot_s=0.2))
    assert keeps(found, Goal(ttft_s=1.0, tpot_s=1.0, second_token_s=0.91))
    assert not keeps(found, Goal(ttft_s=1.0, tpot_s=1.0, second_token_s=0.89))


def test_one_token_has_no_time_per_token() -> None:
    found = outcome(tokens=1, second_at=None, last_at=10.5)
    assert (tpot_s(found), second_token_s(found), exposed_stall_s(found)) == (None, None, None)
    assert keeps(found, Goal(ttft_s=1.0, tpot_s=0.05, second_token_s=0.5))


def test_a_second_token_that_comes_at_once_is_no_stall() -> None:
    assert exposed_stall_s(outcome(second_at=10.51)) == 0.0


def test_summary() -> None:
    fine = [outcome(last_at=11.4, first_at=10.0 + n / 10, end=finished()) for n in range(1, 5)]
    fine.append(outcome(last_at=11.4, end=finished(relay_tokens=3)))
    failed = outcome(first_at=None, second_at=None, last_at=None, tokens=0)
    failed.end = Fail(request="r", failure=Failure.OVERLOADED, message="full")
    run = Run(
        policy="relay",
        outcomes=[*fine, failed],
        uses={"line:a>b": Use(every_s=1.0, samples=[0.2, 0.4]), "pool:a/b": Use(every_s=1.0)},
        seconds=20.0,
        cost=11.0,
    )
    found = summarise(run, Goal(ttft_s=0.35, tpot_s=0.2))
    assert (found.requests, found.finished) == (6, 5)
    assert found.failed == {Failure.OVERLOADED.value: 1}
    assert found.routes == {"direct": 4, "relay": 1}
    ttft = found.metrics["ttft_s"]
    assert (ttft.n, ttft.mean, ttft.p50) == (5, pytest.approx(0.3), pytest.approx(0.3))
    assert ttft.p90 == pytest.approx(0.46)
    assert found.within_slo == pytest.approx(3 / 6)
    assert found.goodput_per_s == pytest.approx(3 / 20)
    assert found.output_tokens_per_s == pytest.approx(55 / 20)
    assert found.relay_tokens == 3
    assert found.wire_gb == pytest.approx(12.0)
    assert (found.prefill_hit, found.main_hit) == (0.25, 0.5)
    assert found.use == {"line:a>b": pytest.approx(0.3)}
    assert found.cost_per_million_tokens == pytest.approx(11 / 55 * 1e6)
    assert found.goodput_per_cost == pytest.approx(3 / 11)


def test_nothing_finished() -> None:
    found = summarise(Run(policy="none", outcomes=[], uses={}, seconds=0.0), GOAL)
    assert found.metrics["ttft_s"].p50 is None
    assert (found.cost, found.cost_per_million_tokens, found.within_slo) == (None, None, 0.0)


def test_the_table_shows_policies_side_by_side_in_80_columns() -> None:
    slow = Run(policy="direct", outcomes=[outcome()], uses={}, seconds=20.0)
    fast = Run(policy="relay", outcomes=[outcome(second_at=10.6)], uses={}, seconds=20.0, cost=1.0)
    found = [summarise(run, GOAL) for run in (slow, fast)]
    console = Console(width=80, record=True, file=None, force_terminal=False)
    with console.capture() as shown:
        console.print(table(found, GOAL))
    lines = shown.get().splitlines()
    assert max(map(len, lines)) <= 80
    [row] = [line for line in lines if "second token P50" in line]
    assert "900 ms" in row
    assert "600 ms *" in row
    cost = [line.split() for line in lines if line.lstrip().startswith("cost ")]
    assert ["cost", "-", "1"] in cost
    assert "SLO: TTFT 1 s, TPOT 100 ms" in shown.get()


def test_four_policies_fit_80_columns_and_a_name_is_no_markup() -> None:
    runs = [made.run(name) for name in ("local", "[red]direct", "relay", "auto")]
    console = Console(width=80, force_terminal=False)
    with console.capture() as shown:
        console.print(table([summarise(run, GOAL) for run in runs], GOAL))
    lines = shown.get().splitlines()
    assert max(map(len, lines)) <= 80
    assert "[red]direct" in lines[1]
    assert [line for line in lines if line.split()[:4] == ["requests", "finished", "40", "40"]]


def test_what_reads_the_same_is_as_good() -> None:
    slow = outcome(second_at=10.9 + 1e-9)
    found = [
        summarise(Run(policy=name, outcomes=[one], uses={}, seconds=20.0), GOAL)
        for name, one in (("a", outcome()), ("b", slow), ("c", outcome(second_at=11.0)))
    ]
    [row] = [row for row in cells(found) if row.title == "second token P50"]
    assert row.texts == ("900 ms", "900 ms", "1 s")
    assert row.best == (True, True, False)
    [row] = [row for row in cells(found) if row.title == "TTFT P50"]
    assert row.best == (False, False, False)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.0456, "45.6 ms"),
        (0.9996, "1 s"),
        (999.6, "1000 s"),
        (1.234, "1.23 s"),
        (4321.0, "4321 s"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    assert seconds(value) == text
