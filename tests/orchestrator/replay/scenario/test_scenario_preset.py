"""A preset whose answers are as long as the scenario says."""

from pathlib import Path

import pytest

from orchestrator.replay.scenario.load import load_scenario
from orchestrator.replay.scenario.workload import make_workload
from orchestrator.topology.mistakes import TopologyError
from tests.orchestrator.replay.scenario.test_scenario_file import GOOD

GENERATED = GOOD[GOOD.index("  generated") : GOOD.index("policies")]


def test_output_takes_the_place_of_the_presets(tmp_path: Path) -> None:
    file = tmp_path / "good.yaml"
    outputs = []
    for more in ("", ", output: {mean: 9}"):
        preset = f"  {{preset: pdd, limit: 40{more}}}\n"
        file.write_text(GOOD.replace(GENERATED, preset))
        found = list(make_workload(load_scenario(file)).requests())
        assert len(found) == 40
        outputs.append([(request.prompt, request.output) for request in found])
    assert {output for _, output in outputs[1]} == {9}
    assert len({output for _, output in outputs[0]}) > 20


def test_only_a_preset_takes_it(tmp_path: Path) -> None:
    file = tmp_path / "good.yaml"
    file.write_text(GOOD.replace(GENERATED, f"{GENERATED.rstrip()}\n  output: {{mean: 9}}\n"))
    with pytest.raises(TopologyError, match="output: only a preset's"):
        load_scenario(file)
