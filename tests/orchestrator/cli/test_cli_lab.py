"""`pdd lab`: what it refuses, and commands at both ends (root only)."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli.main import run
from tests.transport.lab.lab_support import WAIT_S, needs_lab

START_S = 60.0

FAR = """
import os, socket
listener = socket.create_server((os.environ["PDD_FAR"], 7000))
accepted, peer = listener.accept()
accepted.sendall(peer[0].encode())
accepted.recv(1)
"""
NEAR = """
import os, socket, sys, time
began = time.monotonic()
connected = socket.create_connection((os.environ["PDD_FAR"], 7000))
took = time.monotonic() - began
address = connected.makefile("rb").read(9).decode()
print("seen as", address, 0.05 <= took < 0.5)
sys.exit(5)
"""


@pytest.fixture
def topology(root: Path) -> Path:
    return root / "configs/topologies/laptop-4000km.yaml"


def lab(*arguments: str, root: Path, **popen: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli.main", "lab", *arguments],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **popen,  # type: ignore[call-overload]
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--delay", "25"], "delay: '25' has no unit; write a duration such as 50ms"),
        (["--rate", "1Gb"], "rate: '1Gb' is ambiguous: write 1Gbps for bits or 1GB/s"),
        (["--loss", "a"], "loss: could not convert string to float: 'a'"),
        (["--loss", "1"], "loss: must be in [0, 1), got 1.0"),
        (["--mtu", "100"], "mtu: must be in [576, 65535], got 100"),
        (["--buffer", "0ms"], "buffer_bytes: must hold a packet of 9000 bytes, got 0"),
        (["--link", "1"], "--link 1: give the topology file whose link is meant"),
        (["--rate", "1000Gbps"], "are more than the lab can hold"),
    ],
)
def test_what_is_refused(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["lab", *arguments]) == 2
    complaint = capsys.readouterr().err
    assert text in complaint
    assert complaint.count("\n") == 1


def test_a_link_the_file_does_not_have(topology: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lab", str(topology), "--link", "9"]) == 2
    assert f"--link 9: {topology} has 1, counted from 0" in capsys.readouterr().err


def test_without_root_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert run(["lab"]) == 2
    assert "run it as root (sudo)" in capsys.readouterr().err


@needs_lab
def test_it_ends_with_the_near_command_and_its_code(root: Path) -> None:
    far, near = (f"exec {sys.executable} -c '{code}'" for code in (FAR, NEAR))
    with lab("--far", far, "--near", near, root=root) as process:
        out, err = process.communicate(timeout=START_S)
    assert process.returncode == 5, err
    assert out == "seen as 10.99.0.1 True\n"
    assert err.startswith("near 10.99.0.1, far 10.99.0.2: 25 ms one way, 1 Gbps, loss 0, ")


@needs_lab
def test_its_reports_its_orders_and_its_end(root: Path, topology: Path) -> None:
    arguments = (str(topology), "--rate", "8Mbps", "-o", "json")
    with lab(*arguments, root=root, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        first = json.loads(process.stdout.readline())
        assert first["line"]["rate_bytes_per_s"] == 1e6
        assert first["line"]["delay_s"] == 0.025  # the file's
        ping = [*first["near"]["enter"].split(), sys.executable, "-c", SEND]
        process.stdin.write("cut\n")
        process.stdin.flush()
        process.stdin.write("nonsense\nloss 7\n")
        process.stdin.flush()
        assert process.stderr.readline().startswith("'nonsense': cut, restore, or NAME VALUE")
        assert process.stderr.readline() == "loss: must be in [0, 1), got 7.0\n"
        subprocess.run([*ping, first["far"]["address"]], check=True, timeout=WAIT_S)
        for line in process.stdout:
            report = json.loads(line)
            if report["near_to_far"]["cut"]:
                break
        assert report["near_to_far"]["cut"] == 3
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 0


SEND = """
import socket, sys
sender = socket.socket(type=socket.SOCK_DGRAM)
for _ in range(3):
    sender.sendto(b"into the void", (sys.argv[1], 9))
"""
