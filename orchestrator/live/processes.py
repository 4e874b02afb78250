"""What everything has in common that starts processes of ours."""

import asyncio
import contextlib
import logging
import signal
from pathlib import Path

ROOT = Path(__file__).parents[2]
STOP_S = 15.0

log = logging.getLogger(__name__)


class LaunchFailed(Exception):
    """The deployment did not come up; one line naming the cause."""


async def end_process(process: asyncio.subprocess.Process) -> None:
    """Close its standard input, which it takes as the end; then insist. Harmless when it ended."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        log.warning("killed", extra={"pid": process.pid})
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        await process.wait()
