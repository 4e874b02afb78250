"""Accidents with real processes: killed while they write; a file that may not grow."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workers.server_rig import ROOT, wait_until
from tests.workers.tiers.blocks_rig import counts, served, store

WRITER = """
import sys, time
from pathlib import Path
from tests.workers.tiers.blocks_rig import fill, store
from workers.tiers.files import BlockFiles

tiers = store(Path(sys.argv[1]), files_bytes=10_000_000, unwritten_bytes=10_000)
print("begun", flush=True)
number = 0
while True:
    fill(tiers, range(number, number + 1))
    number += 1
    while tiers.account()["unwritten_bytes"] > 5_000:  # all are written, and it is amidst others
        time.sleep(0.001)
"""

FULL = """
import resource, signal, sys
from pathlib import Path
from tests.workers.tiers.blocks_rig import block, counts, key, served, store, written

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
tiers = store(Path(sys.argv[1]), files_bytes=100_000)
resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))  # no file may grow further
tiers.put("t", [block(0)])
written(tiers)
assert served(tiers, range(1)) == [0], "memory has it"
assert counts(tiers)["write_errors"] == 1, counts(tiers)
"""


def run(program: str, folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", program, str(folder)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("writers", [1, 2])
def test_killed_while_it_writes(tmp_path: Path, writers: int) -> None:
    """One process, and two that write the same blocks."""
    processes = [run(WRITER, tmp_path) for _ in range(writers)]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
        wait_until(lambda: len(list(tmp_path.glob("*/*/*"))) > 200)
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.wait(10)
    for path in tmp_path.glob("*/*/.*.part"):
        os.utime(path, (1, 1))  # long ago
    again = store(tmp_path, files_bytes=10_000_000)
    there = counts(again)["rebuilt"]
    assert there > 150
    assert len(served(again, range(5000))) == there
    assert "corrupt" not in counts(again)
    assert list(tmp_path.glob("*/*/.*")) == []


def test_a_file_that_cannot_grow_leaves_nothing_behind(tmp_path: Path) -> None:
    process = run(FULL, tmp_path)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
