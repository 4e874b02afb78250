"""The examples in configs/deploy are what they say: their schemas hold, their commands exist.

`kubernetes-schemas.json.gz` holds the strict schemas of the kinds they use: Kubernetes' own, and
that of KubeRay's custom resource definition of a RayCluster, closed to keys that it does not name.
"""

import gzip
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer.main
from ruamel.yaml import YAML

from orchestrator.cli.main import COMMANDS, load
from orchestrator.topology.schema import Topology

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "configs" / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MANIFESTS = sorted((DEPLOY / "kuberay").glob("*.yaml"))
SCHEMAS = json.loads(
    gzip.decompress((Path(__file__).parent / "kubernetes-schemas.json.gz").read_bytes())
)


def objects(file: Path) -> list[dict[str, Any]]:
    """As JSON has them: YAML's own types are none of Kubernetes'."""
    found = YAML(typ="safe", pure=True).load_all(file.read_text())
    return [json.loads(json.dumps(body)) for body in found]


def mistakes(body: dict[str, Any]) -> list[str]:
    schema = {"$ref": f"#/definitions/{SCHEMAS['kinds'][body['kind']]}", **SCHEMAS}
    found = jsonschema.Draft7Validator(schema).iter_errors(body)
    return [f"{error.json_path}: {error.message}" for error in found]


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in MANIFESTS:
        for body in objects(file):
            spec = body["spec"]
            template = spec.get("headGroupSpec", spec).get("template")
            for container in template["spec"]["containers"] if template else ():
                yield file.name, container


def pdd_commands() -> Iterator[tuple[str, list[str]]]:
    """Every call of pdd, as the words after it."""
    for file in UNITS:
        for line in re.findall(r"^Exec\w+=\S*/pdd (.+)$", file.read_text(), re.MULTILINE):
            yield f"{file.name}: {line}", shlex.split(line)
    for name, container in containers():
        words = container["args"]
        if container.get("command"):
            words = shlex.split(words[0].split("exec pdd ")[1])
        yield f"{name}: {' '.join(words)}", words


def test_there_are_examples() -> None:
    assert [file.name for file in UNITS] == ["pdd-serve.service", "pdd-site@.service"]
    assert [file.name for file in MANIFESTS] == ["gateway.yaml", "site.yaml"]
    assert len(list(pdd_commands())) == 6


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.name)
def test_manifests_are_as_their_schemas_have_them(file: Path) -> None:
    for body in objects(file):
        assert mistakes(body) == []


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("RayCluster", ("spec", "headGroupSpec", "rayStartParam")),
        ("RayCluster", ("spec", "headGroupSpec", "template", "spec", "hostNetwrk")),
        ("Deployment", ("spec", "template", "spec", "nodeSelectr")),
        ("Service", ("spec", "selecter")),
    ],
)
def test_the_schemas_know_a_mistake(kind: str, where: tuple[str, ...]) -> None:
    (body,) = (b for file in MANIFESTS for b in objects(file) if b["kind"] == kind)
    place = body
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = {}
    (mistake,) = mistakes(body)
    assert where[-1] in mistake


def test_every_command_and_option_exists() -> None:
    for line, words in pdd_commands():
        name, *rest = words
        assert name in COMMANDS, line
        command = typer.main.get_command(load(name))
        with command.make_context(name, rest):
            pass  # a mistake in the words raises


def test_what_the_containers_need_is_there() -> None:
    told = dict(containers())
    for name, container in told.items():
        variables = {variable["name"] for variable in container["env"]}
        assert "PDD_SECRET" in variables, name
        assert container["image"] == "pdd:0.1.0"
    gateway = told["gateway.yaml"]
    paths = {probe["httpGet"]["path"] for key, probe in gateway.items() if key.endswith("Probe")}
    assert paths == {"/health", "/ready"}
    topology = Topology.model_json_schema()["$defs"]["Security"]["properties"]
    assert {"api_keys_env", "operator_keys_env"} <= topology.keys()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.name)
def test_units_are_as_systemd_has_them(file: Path, tmp_path: Path) -> None:
    here = tmp_path / file.name
    pdd = Path(sys.executable).parent / "pdd"
    here.write_text(file.read_text().replace("/opt/pdd/bin/pdd", str(pdd)))

    def analyze(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = ["systemd-analyze", *arguments, str(here)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    verified = analyze("verify", "--man=no", "--recursive-errors=no")
    assert (verified.returncode, verified.stderr) == (0, "")
    exposed = analyze("security", "--offline=true", "--threshold=30", "--no-pager")
    assert exposed.returncode == 0, exposed.stdout[-600:]
    here.write_text(here.read_text().replace("ProtectSystem=", "ProtectSystm="))
    assert "ProtectSystm" in analyze("verify", "--man=no").stderr
