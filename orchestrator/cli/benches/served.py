"""Benchmarks that start the service: what is said when it cannot be started."""

import contextlib
import sys
from collections.abc import Iterator

import typer

from benchmarks.service import ServeFailed
from orchestrator.cli.main import FAILED


@contextlib.contextmanager
def cannot_start_told() -> Iterator[None]:
    """A service that cannot be started ends the command with one line."""
    try:
        yield
    except ServeFailed as error:
        print(f"cannot start: {error}", file=sys.stderr)
        raise typer.Exit(FAILED) from error
