"""Work beside the event loop: in a process of its own, so that no token waits for it."""

import asyncio
import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import TypeVar, cast

from orchestrator.errors import UserError
from orchestrator.replan.decide import Case, Decision, decide

T = TypeVar("T")
R = TypeVar("R")

NICENESS = 5  # workers of this machine go first
END_S = 5.0


class PlanningFailed(Exception):
    """The planner's process gave no decision."""


async def decide_beside(case: Case) -> Decision:
    """`decide` in another process. Raises PlanningFailed."""
    return await beside(decide, case)


async def beside(work: Callable[[T], R], argument: T) -> R:
    """What `work`, a function of a module, makes of it in another process, which ends with it.

    Raises UserError where that does, and PlanningFailed.
    """
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(
        target=_work, args=(work, argument, theirs), name="planner", daemon=True
    )
    try:
        process.start()
    except OSError as error:
        raise PlanningFailed(f"the planner's process cannot be started: {error}") from error
    theirs.close()
    answer = asyncio.ensure_future(asyncio.to_thread(_receive, ours))
    try:
        return cast(R, await asyncio.shield(answer))
    finally:
        process.kill()
        await asyncio.gather(answer, return_exceptions=True)
        await asyncio.to_thread(process.join, END_S)
        ours.close()


def _receive(connection: Connection) -> object:
    try:
        answer = connection.recv()
    except EOFError:
        raise PlanningFailed("the planner's process ended without a decision") from None
    if isinstance(answer, PlanningFailed | UserError):
        raise answer
    return answer


def _work(work: Callable[[T], R], argument: T, connection: Connection) -> None:
    """In the other process. Ctrl-C is its parent's to handle, who ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    try:
        connection.send(work(argument))
    except UserError as error:
        connection.send(UserError(str(error)))
    except Exception:
        # A defect: whoever asked tells of it, and everything stays what it is.
        connection.send(PlanningFailed(traceback.format_exc()))
