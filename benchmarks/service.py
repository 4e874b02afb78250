"""`pdd serve` as a process of its own, for benchmarks and tests that need the real service."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import httpx

STOP_S = 30.0


class ServeFailed(Exception):
    """`pdd serve` ended, or was not ready in time; the text is what it said last."""


@dataclass(frozen=True, kw_only=True)
class Served:
    """A running service. `url` ends in /v1."""

    process: "subprocess.Popen[str]"
    url: str
    model: str

    @property
    def base(self) -> str:
        return self.url.removesuffix("/v1")

    def status(self) -> dict[str, Any]:
        """What `/status` says now."""
        answered = httpx.get(f"{self.base}/status", timeout=10.0, trust_env=False)
        answered.raise_for_status()
        status: dict[str, Any] = answered.json()
        return status

    def worker(self, name: str) -> dict[str, Any]:
        """One worker's part of the status. KeyError when there is none."""
        for worker in self.status()["workers"]:
            if worker["name"] == name:
                return dict(worker)
        raise KeyError(name)


def free_port() -> int:
    """A loopback port that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def serving(
    topology: Path,
    *options: str,
    timeout_s: float = 300.0,
    tell: Callable[[str], None] = lambda line: None,
    environment: dict[str, str] | None = None,
) -> Iterator[Served]:
    """Start `pdd serve topology options`, wait until it is ready, stop it at the end.

    `tell` gets every progress line, also what is said later. Raises ServeFailed, also after
    `timeout_s` without `ready`.
    """
    command = [
        *(sys.executable, "-m", "orchestrator.cli.main", "serve", str(topology)),
        *("--port", str(free_port()), "-o", "json", *options),
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | (environment or {}),
    )
    output = Output(process, tell)
    try:
        ready = output.until_ready(time.monotonic() + timeout_s)
        yield Served(process=process, url=ready["ready"], model=ready["model"])
    finally:
        stop(process)
        output.close()


def stop(process: "subprocess.Popen[str]") -> int:
    """SIGTERM, then wait; its exit code. A process that does not end is killed."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


class Output:
    """Reads what the service says to its end, so that it never waits for us."""

    def __init__(self, process: "subprocess.Popen[str]", tell: Callable[[str], None]) -> None:
        assert process.stdout is not None
        self._stdout = process.stdout
        self._process = process
        self._tell = tell
        self._last = "nothing"
        self._lines: Queue[str | None] = Queue()  # None: the end
        self._ready = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def until_ready(self, deadline: float) -> dict[str, Any]:
        """The line that says `ready`. Raises ServeFailed with the last line."""
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise ServeFailed(f"not ready in time; it said last: {self._last}") from None
            if line is None:
                raise ServeFailed(f"exit code {self._process.wait(STOP_S)}: {self._last}")
            told = _said(line)
            if "ready" in told:
                self._ready = True
                return told
            self._tell(str(told.get("progress", line)))

    def close(self) -> None:
        """After the process has ended."""
        self._reader.join(STOP_S)
        self._stdout.close()

    def _read(self) -> None:
        for line in self._stdout:
            self._last = line.rstrip()
            if self._ready:
                self._tell(str(_said(self._last).get("progress", self._last)))
            else:
                self._lines.put(self._last)
        self._lines.put(None)


def _said(line: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(line) if line.startswith("{") else {"progress": line}
    return told
