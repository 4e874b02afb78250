"""Scenario files: what a good one says, and each mistake's exact line."""

from pathlib import Path

import pytest

from orchestrator.errors import UserError
from orchestrator.replay.lines.model import Sharing
from orchestrator.replay.scenario.load import find_scenario, load_scenario, scenario_names
from orchestrator.topology.mistakes import TopologyError

GOOD = """\
topology:
  model: llama-3.1-70b
  sites:
    hami:
      pools:
        compute: {chip: h100, count: 8, parallel: 8, roles: [prefill]}
        relay: {chip: h100, count: 4, parallel: 4, roles: [relay]}
    shenzhen:
      pools:
        memory: {chip: h200, count: 4, parallel: 4, roles: [main]}
  links:
    - {between: [hami, shenzhen], distance_km: 4000, bandwidth: 20Gbps}
  gateway: {site: shenzhen}
workload:
  generated: {rate: 90/min, prompt: {mean: 1000}, output: {mean: 20}, count: 50}
policies:
  - {name: direct, route: direct}
  - {name: relay, route: relay, share: fair, prefix_caches: off}
faults:
  - {kind: cut, between: [hami, shenzhen], from: 10min, until: 630s}
prices:
  chips: {h100: 2.0/h}
  lines: [{between: [hami, shenzhen], rent: 7300/month, traffic: 0.01/GB}]
"""

# what to replace in the good file, by what, and the lines that must come out
CASES = {
    "unknown topology": (
        GOOD[: GOOD.index("workload")],
        "topology: hami-shenzen\n",
        "1:11: topology: unknown topology 'hami-shenzen'; did you mean 'hami-shenzhen'?; "
        "a file's name ends in .yaml",
    ),
    "no such topology file": (
        GOOD[: GOOD.index("workload")],
        "topology: ./none.yaml\n",
        "none.yaml:1:1: cannot be read: No such file or directory",
    ),
    "a mistake inside the topology": (
        "chip: h200,",
        "chip: h20o,",
        "10:24: topology.sites.shenzhen.pools.memory.chip: unknown chip 'h20o'; "
        "did you mean 'h20'?",
    ),
    "a key inside the topology": (
        "count: 4, parallel: 4, roles: [main]",
        "counts: 4, parallel: 1, roles: [main]",
        "10:30: topology.sites.shenzhen.pools.memory.counts: unknown key 'counts'; did you mean "
        "'count'?",
    ),
    "no source": (
        "  generated: {rate: 90/min, prompt: {mean: 1000}, output: {mean: 20}, count: 50}",
        "  limit: 10",
        "14:1: workload: give exactly one of trace, generated and preset",
    ),
    "no unit": (
        "rate: 90/min",
        "rate: 90",
        "15:21: workload.generated.rate: 90 has no unit; write it such as 80/s",
    ),
    "a wrong unit": (
        "rate: 90/min",
        "rate: 90/day",
        "15:21: workload.generated.rate: expected a rate such as 80/s, got '90/day'",
    ),
    "an unknown key of the workload": (
        "count: 50",
        "counts: 50",
        "15:71: workload.generated.counts: unknown key 'counts'; did you mean 'count'?",
    ),
    "hits": (
        "count: 50",
        "count: 50, hits: 1.5",
        "15:88: workload.generated.hits: expected a part of at least 0 and below 1, skewed or "
        "narrow, got 1.5",
    ),
    "an unknown route": (
        "route: direct",
        "route: dirct",
        "17:27: policies[0].route: unknown route 'dirct'; did you mean 'direct'?",
    ),
    "an unknown share": (
        "share: fair",
        "share: fare",
        "18:40: policies[1].share: unknown share 'fare'; did you mean 'fair'?",
    ),
    "two of one name": (
        "name: relay",
        "name: direct",
        "18:12: policies[1].name: policies[0] is called direct already",
    ),
    "a route that cannot be": (
        "route: direct",
        "route: local",
        "17:27: policies[0].route: route local needs a site with both prefill and main; there "
        "is none",
    ),
    "no relay beside the prefill": (
        "roles: [relay]",
        "roles: [prefill]",
        "18:26: policies[1].route: route relay needs a pool with the role relay beside the "
        "prefill: in hami",
    ),
    "a fault that lacks something": (
        "kind: cut, between: [hami, shenzhen]",
        "kind: bandwidth, between: [hami, shenzhen]",
        "20:5: faults[0]: kind bandwidth needs factor",
    ),
    "a fault of no line": (
        "kind: cut, between: [hami, shenzhen]",
        "kind: cut, between: [hami, beijing]",
        "20:26: faults[0].between: there is no link between hami and beijing; "
        "links: hami - shenzhen",
    ),
    "a fault that ends before it begins": (
        "until: 630s",
        "until: 10s",
        "20:5: faults[0]: until: 10 s is not after from, 600 s",
    ),
    "an unknown fault": (
        "kind: cut",
        "kind: cat",
        "20:12: faults[0].kind: unknown kind 'cat'; did you mean 'cut'?",
    ),
    "a price of nothing": (
        "{h100: 2.0/h}",
        "{h1000: 2.0/h}",
        "22:18: prices.chips.h1000: unknown chip 'h1000'; did you mean 'h100'?",
    ),
    "a rent per day": (
        "7300/month",
        "7300/day",
        "23:45: prices.lines[0].rent: expected a rent such as 40000/month or 50/h, got '7300/day'",
    ),
    "a model too large for a worker": (
        "count: 4, parallel: 4, roles: [main]",
        "count: 4, parallel: 1, roles: [main]",
        "10:50: topology.sites.shenzhen.pools.memory.parallel: a worker of shenzhen.memory is too "
        "small: Llama-3.1-70B has 141.2 GB of weights, but 1 x 141 GB of NVIDIA H200, of which 90% "
        "can be used, are 126.9 GB; it needs 2 or more",
    ),
    "a chip without figures": (
        "chip: h200,",
        "chip: m890,",
        "10:24: topology.sites.shenzhen.pools.memory.chip: the catalogue has no memory_tb_s of "
        "m890, which shenzhen.memory needs; give one in the scenario's catalogue.chips.m890, with "
        "a grade and a source",
    ),
}


def mistakes(folder: Path, text: str) -> list[str]:
    file = folder / "broken.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(TopologyError) as caught:
        load_scenario(file)
    lines = str(caught.value).splitlines()
    return [line.removeprefix(f"{file}:").removeprefix(f"{folder}/") for line in lines]


@pytest.mark.parametrize("name", CASES)
def test_one_mistake_one_line(tmp_path: Path, name: str) -> None:
    old, new, line = CASES[name]
    assert GOOD.count(old) == 1, "the case does not say which place it means"
    assert mistakes(tmp_path, GOOD.replace(old, new)) == [line]


def test_all_mistakes_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("h200", "h2oo").replace("90/min", "90").replace("kind: cut", "kind: cat")
    assert [line.split(": ")[1] for line in mistakes(tmp_path, text)] == [
        "topology.sites.shenzhen.pools.memory.chip",
        "workload.generated.rate",
        "faults[0].kind",
    ]


def test_what_a_good_file_says(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(GOOD)
    scenario = load_scenario(tmp_path / "good.yaml")
    file = scenario.file
    assert (scenario.name, file.topology.model) == ("good", "llama-3.1-70b")
    assert file.workload.generated is not None
    assert file.workload.generated.rate_per_s == 1.5
    direct, relay = file.policies
    assert (direct.share, direct.prefix_caches) == (Sharing.OURS, True)
    assert (relay.share, relay.prefix_caches) == (Sharing.FAIR, False)
    assert (file.faults[0].at_s, file.faults[0].until_s) == (600.0, 630.0)
    assert file.prices.lines[0].rent_per_h == pytest.approx(10.0)
    assert file.prices.lines[0].per_gb == 0.01


def test_a_topology_beside_the_file(tmp_path: Path) -> None:
    head, rest = GOOD[: GOOD.index("workload")], GOOD[GOOD.index("workload") :]
    body = "".join(line[2:] + "\n" for line in head.splitlines()[1:])
    (tmp_path / "line.yaml").write_text(body)
    (tmp_path / "good.yaml").write_text("topology: ./line.yaml\n" + rest)
    assert load_scenario(tmp_path / "good.yaml").file.topology.gateway.site == "shenzhen"
    (tmp_path / "line.yaml").write_text(body.replace("h200", "h2oo"))
    with pytest.raises(TopologyError, match=r"line.yaml:9:22: .*unknown chip 'h2oo'"):
        load_scenario(tmp_path / "good.yaml")


ASSUMED = """\
catalogue:
  chips:
    m890: {memory_tb_s: {value: 3, grade: "?", source: assumed}}
"""


def test_an_assumption_goes_over_the_packaged_figures(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(GOOD.replace("chip: h200", "chip: m890") + ASSUMED)
    chip = load_scenario(tmp_path / "good.yaml").catalogue.chips["m890"]
    assert chip.memory_tb_s is not None
    assert chip.memory_gb is not None
    assert (chip.memory_tb_s.value, chip.memory_tb_s.grade) == (3, "?")
    assert chip.memory_gb.value == 144  # as packaged


def test_an_assumption_without_a_source(tmp_path: Path) -> None:
    text = GOOD.replace("chip: h200", "chip: m890") + ASSUMED.replace(", source: assumed", "")
    assert mistakes(tmp_path, text) == [
        "26:12: catalogue.chips.m890.memory_tb_s.source: missing; it has no default"
    ]


def test_figures_in_a_file_of_their_own(tmp_path: Path) -> None:
    body = "".join(line[2:] + "\n" for line in ASSUMED.splitlines()[1:])
    (tmp_path / "mine.yaml").write_text(body)
    text = GOOD.replace("chip: h200", "chip: m890") + "catalogue: mine.yaml\n"
    (tmp_path / "good.yaml").write_text(text)
    assert load_scenario(tmp_path / "good.yaml").catalogue.chips["m890"].memory_tb_s is not None
    (tmp_path / "mine.yaml").write_text(body.replace("value: 3", "value: -3"))
    assert mistakes(tmp_path, text) == [
        "mine.yaml:2:31: chips.m890.memory_tb_s.value: must be above 0, got -3"
    ]


def test_a_name_that_is_not_packaged() -> None:
    with pytest.raises(UserError, match="did you mean 'paper'"):
        find_scenario("papr")


def test_shipped_files_load() -> None:
    assert len(scenario_names()) >= 7
    for name in scenario_names():
        assert load_scenario(name).name == name
