"""From where on the far site pays, by hand."""

import re
from io import StringIO

import pytest
from rich.console import Console

from orchestrator.replay.scenario.load import load_scenario
from orchestrator.replay.scenario.schema import Scenario
from orchestrator.replay.sweep.report.breakeven import Window, break_evens, text, windows
from orchestrator.replay.sweep.report.record import record
from orchestrator.replay.sweep.report.table import tables
from orchestrator.replay.sweep.swept import near_policy
from tests.orchestrator.replay.sweep.grids import DISTANCE, SPEED, grid


@pytest.mark.parametrize(
    ("gains", "by_ratio", "found"),
    [
        ([-1, -1, 1], False, [(30, None)]),  # half way between 20 and 40
        ([-1, -1, 3], False, [(25, None)]),
        ([-1, -1, 1], True, [(28.284271, None)]),
        ([1, -1, -1], False, [(None, 15)]),
        ([-1, 1, -1], False, [(15, 30)]),
        ([1, -1, 1], False, [(None, 15), (30, None)]),
        ([1, 1, 1], True, [(None, None)]),
        ([-1, 0, -1], False, []),  # the same is no gain
        ([0, 0, 2], False, [(20, None)]),
        ([None, 1, 1], False, [(20, None)]),  # unknown before
        ([1, None, None], False, [(None, 10)]),
        ([None, None, None], False, []),
    ],
)
def test_windows(gains: list[float | None], by_ratio: bool, found: list[Window]) -> None:
    got = list(windows((10, 20, 40), gains, by_ratio=by_ratio))
    assert [edge for window in got for edge in window] == [
        edge if edge is None else pytest.approx(edge) for window in found for edge in window
    ]


def test_from_zero_on_an_axis_that_is_even_in_ratio_but_begins_at_none() -> None:
    assert list(windows((0, 10), (-1, 1), by_ratio=True)) == [(5, None)]


def test_along_each_axis_at_each_value_of_the_other() -> None:
    # Far gives bandwidth / 10 - distance / 4000 more than near.
    swept = grid(lambda speed, distance: speed / 10 - distance / 4000)
    found = {(each.policy, each.axis, each.others): each for each in break_evens(swept)}
    assert len(found) == len(DISTANCE.values) + len(SPEED.values)
    at = {km: found["relay", 0, ((1, km),)] for km in DISTANCE.values}
    assert at[0.0].windows == ((None, None),)
    ((begin, end),) = at[4000.0].windows
    assert end is None
    assert 5 < begin < 20  # that it is 10 is not seen from 5 and 20
    assert [text(each, swept.axes) for each in at.values()] == [
        "everywhere",
        f"from {begin:.3g} Gbps on",
        "from 20 Gbps on",
    ]
    over = [found["relay", 1, ((0, gbps),)].windows for gbps in SPEED.values]
    assert over == [((None, 2000.0),), ((None, 8000.0),), ((None, None),)]
    assert text(found["relay", 1, ((0, 5.0),)], swept.axes) == "up to 2000 km"


def test_the_record() -> None:
    told = record(grid(lambda speed, distance: speed - 19))
    assert told["near"] == "local"
    assert told["measure"] == "goodput_per_cost"
    assert told["axes"][0]["parameter"] == "link.bandwidth"
    assert told["axes"][0]["values"] == (5.0, 20.0, 80.0)
    assert [cell["at"] for cell in told["cells"][:2]] == [(5.0, 0.0), (5.0, 4000.0)]
    assert told["cells"][0]["policies"]["relay"]["goodput_per_cost"] == 100.0 - 14
    assert told["break_even"][0] == {
        "policy": "relay",
        "along": "link.bandwidth",
        "at": {"link.distance_km": 0.0},
        "pays": ((pytest.approx(18.2, abs=0.1), None),),
        "text": "from 18.2 Gbps on",
    }


def test_without_prices_goodput_decides() -> None:
    swept = grid(lambda speed, distance: 1, prices=False)
    assert swept.measure == "goodput_per_s"
    assert swept.gain((5.0, 0.0), "relay") == 1


def test_the_tables_in_80_columns() -> None:
    console = Console(width=80, record=True, file=StringIO())
    for title, table in tables(grid(lambda speed, km: speed - 19 - km / 1000)):
        console.print(title)
        console.print(table)
    told = console.export_text()
    assert "where along link.bandwidth, 5 Gbps to 80 Gbps, it pays more than local\n" in told
    assert re.search(r"80 Gbps +0 km +100 +161 \*", told)
    assert re.search(r"20 Gbps +up to 1000 km", told)
    assert re.search(r"8000 km +from [\d.]+ Gbps on", told)


def test_which_policy_needs_no_line() -> None:
    two, three = load_scenario("hami-shenzhen-20g"), load_scenario("three-sites")

    def near(scenario: Scenario) -> str:
        return near_policy(scenario, scenario.file.policies)

    assert near(two) == "local"
    assert near(three) == "direct"  # none does; the first
    file = two.file
    renamed = tuple(
        policy.model_copy(update={"name": f"p{number}", "route": policy.route and "auto"})
        for number, policy in enumerate(reversed(file.policies))
    )
    assert near(two.with_file(file.model_copy(update={"policies": renamed}))) == "p3"  # one site
