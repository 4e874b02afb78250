"""`pdd serve` as a process of its own, for benchmarks and tests that need the real service."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import httpx

STOP_S = 30.0


class ServeFailed(Exception):
    """`pdd serve` ended, or was not ready in time; the text is what it said last."""


@dataclass
class Served:
    """A running service. `url` ends in /v1; `said` holds the lines of its standard output."""

    process: "subprocess.Popen[str]"
    url: str
    model: str
    said: deque[str] = field(default_factory=deque)

    @property
    def base(self) -> str:
        return self.url.removesuffix("/v1")

    def status(self) -> dict[str, Any]:
        """What `/status` says now."""
        answered = httpx.get(f"{self.base}/status", timeout=10.0)
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

    Raises ServeFailed. `tell` gets every progress line.
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
    try:
        ready, said = _until_ready(process, timeout_s, tell)
        yield Served(process=process, url=ready["ready"], model=ready["model"], said=said)
    finally:
        stop(process)


def stop(process: "subprocess.Popen[str]") -> int:
    """SIGTERM, then wait; its exit code. A process that does not end is killed."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _until_ready(
    process: "subprocess.Popen[str]", timeout_s: float, tell: Callable[[str], None]
) -> tuple[dict[str, Any], deque[str]]:
    said: deque[str] = deque(maxlen=200)
    lines: Queue[str | None] = Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line.rstrip())
            lines.put(line.rstrip())
        lines.put(None)

    # It goes on reading after the service is ready, so that the service never waits for us.
    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=timeout_s)
        except Empty:
            raise ServeFailed(f"nothing said for {timeout_s:g} s after: {_last(said)}") from None
        if line is None:
            process.wait()
            raise ServeFailed(f"exit code {process.returncode}: {_last(said)}")
        told = json.loads(line) if line.startswith("{") else {"progress": line}
        if "ready" in told:
            return told, said
        tell(str(told.get("progress", line)))


def _last(said: deque[str]) -> str:
    return said[-1] if said else "nothing"
