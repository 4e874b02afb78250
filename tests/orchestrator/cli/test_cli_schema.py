"""`pdd schema`: editors take it, our own files are good by it, and mistakes are not."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from ruamel.yaml import YAML

from orchestrator.cli.main import run

CONFIGS = Path(__file__).parents[3] / "configs"
EXAMPLES = sorted([*(CONFIGS / "topologies").iterdir(), *(CONFIGS / "scenarios").iterdir()])
MODELINE = re.compile(r"# yaml-language-server: \$schema=(\S+)\n")


def schema(kind: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run(["schema", kind]) == 0
    made: dict[str, Any] = json.loads(capsys.readouterr().out)
    return made


@pytest.mark.parametrize("kind", ["topology", "scenario", "faults"])
def test_the_shipped_schema_is_what_the_command_prints(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = schema(kind, capsys)
    Draft7Validator.check_schema(made)
    assert made["$schema"] == "http://json-schema.org/draft-07/schema#"
    shipped = json.loads((CONFIGS / "schema" / f"{kind}.json").read_text())
    assert shipped == made, f"pdd schema {kind} > configs/schema/{kind}.json"


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_every_example_names_its_schema_and_keeps_to_it(file: Path) -> None:
    named = MODELINE.match(file.read_text())
    assert named is not None
    made = json.loads((file.parent / named[1]).read_text())
    wrong = [
        error.message for error in Draft7Validator(made).iter_errors(YAML(typ="safe").load(file))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "broken",
    [
        {"colour": "red"},
        {"slo": {"ttft": 2}},
        {"slo": {"ttft": "2"}},
        {"gateway": {"site": "hami", "port": 70000}},
        {"links": [{"between": ["hami"], "bandwidth": "20Gbps"}]},
        {"policy": {"route": "relais"}},
        {"sites": {"not a name": {}}},
    ],
    ids=lambda broken: next(iter(broken)),
)
def test_mistakes_are_seen(broken: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    good = {"model": "smollm2-135m", "sites": {"hami": {}}, "gateway": {"site": "hami"}}
    validator = Draft7Validator(schema("topology", capsys))
    assert validator.is_valid(good)
    assert not validator.is_valid(good | broken)


def test_its_keys_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", "-o", "text"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["model*: text", "sites*:"]
    assert "  bandwidth*: such as 20Gbps" in lines
    assert "        roles: a list of prefill | relay | main" in lines
