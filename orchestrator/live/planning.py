"""Planning beside the event loop: in a process of its own, so that no token waits for it."""

import asyncio
import os
import signal
import traceback
from multiprocessing import get_context
from multiprocessing.connection import Connection

from orchestrator.replan.decide import Case, Decision, decide

NICENESS = 5  # workers of this machine go first
END_S = 5.0


class PlanningFailed(Exception):
    """The planner's process gave no decision."""


async def decide_beside(case: Case) -> Decision:
    """`decide` in another process, which ends with it. Raises PlanningFailed."""
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_decide, args=(case, theirs), name="planner", daemon=True)
    try:
        process.start()
    except OSError as error:
        raise PlanningFailed(f"the planner's process cannot be started: {error}") from error
    theirs.close()
    answer = asyncio.ensure_future(asyncio.to_thread(_receive, ours))
    try:
        return await asyncio.shield(answer)
    finally:
        process.kill()
        await asyncio.gather(answer, return_exceptions=True)
        await asyncio.to_thread(process.join, END_S)
        ours.close()


def _receive(connection: Connection) -> Decision:
    try:
        answer: Decision | str = connection.recv()
    except EOFError:
        raise PlanningFailed("the planner's process ended without a decision") from None
    if isinstance(answer, str):
        raise PlanningFailed(answer)
    return answer


def _decide(case: Case, connection: Connection) -> None:
    """In the other process. Ctrl-C is its parent's to handle, who ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    try:
        connection.send(decide(case))
    except Exception:
        # A defect: whoever asked tells of it, and roles stay what they are.
        connection.send(traceback.format_exc())
