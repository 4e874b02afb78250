"""`pdd doctor`: its lines, its JSON and its exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.main import run
from tests.orchestrator.cli.test_cli_status import STATUS, serving

LAPTOP = "configs/topologies/laptop-4000km.yaml"
LINK = {
    "between": ["hami", "shenzhen"],
    "bandwidth_bytes_per_s": 1.25e6,
    "goodput_bytes_per_s": 1e6,
    "measured_s_ago": 3.4,
    "rtt_s": 0.05,
    "loss": None,
    "queue_bytes": 0,
    "emulator": "127.0.0.1:40123",
}


def found(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    findings = json.loads(capsys.readouterr().out)
    for finding in findings:
        assert finding.keys() == {"check", "state", "value", "advice"}
    return {finding["check"]: finding for finding in findings}


def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor"]) == 0
    *lines, sums = capsys.readouterr().out.splitlines()
    states = [line.split()[0] for line in lines]
    assert set(states) <= {"ok", "warn", "->"}
    assert states.count("->") == states.count("warn")
    assert sums == f"{states.count('ok')} ok, {states.count('warn')} warn, 0 fail"


def test_a_topology_and_a_service(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(STATUS | {"links": [LINK]}, key="k1") as gateway:
        file = str(root / LAPTOP)
        code = run(["doctor", file, "--url", f"{gateway.url}/v1", "--key", "k1", "-o", "json"])
    findings = found(capsys)
    assert code == 1
    assert [c for c, f in findings.items() if f["state"] == "fail"] == [
        "worker hami/compute-and-more/0"
    ]
    assert findings["line hami - shenzhen"]["state"] == "ok"
    assert findings["link hami > shenzhen"]["value"].startswith("RTT 50 ms, 8 Mbps of 10 Mbps")
    assert findings["gateway's clock"]["state"] == "ok"
    assert {"cores", "congestion control", "SO_SNDBUF"} <= findings.keys()


def test_a_users_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", str(tmp_path / "none.yaml")]) == 2
    with serving({}) as other:
        assert run(["doctor", "--url", other.url]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines()[-1] == f"{other.url} is no pdd gateway: /status answered 200"
