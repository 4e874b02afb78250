"""Accidents with real processes: killed while they write; a file that may not grow."""

import os
import shutil
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
assert counts(tiers)["defect_write_efbig"] == 1, counts(tiers)
"""


DESCRIPTORS = """
import os, resource, socket, sys, time
from pathlib import Path
from tests.workers.server_rig import SECRET, wait_until
from tests.workers.tiers.blocks_rig import block, counts, fill, key, store
from workers.tiers.client import StoreAway, StoreClient
from workers.tiers.server import StoreServer

before = store(Path(sys.argv[1]))
fill(before, range(5))
before.close()
tiers = store(Path(sys.argv[1]))
server = StoreServer(tiers, socket.create_server(("127.0.0.1", 0)), SECRET)
server.start()
soon = lambda: time.monotonic() + 5
old, new = (StoreClient(server.address, SECRET) for _ in range(2))
assert old.find([key(0)], soon()) == ["nvme"]

dialled = socket.socket()  # the last descriptor there is
used = max(map(int, os.listdir("/proc/self/fd")))
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (used, hard))
got = {}
old.get([key(0)], soon(), lambda number, *found: got.update({number: found}))
assert got == {}, "its file cannot be opened"
assert old.find([key(0)], soon()) == ["nvme"], "and is not given up for that"
old.put("t", [block(7)], soon())
wait_until(lambda: counts(tiers).get("defect_write_emfile") == 1)
assert old.find([key(7)], soon()) == ["dram"]
host, port = server.address.split(":")
dialled.connect((host, int(port)))
wait_until(lambda: counts(tiers).get("defect_accept_emfile", 0) >= 1)
try:
    new.find([key(0)], soon())
except StoreAway as away:
    assert "Too many open files" in str(away), away
else:
    raise AssertionError("no descriptor was left")

resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
dialled.close()
time.sleep(1.1)  # a store that was away is left alone for a second
old.get([key(0)], soon(), lambda number, *found: got.update({number: found}))
assert bytes(got[0][0].data) == block(0)[1].data
assert new.find([key(0)], soon()) == ["dram"]
"""

SMALL_DISK = """
import sys
from pathlib import Path
from tests.workers.tiers.blocks_rig import NBYTES, counts, fill, served, store, written

folder = Path(sys.argv[1])
tiers = store(folder, files_bytes=1_000 * NBYTES, memory_bytes=5 * NBYTES)
for number in range(100):
    fill(tiers, range(number, number + 1))
    written(tiers)
counted = counts(tiers)
assert counted["disk_full"] > 0, counted
assert counted["evicted_nvme_disk_full"] > 0, counted
there = served(tiers, range(100))
assert there[-1] == 99, there
assert len(there) > 10, there
assert served(store(folder, files_bytes=1_000 * NBYTES), range(100))[-1] == 99
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
    assert "defect_read_corrupt" not in counts(again)
    assert list(tmp_path.glob("*/*/.*")) == []


def test_without_file_descriptors_nothing_is_lost_or_wrong(tmp_path: Path) -> None:
    process = run(DESCRIPTORS, tmp_path)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err


def test_a_disk_that_is_full_takes_the_new_for_the_old(tmp_path: Path) -> None:
    """The kernel's own refusal, of a file system in memory that nobody else sees."""
    mounted = 'mount -t tmpfs -o size=128k none "$1" && exec "$2" -c "$3" "$1"'
    inside = ["unshare", "--mount", "sh", "-c", mounted, "sh", str(tmp_path), sys.executable]
    if shutil.which("unshare") is None or subprocess.run([*inside, "pass"], cwd=ROOT).returncode:
        pytest.skip("no file system may be mounted here")
    done = subprocess.run(
        [*inside, SMALL_DISK], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_file_that_cannot_grow_leaves_nothing_behind(tmp_path: Path) -> None:
    process = run(FULL, tmp_path)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
