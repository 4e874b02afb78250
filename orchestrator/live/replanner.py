"""Keeps a running deployment's roles in step with what is measured of it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from orchestrator.live.driver import Driver
from orchestrator.live.planning import PlanningFailed, decide_beside
from orchestrator.replan.decide import Case, Decision
from orchestrator.replan.seen import see
from orchestrator.replan.watch import Replanning, Watch
from orchestrator.replan.window import Window
from orchestrator.state.actions import Summary

log = logging.getLogger(__name__)


class Replanner:
    """Looks every so often, and gives workers the roles that were decided.

    `tell` gets a line for people with each decision.
    """

    def __init__(
        self,
        replanning: Replanning,
        *,
        tell: Callable[[str], None],
        decide: Callable[[Case], Awaitable[Decision]] = decide_beside,
    ) -> None:
        self._replanning = replanning
        self._watch = Watch(replanning.base, replanning.hysteresis)
        self._window = Window()
        self._tell = tell
        self._decide = decide

    def begin_anew(self, replanning: Replanning) -> None:
        """The deployment is another, with roles that were planned for it."""
        self._replanning = replanning
        self._watch = Watch(replanning.base, replanning.hysteresis)

    def ended(self, summary: Summary) -> None:
        """A request has ended well."""
        self._window.ended(
            asyncio.get_running_loop().time(),
            prompt=summary.prompt_tokens,
            output=summary.completion_tokens,
            hit=summary.cached_tokens,
        )

    async def run(self, driver: Driver) -> None:
        """For ever. What is urgent does not wait for a plan that is not."""
        planning: tuple[Case, asyncio.Task[None]] | None = None
        try:
            while True:
                await asyncio.sleep(self._replanning.every_s)
                case = self._look(driver)
                if planning is not None and not planning[1].done():
                    if case is None or not case.urgent or planning[0].urgent:
                        continue
                    planning[1].cancel()
                if case is not None:
                    planning = case, asyncio.create_task(self._plan(driver, case))
        finally:
            if planning is not None:
                planning[1].cancel()
                await asyncio.wait({planning[1]})

    def _look(self, driver: Driver) -> Case | None:
        if driver.ready() is not None:
            return None  # it is still coming up, or nobody is there
        now, base = asyncio.get_running_loop().time(), self._replanning.base
        world = driver.machine.ctx.world
        try:
            return self._watch.look(see(world, base, self._window.classes(now)), now)
        except Exception:
            # A defect here must not end the service: roles just stay what they are.
            log.exception("the re-planner failed")
            return None

    async def _plan(self, driver: Driver, case: Case) -> None:
        log.info("planning anew", extra={"reason": "; ".join(case.why)})
        try:
            decision = await self._decide(case)
        except PlanningFailed as error:
            log.error("no plan", extra={"reason": str(error)})
            return  # the next look is told the same
        self._watch.planned(case)
        for change in decision.changes:
            log.info("role", extra={"worker": change.worker, "change": str(change)})
            driver.give_roles(change.worker, change.after)
        log.info("planned anew", extra={"decision": decision.text})
        self._tell(f"roles: {decision.text}")
