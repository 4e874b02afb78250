"""Plans that are made beside the event loop: the same, and without holding it."""

import asyncio
import contextlib
import os
import signal
from dataclasses import replace

import psutil
import pytest
import uvloop

from orchestrator.errors import UserError
from orchestrator.live.planning import PlanningFailed, beside, decide_beside
from orchestrator.replan.decide import Case, decide
from tests.orchestrator.live.channel_peer import eventually
from tests.orchestrator.replan.worlds import FAR, base, seen

CASE = Case(base=base(), seen=seen(FAR), why=("site near is lost",), gain=0.15, urgent=True)


def planners() -> list[psutil.Process]:
    """Processes that plan for this one."""
    children = psutil.Process().children()
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


async def begun() -> psutil.Process:
    await eventually(lambda: bool(planners()))
    return planners()[0]


def test_it_is_the_plan_that_is_made_here() -> None:
    assert uvloop.run(decide_beside(CASE)) == decide(CASE)
    assert planners() == []


def test_a_planner_that_dies_is_a_plan_that_failed() -> None:
    async def main() -> None:
        deciding = asyncio.create_task(decide_beside(CASE))
        (await begun()).kill()
        with pytest.raises(PlanningFailed, match="ended without a decision"):
            await deciding

    uvloop.run(main())
    assert planners() == []


def test_a_case_that_cannot_be_planned_is_a_plan_that_failed() -> None:
    """A defect of the planner stays in its process, and is told."""
    broken = replace(CASE, seen=replace(CASE.seen, lines={}))
    with pytest.raises(PlanningFailed, match="KeyError: 'near-far'"):
        uvloop.run(decide_beside(broken))


def test_who_does_not_wait_any_more_ends_it() -> None:
    async def main() -> None:
        deciding = asyncio.create_task(decide_beside(CASE))
        planner = await begun()
        deciding.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await deciding
        assert not planner.is_running()

    uvloop.run(main())


def test_ctrl_c_is_not_the_planners_to_handle(capfd: pytest.CaptureFixture[str]) -> None:
    """It reaches the whole group of processes; the gateway ends things in order."""

    async def main() -> None:
        deciding = asyncio.create_task(decide_beside(CASE))
        planner = await begun()
        await eventually(lambda: planner.nice() > os.nice(0))  # from then on it plans
        planner.send_signal(signal.SIGINT)
        assert await deciding == decide(CASE)

    uvloop.run(main())
    assert "KeyboardInterrupt" not in capfd.readouterr().err


def halved(number: int) -> int:
    """Work for another process."""
    if number % 2:
        raise UserError(f"{number} is odd")
    return number // 2


def test_any_work_and_its_users_mistakes() -> None:
    assert uvloop.run(beside(halved, 8)) == 4
    with pytest.raises(UserError, match="7 is odd"):
        uvloop.run(beside(halved, 7))
