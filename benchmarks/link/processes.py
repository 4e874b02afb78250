"""Processes at an end of the lab that speak in lines of JSON."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from transport.lab.lab import End

ROOT = Path(__file__).parent.parent.parent
_WAIT_S = 120.0


class BenchFailed(Exception):
    """A part of the measurement did not run; the text says which, and what it said."""


class Talker:
    """A module of ours run at `end`, spoken to in lines of JSON. A context manager."""

    def __init__(self, end: End, module: str, *arguments: object) -> None:
        self._what = module
        self._process = end.exec(
            [sys.executable, "-m", module, *map(str, arguments)],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def say(self, **what: Any) -> None:
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        self._process.stdin.flush()

    def hear(self, key: str) -> dict[str, Any]:
        """The next line that has `key`; others are passed over. Raises BenchFailed."""
        while True:
            ready, _, _ = select.select([self._process.stdout], [], [], _WAIT_S)
            line = self._process.stdout.readline() if ready else b""
            if not line:
                why = "ended" if ready else f"said nothing for {_WAIT_S:g} s"
                raise BenchFailed(f"{self._what} {why}")
            try:
                told = json.loads(line)
            except ValueError:
                continue  # libraries print, too
            if isinstance(told, dict) and "broken" in told:
                raise BenchFailed(f"{self._what}: {told['broken']}")
            if isinstance(told, dict) and key in told:
                return told


def run_at(end: End, argv: Sequence[str], timeout_s: float) -> bytes:
    """Run a command to its end; what it printed. Raises BenchFailed."""
    process = end.exec(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        process.kill()
        process.communicate()
        raise BenchFailed(f"{argv[0]} did not end within {timeout_s:g} s") from error
    if process.returncode:
        raise BenchFailed(f"{argv[0]}: {(err or out).decode(errors='replace').strip()[-300:]}")
    return out
