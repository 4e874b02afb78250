"""Keeps a deployment's processes: whatever happens, none of them outlives it.

    python -m orchestrator.live.supervisor SCRATCH_DIRECTORY

Reads commands from standard input, one JSON object a line:
`{"start": name, "argv": [...], "env": {...}, "log": path}`. Writes `{"exited": name, "code": n}`.
When standard input ends, its owner has stopped or died: everything below this process is ended,
the scratch directory removed.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from workers.engines.vllm.settings import GUARD_ENV

KILL_S = 8.0

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _die_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Supervisor:
    """The processes by name, and everything they started."""

    def __init__(self) -> None:
        # Daemons below come to us when their parents end, so the tree stays whole.
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._ending = threading.Event()
        self._telling = threading.Lock()

    def start(self, name: str, argv: list[str], env: dict[str, str], log: str) -> None:
        with Path(log).open("ab") as out:
            process = subprocess.Popen(
                argv,
                env=os.environ | env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                preexec_fn=_die_with_parent,
            )
        threading.Thread(target=self._wait, args=(name, process), daemon=True).start()

    def _wait(self, name: str, process: "subprocess.Popen[bytes]") -> None:
        code = process.wait()
        if not self._ending.is_set():
            self._tell({"exited": name, "code": code})

    def _tell(self, what: dict[str, Any]) -> None:
        with self._telling:
            try:
                print(json.dumps(what), flush=True)
            except BrokenPipeError:
                return  # the owner is gone; the end of standard input says so too

    def end_all(self) -> None:
        """Kill everything below, daemons too.

        Nothing down there has anything to save by now: the owner has let stores of KV blocks end,
        or it died, and blocks that wait for their files are lost and computed again. Guards are
        left the time to remove what their workers leave behind, as memory that is shared.
        """
        self._ending.set()
        deadline = time.monotonic() + KILL_S
        while (left := _alive()) and time.monotonic() < deadline:
            for process in left:
                if not _is_guard(process):
                    _kill(process)
            time.sleep(0.05)
        for process in left:
            _kill(process)


def _alive() -> list[psutil.Process]:
    _reap()
    return psutil.Process().children(recursive=True)


def _reap() -> None:
    """Collect adopted children that have ended."""
    for child in psutil.Process().children():
        try:
            if child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)
        except (psutil.NoSuchProcess, ChildProcessError):
            continue


def _is_guard(process: psutil.Process) -> bool:
    try:
        return GUARD_ENV in process.environ()
    except psutil.Error:  # it has ended, or is not to be read
        return False


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def main() -> int:
    """Serve the owner until it is gone."""
    scratch = Path(sys.argv[1])
    supervisor = Supervisor()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        for line in sys.stdin:
            command = json.loads(line)
            supervisor.start(command["start"], command["argv"], command["env"], command["log"])
    except KeyboardInterrupt:
        pass
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        supervisor.end_all()
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
