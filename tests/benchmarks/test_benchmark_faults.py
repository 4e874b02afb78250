"""`pdd bench faults`: two thousand troubled deployments without one broken promise."""

import json
from pathlib import Path

import pytest

from benchmarks import faults
from orchestrator.cli.main import run
from orchestrator.virtual.faults.scenario import load_scenario

SEEDS = 2000
SOME = ["bench", "faults", "--seeds", "12", "--jobs", "1", "-o", "json"]


@pytest.mark.timeout(600)
def test_no_seed_breaks_a_promise() -> None:
    scenario = load_scenario(faults.scenario_file(None))
    result = faults.run(scenario, first=0, seeds=SEEDS)
    assert result["broken"] == []
    assert result["seeds"] == SEEDS
    assert 20 * SEEDS <= result["requests"] <= 50 * SEEDS
    assert result["faults"] >= SEEDS
    assert set(result["fault_kinds"]) == {kind.value for kind in scenario.faults.weights}
    assert result["outcomes"]["finished"] > 0.8 * result["requests"]


def test_the_command_tells_what_it_saw(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(SOME) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["seeds"], told["broken"]) == (12, [])
    assert told["seeds_per_s"] > 0
    assert told["cpu_s_per_1000_requests"] > 0
    again = json.loads(_output(SOME, capsys))
    same = ("requests", "faults", "fault_kinds", "outcomes", "core_counts", "virtual_hours")
    assert {key: told[key] for key in same} == {key: again[key] for key in same}


def test_without_faults(capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(_output([*SOME, "--calm"], capsys))
    assert (told["faults"], told["broken"]) == (0, [])


def test_the_story_of_one_request(capsys: pytest.CaptureFixture[str]) -> None:
    story = _output(["bench", "faults", "--seed", "7", "--story", "--request", "r3"], capsys)
    assert "\nr3: " in story
    assert "\nr4: " not in story


def test_a_story_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    story = _output(["bench", "faults", "--seed", "7", "--story"], capsys)
    assert story.startswith("seed 7: ")
    assert "Arrived" in story
    assert "-> client: tokens 0" in story
    assert story == _output(["bench", "faults", "--seed", "7", "--story"], capsys)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--story"], "--story: give the seed"),
        (["--seed", "1", "--shrink"], "--shrink: it is for --story"),
        (["--seed", "1", "--request", "r0"], "--request: it is for --story"),
        (["--seed", "1", "--story", "--request", "r99"], "unknown request 'r99'"),
        (["--scenario", "nowhere.yaml"], "nowhere.yaml:1:1: cannot be read"),
    ],
)
def test_mistakes(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "faults", *arguments]) == 2
    captured = capsys.readouterr()
    assert told in captured.err
    assert captured.out == ""


def test_a_scenario_with_a_wrong_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "scenario.yaml"
    text = faults.scenario_file(None).read_text(encoding="utf-8")
    file.write_text(text.replace("kill_worker:", "kill_wokrer:"), encoding="utf-8")
    assert run(["bench", "faults", "--scenario", str(file)]) == 2
    assert "did you mean 'kill_worker'?" in capsys.readouterr().err


def _output(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(arguments) == 0
    return capsys.readouterr().out
