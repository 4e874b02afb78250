"""`pdd replay --sweep`: from the command line to its results, through a sudden end and on."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.cli.main import run
from orchestrator.replay.sweep.cluster import local_cluster
from tests.orchestrator.cli.json_of import json_of

pytestmark = pytest.mark.timeout(600)
SMALL = """\
topology: laptop-simulated
workload:
  generated: {rate: 4/s, prompt: {mean: 100}, output: {mean: 8}, count: 40}
policies:
  - {name: near, route: local}
  - {name: far, route: direct}
prices: {chips: {cpu: 1/h}}
"""
GRID = "link.bandwidth=1|100Mbps,link.distance_km=0..8000/3"
CELLS = 2 * 2 * 3
LOOK_S = 0.2
ENDED_S = 240  # Ray's agents first ask for a while whether their node is really gone


@pytest.fixture(scope="module")
def ray() -> Iterator[None]:
    """One for all sweeps in this process."""
    with local_cluster(2):
        yield


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PDD_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def swept(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    return json_of(capsys, "replay", *arguments)


@pytest.mark.usefixtures("ray")
def test_a_sweep_and_again(capsys: pytest.CaptureFixture[str], file: Path, tmp_path: Path) -> None:
    html = tmp_path / "sweep.html"
    first = swept(capsys, file, "--sweep", GRID, "--html", html)
    assert html.read_text().startswith("<!doctype html>")
    assert [axis["parameter"] for axis in first["axes"]] == ["link.bandwidth", "link.distance_km"]
    assert len(first["cells"]) == 6
    assert {tuple(cell["policies"]) for cell in first["cells"]} == {("near", "far")}
    assert first["near"] == "near"
    kept = Path(first["file"])
    assert kept.parent == tmp_path / "cache" / "sweeps"
    lines = kept.read_bytes()

    again = swept(capsys, file, "--sweep", GRID)
    assert again == first
    assert kept.read_bytes() == lines  # nothing was computed again

    finer = swept(capsys, file, "--sweep", GRID.replace("/3", "/5"))
    assert finer["file"] == first["file"]
    assert kept.read_bytes().startswith(lines)
    at = {tuple(cell["at"]): cell["policies"] for cell in finer["cells"]}
    assert all(at[tuple(cell["at"])] == cell["policies"] for cell in first["cells"])

    other = swept(capsys, file, "--sweep", GRID, "--seed", 7)
    assert other["file"] != first["file"]
    assert other["cells"] != first["cells"]


@pytest.mark.usefixtures("ray")
def test_the_table(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    assert run(["replay", str(file), "--sweep", GRID]) == 0
    told = capsys.readouterr()
    for word in ("requests in SLO per cost", "100 Mbps", "8000 km", "it pays more than near"):
        assert word in told.out


@pytest.mark.usefixtures("ray")
def test_a_file_of_another_scenario_is_refused(
    capsys: pytest.CaptureFixture[str], file: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept.jsonl"
    grid = "link.bandwidth=1|100Mbps"
    swept(capsys, file, "--sweep", grid, "--resume", kept)
    before = kept.read_bytes()
    file.write_text(SMALL.replace("count: 40", "count: 41"))
    assert run(["replay", str(file), "--sweep", grid, "--resume", str(kept)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"{kept}: has the results of replay small as it was before it was changed; give another "
        "file, or remove this one to begin anew"
    )
    assert kept.read_bytes() == before


@pytest.mark.usefixtures("ray")
def test_a_sweep_of_plans(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    """`laptop-simulated` has one site that can do all and one that can only decode."""
    grid = "link.bandwidth=1|100Mbps"
    found = json_of(capsys, "plan", file, "--most", "--sweep", grid)
    slow, fast = (cell["policies"] for cell in found["cells"])
    assert set(slow) == set(fast) == {"plan", "local"}
    assert slow["local"] == fast["local"]  # one site alone has no line
    for cell in (slow, fast):
        assert cell["plan"]["goodput_per_cost"] >= cell["local"]["goodput_per_cost"] > 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--sweep", "link.width=1"], "--sweep link.width=1: unknown parameter 'link.width'; did"),
        (["--resume", "x.jsonl"], "--resume: it is for --sweep; give both"),
        (["--sweep", "workload.prompt=0..9"], "--sweep workload.prompt=0..9: must be above 0"),
        (["--sweep", "link.loss=0", "--html", "/none/x"], "--html: /none/x cannot be written"),
    ],
)
def test_mistakes(
    capsys: pytest.CaptureFixture[str], file: Path, arguments: list[str], line: str
) -> None:
    assert run(["replay", str(file), *arguments]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert line in told.err


def test_killed_and_gone_on(file: Path, tmp_path: Path) -> None:
    """A process of its own, killed after its first results; Ray's processes end with it."""
    file.write_text(SMALL.replace("count: 40", "count: 700"))
    kept = tmp_path / "kept.jsonl"
    command = [
        *(sys.executable, "-m", "orchestrator.cli.main", "replay", str(file), "--sweep", GRID),
        *("--resume", str(kept), "-o", "json"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        children: list[psutil.Process] = []
        while _results(kept) < 2:
            assert _goes_on(process)
            children = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    _, left = psutil.wait_procs(children, timeout=ENDED_S)
    assert left == []
    before = kept.read_bytes()
    known = _results(kept)
    assert 2 <= known < CELLS
    kept.write_bytes(before + b'{"cell": "torn')

    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"{known} of {CELLS} cells are in {kept} already" in done.stderr
    assert kept.read_bytes().startswith(before)
    assert _results(kept) == CELLS
    assert len(json.loads(done.stdout)["cells"]) == 6


def test_ctrl_c_says_where_it_goes_on(file: Path, tmp_path: Path) -> None:
    file.write_text(SMALL.replace("count: 40", "count: 2000000"))
    kept = tmp_path / "kept.jsonl"
    command = [sys.executable, "-m", "orchestrator.cli.main", "replay", str(file), "--sweep"]
    process = subprocess.Popen(
        [*command, GRID, "--resume", str(kept)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"FORCE_COLOR": "1"},
    )
    try:
        while not _computing(process.pid):
            assert _goes_on(process)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        out, told = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGINT
    assert out == ""
    assert f"0 of {CELLS} cells are in {kept}; the same command goes on from there" in told
    assert "Traceback" not in told


def _goes_on(process: "subprocess.Popen[Any]") -> bool:
    try:
        process.wait(LOOK_S)
    except subprocess.TimeoutExpired:
        return True
    return False


def _results(kept: Path) -> int:
    return max(0, kept.read_bytes().count(b"\n") - 1) if kept.exists() else 0


def _computing(pid: int) -> bool:
    """Whether a process of Ray's has a cell."""
    names = []
    for child in psutil.Process(pid).children(recursive=True):
        try:
            names += child.cmdline()[:1]
        except psutil.Error:
            continue
    return any("ray::_call" in name for name in names)
