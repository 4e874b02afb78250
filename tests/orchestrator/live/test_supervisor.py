"""The process that keeps a deployment's others: what is left when it has ended them."""

import json
import subprocess
import sys
from pathlib import Path

from tests.orchestrator.live.live_service import until

WORKER = """
import time
from pathlib import Path
from workers.engines.vllm.server import Guard
guard = Guard(None, Path({pool!r}))
Path({up!r}).touch()
time.sleep(600)
"""


def test_a_guard_removes_what_its_killed_worker_leaves(tmp_path: Path) -> None:
    """It is below the supervisor, which ends everything below: this one last."""
    pool, up, scratch = tmp_path / "pool", tmp_path / "up", tmp_path / "scratch"
    left = [pool, tmp_path / "pool.sock", scratch]
    pool.touch()
    left[1].touch()
    scratch.mkdir()
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "orchestrator.live.supervisor", str(scratch)],
        stdin=subprocess.PIPE,
        text=True,
    )
    assert supervisor.stdin is not None
    argv = [sys.executable, "-c", WORKER.format(pool=str(pool), up=str(up))]
    start = {"start": "w", "argv": argv, "env": {}, "log": str(tmp_path / "log")}
    print(json.dumps(start), file=supervisor.stdin, flush=True)
    until(up.exists, "the worker has its guard")
    supervisor.stdin.close()
    assert supervisor.wait(60) == 0
    assert not [path for path in left if path.exists()]
