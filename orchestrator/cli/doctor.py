"""`pdd doctor`: what is well on this machine, in a topology and at a running service."""

import datetime
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from orchestrator.catalogue import load_catalogue
from orchestrator.cli.gateway import KeyOption, ask_status
from orchestrator.cli.main import FAILED, GOOD
from orchestrator.cli.output import Format, FormatOption, print_json
from orchestrator.doctor.certificates import certificate_findings
from orchestrator.doctor.finding import Finding, State
from orchestrator.doctor.lines import line_findings
from orchestrator.doctor.machine import machine_findings
from orchestrator.doctor.service import Asked, service_findings
from orchestrator.doctor.tcp import probe, read_kernel, tcp_findings
from orchestrator.doctor.vllm import vllm_findings
from orchestrator.topology.load import load_topology

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

STYLES = {State.OK: "green", State.WARN: "yellow", State.FAIL: "red"}


@app.command()
def doctor(
    file: Annotated[
        Path | None, typer.Argument(help="A topology: its lines, certificates and vLLMs as well.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="A running service's gateway, to be asked as well.")
    ] = None,
    key: KeyOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """What is well and what is not, each with the way out. Exit code 1 if something failed."""
    topology = None if file is None else load_topology(file)
    kernel = read_kernel()
    findings = machine_findings() + tcp_findings(kernel, probe(kernel))
    if topology is not None:
        findings += line_findings(topology, kernel)
        findings += certificate_findings(topology, datetime.datetime.now(datetime.UTC))
        findings += vllm_findings(topology, load_catalogue().models.get(topology.model))
    if url is not None:
        findings += _service(url, key)
    if output is Format.JSON:
        print_json(findings)
    else:
        _show(findings)
    failed = any(finding.state is State.FAIL for finding in findings)
    raise typer.Exit(FAILED if failed else GOOD)


def _service(url: str, key: str | None) -> list[Finding]:
    ask_status(url, key)  # what comes first takes longer, and would blur the clock
    sent_at = time.time()
    told, answered = ask_status(url, key)
    asked = Asked(sent_at=sent_at, answered_at=time.time(), date=answered.headers.get("date"))
    return service_findings(told, asked)


def _show(findings: list[Finding]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for finding in findings:
        line = Text(f"{finding.state:<4}", style=STYLES[finding.state])
        console.print(line, Text(f" {finding.check}: {finding.value}", style="default"))
        if finding.advice is not None:
            console.print(Text(f"       -> {finding.advice}"))
    counts = {state: sum(f.state is state for f in findings) for state in State}
    console.print(", ".join(f"{count} {state}" for state, count in counts.items()))
