"""The re-planner beside a real driver: when it looks, what it waits for, what it carries out."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from orchestrator.live.planning import PlanningFailed
from orchestrator.live.replanner import Replanner
from orchestrator.replan.decide import Case, Change, Decision
from orchestrator.replan.watch import Hysteresis, Replanning
from orchestrator.state.actions import Route, Summary
from orchestrator.state.links import Measured
from tests.orchestrator.live.channel_peer import eventually
from tests.orchestrator.live.test_driver import MAIN, PREFILL, World, play
from tests.orchestrator.plan.plan_problems import line, pool, problem
from workers.api.messages import Role

P, M = Role.PREFILL, Role.MAIN
LOOK_S = 0.01
REPLANNING = Replanning(
    base=problem(
        pool("hami/compute", 1), pool("shenzhen/memory", 1), lines=(line("hami", "shenzhen", 1e6),)
    ),
    hysteresis=Hysteresis(margin=0.25, dwell_s=0.0, gain=0.15),
    every_s=LOOK_S,
)
BOTH = Change(worker=PREFILL, before=frozenset({P}), after=frozenset({P, M}))


class Planner:
    """Decides when it is told to. `cases`: what it was asked; `given_up`: what nobody waits for."""

    def __init__(self) -> None:
        self.cases: list[Case] = []
        self.given_up: list[Case] = []
        self.answers: asyncio.Queue[Decision | Exception] = asyncio.Queue()

    async def decide(self, case: Case) -> Decision:
        self.cases.append(case)
        try:
            answer = await self.answers.get()
        except asyncio.CancelledError:
            self.given_up.append(case)
            raise
        if isinstance(answer, Exception):
            raise answer
        return answer


def decision(*changes: Change) -> Decision:
    return Decision(changes=changes, rate_before=0.0, rate_after=1.0, text="better so")


@contextlib.asynccontextmanager
async def replanning(
    w: World, decide: Callable[[Case], Awaitable[Decision]], told: list[str]
) -> AsyncIterator[Replanner]:
    replanner = Replanner(REPLANNING, tell=told.append, decide=decide)
    running = asyncio.create_task(replanner.run(w.driver))
    try:
        yield replanner
    finally:
        assert not running.done(), "it runs for ever"
        running.cancel()
        await asyncio.wait({running})


def weak(w: World) -> None:
    """The line gives a tenth, all at once."""
    now = asyncio.get_running_loop().time()
    w.driver.machine.ctx.world.links["hami", "shenzhen"].seen_goodput = Measured(1e5, now)


def test_a_lost_site_is_planned_for_and_roles_are_given() -> None:
    async def scenario(w: World) -> None:
        planner, told = Planner(), list[str]()
        async with replanning(w, planner.decide, told):
            w.driver.line("hami", "shenzhen", 0.02, 1e6)
            w.join(PREFILL)
            await w.load(PREFILL, w.prefill)
            await asyncio.sleep(5 * LOOK_S)
            assert planner.cases == [], "one of them is still coming up"
            w.join(MAIN)
            await w.load(MAIN, w.main)
            await eventually(lambda: w.driver.ready() is None)
            await asyncio.sleep(5 * LOOK_S)
            assert planner.cases == [], "all is as it was planned"
            await w.main.stop()
            await eventually(lambda: len(planner.cases) == 1)
            assert planner.cases[0].why == ("site shenzhen is lost", "nobody has the role main")
            planner.answers.put_nowait(decision(BOTH))
            await eventually(lambda: told == ["roles: better so"])
            (worker,) = (s for s in w.driver.status()["workers"] if s["name"] == PREFILL)
            assert worker["roles"] == ["main", "prefill"]
            assert w.driver.machine.ctx.world.workers[PREFILL].roles == {P, M}
            await asyncio.sleep(5 * LOOK_S)
            assert len(planner.cases) == 1

    play(scenario)


def test_what_is_urgent_does_not_wait() -> None:
    async def scenario(w: World) -> None:
        planner = Planner()
        await w.all_up()
        async with replanning(w, planner.decide, []):
            await asyncio.sleep(3 * LOOK_S)
            weak(w)
            await eventually(lambda: len(planner.cases) == 1)
            await asyncio.sleep(5 * LOOK_S)
            assert planner.given_up == [], "the same again is not urgent"
            await w.main.stop()
            await eventually(lambda: len(planner.cases) == 2)
            assert planner.given_up == planner.cases[:1]
        assert planner.given_up == planner.cases, "at the end nobody waits for a plan"

    play(scenario)


def test_a_plan_that_failed_is_asked_for_again() -> None:
    async def scenario(w: World) -> None:
        planner = Planner()
        await w.all_up()
        async with replanning(w, planner.decide, []):
            await asyncio.sleep(3 * LOOK_S)
            weak(w)
            planner.answers.put_nowait(PlanningFailed("it died"))
            planner.answers.put_nowait(decision())
            await eventually(lambda: len(planner.cases) == 2)
            await asyncio.sleep(5 * LOOK_S)
            assert len(planner.cases) == 2, "what was decided is the usual world"

    play(scenario)


def test_requests_that_ended_are_what_is_planned_for() -> None:
    async def scenario(w: World) -> None:
        planner = Planner()
        await w.all_up()
        async with replanning(w, planner.decide, []) as replanner:
            await asyncio.sleep(3 * LOOK_S)
            for _ in range(60):
                replanner.ended(summary(prompt=500, output=50, cached=100))
            await eventually(lambda: len(planner.cases) == 1)
            (kind,) = planner.cases[0].seen.classes
            assert (kind.prompt, kind.output, kind.hit) == (500, 50, 100)

    play(scenario)


def test_a_defect_of_the_re_planner_ends_nothing() -> None:
    async def scenario(w: World) -> None:
        planner = Planner()
        await w.all_up()
        links = w.driver.machine.ctx.world.links
        async with replanning(w, planner.decide, []):
            await asyncio.sleep(3 * LOOK_S)
            link = links["shenzhen", "hami"]
            links["shenzhen", "hami"] = object()  # type: ignore[assignment]
            await asyncio.sleep(3 * LOOK_S)
            links["shenzhen", "hami"] = link
            weak(w)
            await eventually(lambda: len(planner.cases) == 1)

    play(scenario)


def summary(*, prompt: int, output: int, cached: int) -> Summary:
    return Summary(
        route=Route.DIRECT,
        handoff=None,
        handoff_index=None,
        relay_tokens=0,
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=output,
        queue_s=0.0,
        prefill_s=None,
        kv_transfer_s=None,
        relay_s=None,
        handoff_gap_s=None,
        kv_bytes_raw=0,
        kv_bytes_wire=0,
        recoveries=0,
        sites={},
    )
