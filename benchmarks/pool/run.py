"""All of `pdd bench pool`, in a folder on the disk that is to be measured."""

import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.pool import crossover, ttft, turns
from transport.memory import keep_freed_memory


def run(folder: Path | None, *, longest: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """`folder`: where blocks are kept as files; None: a temporary one. `longest` prompt, tokens."""
    measured_on = machine()
    logging.getLogger("workers").setLevel(logging.ERROR)  # loads that are cut are figures here
    keep_freed_memory()  # as workers and stores do
    with tempfile.TemporaryDirectory(prefix="pdd-pool-", dir=folder) as scratch:
        here = Path(scratch)
        replayed = turns.run(here)
        tell(f"conversations: {replayed['hit']:.0%} found, {replayed['ideal_hit']:.0%} at best")
        measured = ttft.run(here, longest=longest, tell=tell)
        pays = crossover.run(here, tell=tell)
    return {**replayed, **measured, "crossover": pays, "machine": measured_on}
