"""`pdd replay`: the scenarios that ship, what the command line changes, and mistakes."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.cli.main import run
from orchestrator.replay.scenario.load import scenario_names
from tests.orchestrator.replay.report.test_report_page import embedded

SMALL = """\
topology: laptop-simulated
workload:
  generated: {rate: 4/s, prompt: {mean: 100}, output: {mean: 8}, count: 30}
policies:
  - {name: near, route: local}
  - {name: far, route: direct}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def replayed(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert run(["replay", *map(str, arguments), "-o", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("name", scenario_names())
def test_a_shipped_scenario(capsys: pytest.CaptureFixture[str], name: str) -> None:
    # In this process: to start others takes longer than so few requests do.
    found = replayed(capsys, name, "--requests", 120, "--jobs", 1)
    assert found["facts"]["scenario"] == name
    assert found["policies"]
    for policy in found["policies"]:
        assert policy["requests"] == policy["finished"] == 120
        assert policy["cost_per_million_tokens"] > 0
    by_name = {policy["policy"]: policy for policy in found["policies"]}
    if {"direct", "relay"} <= by_name.keys():
        assert by_name["direct"]["wire_gb"] > 0
        second = {n: p["metrics"]["second_token_s"]["p90"] for n, p in by_name.items()}
        assert second["relay"] <= second["direct"] * 1.001


def test_the_same_again_and_on_one_process(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    first = replayed(capsys, file, "--jobs", 2)
    assert first == replayed(capsys, file, "--jobs", 1)
    assert first != replayed(capsys, file, "--seed", 5)


def test_what_the_command_line_changes(
    capsys: pytest.CaptureFixture[str], file: Path, tmp_path: Path
) -> None:
    (far,) = replayed(capsys, file, "--policy", "far", "--requests", 10)["policies"]
    assert (far["policy"], far["requests"]) == ("far", 10)
    assert far["routes"]["direct"] >= 9  # one of a single token is local
    slow, fast = (
        replayed(capsys, file, "--policy", "near", "--rate", rate)["policies"][0]["seconds"]
        for rate in (1, 100)
    )
    assert fast < slow
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"at": 0, "prompt": 9, "output": 2}\nnonsense\n')
    found = replayed(capsys, file, "--trace", trace)
    assert [policy["requests"] for policy in found["policies"]] == [1, 1]
    assert [line["number"] for line in found["bad_lines"]] == [2]


def test_a_page_says_how_it_was_made(
    capsys: pytest.CaptureFixture[str], file: Path, tmp_path: Path
) -> None:
    page = tmp_path / "my report.html"
    arguments = [file, "--policy", "far", "--requests", 12, "--seed", 7, "--html", page]
    assert run(["replay", *map(str, arguments)]) == 0
    told = capsys.readouterr()
    assert f"{page}: " in told.err
    found = embedded(page.read_text("utf-8"))
    facts = dict(found["facts"])
    assert facts["seed"] == "7"
    assert facts["version"] == version("pdd-orchestrator")
    command = shlex.split(facts["command"])
    assert command == ["pdd", "replay", *map(str, arguments)]
    assert [policy["requests"] for policy in found["policies"]] == [12]
    # The command writes it again, to the last byte.
    before = page.read_bytes()
    page.unlink()
    assert run(command[1:]) == 0
    assert page.read_bytes() == before


def test_the_table(capsys: pytest.CaptureFixture[str], file: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"at": 0, "prompt": 9, "output": 2}\n' + "nonsense\n" * 7)
    assert run(["replay", str(file), "--trace", str(trace)]) == 0
    told = capsys.readouterr()
    for word in ("near", "far", "TTFT P50", "second token P50"):
        assert word in told.out
    assert "7 lines of the trace are not as they should be" in told.err
    assert "line 2: not JSON" in told.err
    assert "and 2 more" in told.err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["papr"], "unknown scenario 'papr'; did you mean 'paper'?; a file's name ends in .yaml"),
        (["./none.yaml"], "none.yaml:1:1: cannot be read: No such file or directory"),
        (["{file}", "--policy", "fra"], "--policy: unknown policy 'fra'; did you mean 'far'?"),
        (["{file}", "--rate", "0"], "--rate: must be above 0, got 0"),
        (["{file}", "--trace", "/none"], "workload: /none: cannot be read: No such file or direct"),
        (["{file}", "--requests", "0"], "Input should be greater than or equal to 1"),
    ],
)
def test_mistakes(
    capsys: pytest.CaptureFixture[str], file: Path, arguments: list[str], line: str
) -> None:
    assert run(["replay", *(a.replace("{file}", str(file)) for a in arguments)]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert line in told.err


@contextmanager
def endless(file: Path, jobs: int) -> Iterator[subprocess.Popen[str]]:
    """A replay whose bar is there, and which would go on for an hour."""
    file.write_text(SMALL.replace("count: 30", "count: 10000000"))
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli.main", "replay", str(file), "--jobs", str(jobs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"FORCE_COLOR": "1"},
    )
    try:
        assert process.stderr is not None
        shown = ""
        while "of 10000000" not in shown:
            shown += process.stderr.read(1)
            assert process.poll() is None
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("jobs", [1, 2])
def test_interrupted(file: Path, jobs: int) -> None:
    with endless(file, jobs) as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err


def test_killed(file: Path) -> None:
    """Its processes end as well."""
    with endless(file, jobs=2) as process:
        found = psutil.Process(process.pid)
        while len(children := found.children()) < 2:
            assert process.poll() is None
    _, left = psutil.wait_procs(children, timeout=60)
    for child in left:
        child.kill()
    assert left == []
