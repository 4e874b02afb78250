"""Taking on a file that has changed, each time that SIGHUP says so."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from orchestrator.cli.voice import Voice
from orchestrator.errors import UserError
from orchestrator.live.planning import PlanningFailed

T = TypeVar("T")

log = logging.getLogger(__name__)


async def follow(
    file: Path,
    changed: asyncio.Event,
    read: Callable[[], Awaitable[T]],
    take: Callable[[T], Awaitable[Sequence[str]]],
    voice: Voice,
) -> None:
    """For ever: `read` the file, `take` it on, and tell the lines of it, or why it is refused."""
    while True:
        await changed.wait()
        changed.clear()
        try:
            lines = await take(await read())
        except (UserError, PlanningFailed) as error:
            voice.say(f"{file} is not taken on: {error}")
        except Exception:
            # A defect here must not end what runs.
            log.exception("a changed topology", extra={"file": str(file)})
        else:
            for line in lines or ("nothing has changed",):
                voice.say(f"{file}: {line}")
