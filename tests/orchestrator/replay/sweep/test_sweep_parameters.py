"""What each parameter changes, and that nothing else changes with it."""

from itertools import islice
from math import isclose
from pathlib import Path

import pytest

from orchestrator.errors import UserError
from orchestrator.replay.scenario.build import build
from orchestrator.replay.scenario.load import load_scenario
from orchestrator.replay.scenario.prices import Bill, bill
from orchestrator.replay.scenario.schema import Compared, Scenario
from orchestrator.replay.scenario.workload import make_workload
from orchestrator.replay.setup import ReplaySetup
from orchestrator.replay.sweep.axes.grammar import parse_axes
from orchestrator.replay.sweep.content import policy_digest, scenario_digest
from orchestrator.replay.sweep.grid import at_point, points, replay_cells
from orchestrator.replay.workload.request import TraceRequest


@pytest.fixture(scope="module")
def two() -> Scenario:
    return load_scenario("hami-shenzhen-20g")


@pytest.fixture(scope="module")
def three() -> Scenario:
    return load_scenario("three-sites")


def changed(scenario: Scenario, text: str) -> Scenario:
    axes = parse_axes([text], scenario)
    (point,) = points(axes)
    return at_point(scenario, axes, point)


def policy(scenario: Scenario, name: str) -> Compared:
    return next(found for found in scenario.file.policies if found.name == name)


def setup(scenario: Scenario, name: str) -> ReplaySetup:
    return build(scenario, policy(scenario, name))[0]


def paid(scenario: Scenario, name: str) -> Bill:
    return bill(scenario, policy(scenario, name))


def asked(scenario: Scenario) -> list[TraceRequest]:
    return list(islice(make_workload(scenario).requests(), 400))


def test_bandwidth_of_all_lines_and_of_one(three: Scenario) -> None:
    everywhere = setup(changed(three, "link.bandwidth=40Gbps"), "relay").lines
    assert {line.bytes_per_s for line in everywhere} == {5e9}
    one = setup(changed(three, "link[shenzhen-guian].bandwidth=40Gbps"), "relay").lines
    by_ends = {frozenset(line.between): line.bytes_per_s for line in one}
    assert by_ends == {
        frozenset({"ulanqab", "guian"}): 2.5e9,
        frozenset({"ulanqab", "shenzhen"}): 2.5e9,
        frozenset({"guian", "shenzhen"}): 5e9,
    }


@pytest.mark.parametrize(
    ("text", "delay_s"),
    [("link.distance_km=8000", 0.049), ("link.distance_km=0", 0.0), ("link.delay=7ms", 0.007)],
)
def test_distance_and_delay(two: Scenario, text: str, delay_s: float) -> None:
    (line,) = setup(changed(two, text), "direct").lines
    assert isclose(line.delay_s, delay_s)
    assert line.bytes_per_s == 2.5e9


def test_loss(two: Scenario) -> None:
    assert setup(changed(two, "link.loss=0.01"), "direct").lines[0].loss == 0.01


def test_prices_of_a_line(two: Scenario) -> None:
    assert paid(changed(two, "link.rent=730/month"), "relay").lines_per_h == 1.0
    assert paid(changed(two, "link.rent=730/month"), "local").lines_per_h == 0.0
    per_gb = paid(changed(two, "link[hami-shenzhen].price=0.5/GB"), "relay").per_gb
    assert per_gb == {("hami", "shenzhen"): 0.5}
    kept = paid(changed(two, "link.price=0.5/GB"), "relay")
    assert kept.lines_per_h == paid(two, "relay").lines_per_h > 0


def test_prices_of_chips(two: Scenario) -> None:
    # 12 h100 at 2.0/h and 8 h200 at 2.5/h; local: 16 h200.
    assert paid(two, "relay").chips_per_h == 44.0
    assert paid(changed(two, "chip[h100].price=1/h"), "relay").chips_per_h == 32.0
    assert paid(changed(two, "chip[h100].price=1/h"), "local").chips_per_h == 40.0
    relay_only = changed(two, "pool[hami/relay].price=1/h")
    assert paid(relay_only, "relay").chips_per_h == 40.0
    both = changed(relay_only, "chip[h100].price=3/h")
    assert paid(both, "relay").chips_per_h == 56.0  # the price of every one of the kind


def test_instances_come_with_their_chips(two: Scenario) -> None:
    found = changed(two, "pool[hami/relay].instances=3")
    names = [worker.name for worker in setup(found, "relay").workers]
    assert [name for name in names if "relay" in name] == [f"hami/relay/{n}" for n in range(3)]
    assert paid(found, "relay").chips_per_h == 44.0 + 8 * 2.0
    # A pool of a policy's own topology.
    local = changed(two, "pool[shenzhen/compute].instances=2")
    assert len(setup(local, "local").workers) == len(setup(two, "local").workers) + 1
    assert setup(local, "relay") == setup(two, "relay")


def test_the_workload(two: Scenario) -> None:
    calm = asked(two)
    slow, fast = (asked(changed(two, f"workload.rate={rate}/s")) for rate in (0.5, 5))
    assert slow == calm  # the file's own rate
    assert fast[-1].at < calm[-1].at
    long = asked(changed(two, "workload.prompt=8192"))
    mean, longer = (sum(r.prompt for r in found) / len(found) for found in (calm, long))
    assert longer > 1.3 * mean
    assert sum(r.output for r in asked(changed(two, "workload.output=512"))) > 1.5 * sum(
        r.output for r in calm
    )
    shared = asked(changed(two, "workload.hits=0.5"))
    assert len({r.blocks[0] for r in shared if r.blocks}) < len(
        {r.blocks[0] for r in calm if r.blocks}
    )


def test_the_slo(two: Scenario) -> None:
    goal = changed(two, "slo.ttft=500ms").goal
    assert (goal.ttft_s, goal.tpot_s) == (0.5, 0.05)
    assert changed(two, "slo.tpot=20ms").goal.tpot_s == 0.02


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("paper", "workload.prompt=9000", "only a workload that is generated has it"),
        ("hami-shenzhen-20g", "workload.prompt=65536", "65536 is not between the workload's"),
    ],
)
def test_what_cannot_be_swept_here(name: str, text: str, line: str) -> None:
    with pytest.raises(UserError, match=line) as caught:
        changed(load_scenario(name), text)
    assert str(caught.value).startswith("--sweep, at workload.prompt")


def test_too_much(two: Scenario) -> None:
    axes = parse_axes(["link.bandwidth=1..9Gbps/101,link.loss=0..0.5/101"], two)
    with pytest.raises(UserError, match="10201 points are more than 10000; take fewer steps"):
        points(axes)
    axes = parse_axes(["link.bandwidth=1Gbps,link.loss=0,slo.ttft=1s,slo.tpot=1s"], two)
    with pytest.raises(UserError, match="4 axes, but at most 3 can be shown"):
        points(axes)


# ------------------------------------------------------------------------ cells by their content


def test_cells_of_which_nothing_that_counts_differs_are_one(two: Scenario) -> None:
    axes = parse_axes(["link.bandwidth=5|10|20Gbps,link.rent=0|9/h"], two)
    cells = replay_cells(two, two.file.policies, axes)
    assert len(cells) == 3 * 2 * 4
    keys = {name: {c.key for c in cells if c.policy == name} for name in ("local", "relay", "auto")}
    assert [len(found) for found in keys.values()] == [1, 6, 6]  # local has no line
    assert not keys["relay"] & keys["auto"]
    prices = parse_axes(["chip[h200].price=1..3/h/3"], two)
    assert len({cell.key for cell in replay_cells(two, two.file.policies, prices)}) == 12


@pytest.mark.parametrize(
    "text",
    [
        "link.bandwidth=5Gbps",
        "link.distance_km=1",
        "link.loss=0.1",
        "link.price=1/GB",
        "link.rent=1/h",
        "pool[hami/relay].instances=2",
        "pool[hami/relay].price=9/h",
        "chip[h100].price=9/h",
        "workload.rate=9/s",
        "workload.prompt=100",
        "workload.output=100",
        "workload.hits=0.3",
        "slo.ttft=9s",
        "slo.tpot=9s",
    ],
)
def test_what_counts_makes_another_cell(two: Scenario, text: str) -> None:
    assert policy_digest(changed(two, text), "relay") != policy_digest(two, "relay")
    assert scenario_digest(changed(two, text)) != scenario_digest(two)


def test_seed_and_trace_count_and_the_title_does_not(two: Scenario, tmp_path: Path) -> None:
    def file(**update: object) -> Scenario:
        return two.with_file(two.file.model_copy(update=update))

    assert scenario_digest(file(seed=9)) != scenario_digest(two)
    assert policy_digest(file(seed=9), "relay") != policy_digest(two, "relay")
    assert scenario_digest(file(title="another")) == scenario_digest(two)
    trace = tmp_path / "trace.jsonl"
    digests = []
    for line in ('{"at": 0, "prompt": 9, "output": 2}', '{"at": 0, "prompt": 9, "output": 3}'):
        trace.write_text(line)
        changes = {"trace": str(trace), "generated": None}
        digests.append(scenario_digest(file(workload=two.file.workload.model_copy(update=changes))))
    assert digests[0] != digests[1]
