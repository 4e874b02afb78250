"""The scenario file: every mistake is named with its line and key; the shipped one is valid."""

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.faults import scenario_file
from orchestrator.topology.mistakes import TopologyError
from orchestrator.topology.packaged import packaged_scenario
from orchestrator.virtual.faults.cases import READY_S, generate
from orchestrator.virtual.faults.fault import INJECT, MILD, OF_STORES, Kind
from orchestrator.virtual.faults.scenario import Scenario, load_scenario
from tests.orchestrator.virtual.faults.troubled import case_of, shipped

GOOD = """\
sites: [2]
gateways: [1]
load:
  least: 3
  most: 5
  over: 6s
  bursts: 0.5
  leaving: 0
  prompts: [5, 16]
  outputs: [3]
line:
  one_way: [25ms]
  jitter: [0ms]
  bandwidth: [1kB/s]
faults:
  least: 1
  most: 2
  over: 8s
  mild: 0.2
  lasting: [1s]
  back_after: [1s]
  chances: [0.2]
  delays: [50ms]
  memory: [1.0]
  clock_rates: [1.02]
  weights:
    kill_worker: 1
    reset: 2
"""


def load(path: Path, text: str) -> Scenario:
    path.write_text(text, encoding="utf-8")
    return load_scenario(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "faults.yaml"


def test_a_good_file(path: Path) -> None:
    scenario = load(path, GOOD)
    assert scenario.line.bandwidth == (1000.0,)
    assert scenario.faults.delays == (0.05,)
    assert scenario.faults.weights == {Kind.KILL_WORKER: 1, Kind.RESET: 2}


# what to replace in the good file, by what, and how the only mistake begins
MISTAKES = {
    "unknown fault": (
        "kill_worker: 1",
        "kil_worker: 1",
        "27:5: faults.weights.kil_worker: unknown key 'kil_worker'; did you mean 'kill_worker'?",
    ),
    "unknown key": (
        "bursts: 0.5",
        "bursts: 0.5\n  leave: 1",
        "8:3: load.leave: unknown key 'leave'; did you mean 'leaving'?",
    ),
    "missing key": ("  delays: [50ms]\n", "", "15:1: faults.delays: missing"),
    "negative weight": ("reset: 2", "reset: -2", "28:12: faults.weights.reset: "),
    "no weight": (
        "kill_worker: 1\n    reset: 2",
        "kill_worker: 0",
        "15:1: faults: weights: at least one must be above 0",
    ),
    "nothing that is mild": (
        "    reset: 2\n",
        "",
        "15:1: faults: mild: 0, or a weight for one of clock, ",
    ),
    "least above most": ("least: 3", "least: 9", "3:1: load: least: 9 is above most, 5"),
    "faults the wrong way": ("most: 2", "most: 0", "15:1: faults: least: 1 is above most, 0"),
    "a chance above 1": ("chances: [0.2]", "chances: [0.2, 2]", "22:18: faults.chances[1]: "),
    "no choice": ("prompts: [5, 16]", "prompts: []", "9:12: load.prompts: needs at least 1"),
    "an empty prompt": ("prompts: [5, 16]", "prompts: [0]", "9:13: load.prompts[0]: "),
    "a time without a unit": ("delays: [50ms]", "delays: [50]", "23:12: faults.delays[0]: "),
    "one site": ("sites: [2]", "sites: [1]", "1:9: sites[0]: "),
    "four sites": ("sites: [2]", "sites: [2, 4]", "1:12: sites[1]: "),
    "a clock that stands": ("[1.02]", "[0]", "25:17: faults.clock_rates[0]: "),
    "no faults at all, as a word": ("most: 2", "most: two", "17:9: faults.most: "),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_line_and_key(path: Path, name: str) -> None:
    old, new, begins = MISTAKES[name]
    assert GOOD.count(old) == 1
    with pytest.raises(TopologyError) as caught:
        load(path, GOOD.replace(old, new))
    [mistake] = caught.value.mistakes
    told = str(mistake).removeprefix(f"{path}:")
    assert told.startswith(begins), told


def test_all_mistakes_are_told_at_once(path: Path) -> None:
    text = GOOD.replace("bursts: 0.5", "bursts: 5").replace("reset: 2", "reset: many")
    with pytest.raises(TopologyError) as caught:
        load(path, text)
    assert [mistake.path for mistake in caught.value.mistakes] == [
        "load.bursts",
        "faults.weights.reset",
    ]


def test_no_faults_are_no_mistake(path: Path) -> None:
    text = GOOD.replace("least: 1", "least: 0").replace("most: 2", "most: 0")
    scenario = load(path, text.replace("kill_worker: 1\n    reset: 2", "kill_worker: 0"))
    assert all(generate(scenario, seed).faults == () for seed in range(5))


# ---------------------------------------------------------------- the shipped one


def test_the_shipped_one_knows_every_kind_and_every_kind_can_be_done() -> None:
    assert load_scenario(scenario_file(None)) == shipped()
    stores = load_scenario(packaged_scenario("faults-stores"))
    assert set(shipped().faults.weights) == set(Kind) - OF_STORES
    assert set(stores.faults.weights) >= OF_STORES
    assert set(INJECT) == set(Kind)


def test_seeds_draw_what_the_file_says() -> None:
    """Everything it lists is drawn, and nothing else."""
    scenario = shipped()
    kinds, sites, gateways = Counter[Kind](), set(), set()
    for seed in range(300):
        case = case_of(seed)
        faults = scenario.faults
        assert scenario.load.least <= len(case.asks) <= scenario.load.most
        assert faults.least - 1 <= len(case.faults) <= faults.most  # a clock has but one rate
        for ask in case.asks:
            assert READY_S <= ask.at <= READY_S + scenario.load.over
            assert len(ask.arrived.prompt_ids) in scenario.load.prompts
            assert ask.arrived.limit in scenario.load.outputs
            assert ask.gateway < case.setup.gateways
        for fault in case.faults:
            assert 0 <= fault.at <= READY_S + faults.over
            assert not case.mild or fault.kind in MILD
            kinds[fault.kind] += 1
        sites.add(len(case.setup.sites))
        gateways.add(case.setup.gateways)
    assert set(kinds) == set(Kind) - OF_STORES
    assert sites == set(scenario.sites)
    assert gateways == set(scenario.gateways)


def test_the_same_seed_is_the_same_case() -> None:
    assert case_of(5) == case_of(5) != case_of(6)
