"""Roles that follow the world, in virtual time: a line at a tenth, a site that is lost."""

from dataclasses import replace
from functools import cache

from orchestrator.plan.demand import RequestClass
from orchestrator.plan.problem import Goal, Line, Pool, Problem, Shape
from orchestrator.replan.watch import Hysteresis, Replanning
from orchestrator.replay.driver import Replay
from orchestrator.replay.faults import Fault, LineFault, WorkersLost
from orchestrator.replay.replanning import PLANNING_S, Decided
from orchestrator.replay.report import metrics
from orchestrator.replay.setup import LineSpec, ReplaySetup
from orchestrator.state.actions import Finish
from orchestrator.state.config import CoreConfig
from orchestrator.state.events import Arrived
from tests.orchestrator.replay.rig import replayed, spec
from workers.api.messages import MAIN, PREFILL
from workers.costs import MeasuredCosts

# Near computes, far decodes: each is three times as good at it.
COMPUTE = MeasuredCosts(prefill_tokens_per_s=6000, decode_step_s=0.03, sequence_s=0.002)
MEMORY = MeasuredCosts(prefill_tokens_per_s=2000, decode_step_s=0.02, sequence_s=0.0005)
PROMPT, OUTPUT, PER_S = 1000, 100, 1.2
GOAL = Goal(ttft_s=2.0, tpot_s=0.04)
KV_BYTES, RATE, DELAY_S = 200_000, 1e9, 0.025  # a prompt's KV takes a fifth of a second
HYSTERESIS = Hysteresis(margin=0.25, dwell_s=20.0, gain=0.05)
WEAK_AT, LOST_AT, BACK_AT, UNTIL = 60.0, 180.0, 240.0, 320.0
LOOKED_S = 5.0 + PLANNING_S + DELAY_S  # until the next look, and a plan

WEAK_LINE = LineFault(between=("near", "far"), at=WEAK_AT, until=1000.0, factor=0.1)
DECODE_LOST = WorkersLost(name="far", at=LOST_AT)
PREFILL_LOST = WorkersLost(name="near", at=LOST_AT, until=BACK_AT)


def base() -> Problem:
    """The deployment as the planner knows it."""

    def pool(name: str, costs: MeasuredCosts) -> Pool:
        shape = Shape(parallel=1, most=2, costs=costs, kv_tokens=100_000)
        return Pool(
            name=name,
            site=name.split("/")[0],
            chip="c",
            chips=2,
            shapes=(shape,),
            price_per_h=1.0,
            slots=32,
            chunk_tokens=512,
        )

    return Problem(
        pools=(pool("near/compute", COMPUTE), pool("far/memory", MEMORY)),
        lines=(Line(between=("near", "far"), bytes_per_s=RATE, delay_s=DELAY_S),),
        classes=(RequestClass(name="usual", rate=1.0, prompt=PROMPT, output=OUTPUT),),
        goal=GOAL,
        gateway_site="far",
        kv_bytes_per_token=KV_BYTES,
    )


def setup(*faults: Fault, follows: bool) -> ReplaySetup:
    pools = (("near/compute", PREFILL, COMPUTE), ("far/memory", MAIN, MEMORY))
    return ReplaySetup(
        core=CoreConfig(gateway="g", gateway_site="far", queue_limit=10_000),
        workers=tuple(
            replace(spec(f"{pool}/{n}", role, costs=costs), kv_bytes_per_token=KV_BYTES)
            for pool, role, costs in pools
            for n in range(2)
        ),
        lines=(LineSpec(between=("near", "far"), bytes_per_s=RATE, delay_s=DELAY_S),),
        faults=faults,
        replanning=Replanning(base=base(), hysteresis=HYSTERESIS, every_s=5.0) if follows else None,
    )


def asks() -> list[tuple[float, Arrived]]:
    """Evenly, all alike: what is late is late for want of workers."""
    return [
        (
            number / PER_S,
            Arrived(request=f"r{number}", prompt_ids=tuple(range(PROMPT)), limit=OUTPUT),
        )
        for number in range(round(UNTIL * PER_S))
    ]


@cache
def lived(follows: bool, *faults: Fault) -> Replay:
    return replayed(setup(*faults, follows=follows), asks())


def kept(replay: Replay, begin: float, end: float) -> float:
    """The part of the requests that came in a window and kept the goal."""
    goal = metrics.Goal(ttft_s=GOAL.ttft_s, tpot_s=GOAL.tpot_s)
    those = [o for o in replay.outcomes.values() if begin <= o.asked_at < end]
    return sum(isinstance(o.end, Finish) and metrics.keeps(o, goal) for o in those) / len(those)


def decided(replay: Replay) -> list[Decided]:
    assert replay.replanner is not None
    return replay.replanner.decided


def finished(replay: Replay) -> bool:
    return all(isinstance(outcome.end, Finish) for outcome in replay.outcomes.values())


def test_a_line_at_a_tenth_and_then_a_lost_site_change_roles_and_cost_no_request() -> None:
    replay = lived(True, WEAK_LINE, DECODE_LOST)
    assert finished(replay)
    weak, lost = decided(replay)
    dwell_s = HYSTERESIS.dwell_s
    assert WEAK_AT + dwell_s <= weak.at <= WEAK_AT + dwell_s + 15.0 + PLANNING_S
    assert weak.decision.text.startswith("line near-far gives 800 Mbps, planned for 8 Gbps: ")
    assert PREFILL in {role for c in weak.decision.changes for role in c.after}, "far, by itself"
    assert LOST_AT < lost.at <= LOST_AT + LOOKED_S, "at once"
    assert lost.decision.text.startswith("site far is lost; nobody has the role main: ")
    assert MAIN in {role for c in lost.decision.changes for role in c.after}
    changes = [*weak.decision.changes, *lost.decision.changes]
    assert replay.machine.ctx.counts["roles_changed"] == len(changes)


def test_who_comes_after_the_line_has_dropped_is_served_better() -> None:
    fixed, follows = lived(False, WEAK_LINE), lived(True, WEAK_LINE)
    (change,) = (found.at for found in decided(follows) if found.decision.changes)
    before, after = (
        [kept(replay, begin, end) for replay in (fixed, follows)]
        for begin, end in ((WEAK_AT, change), (change + 10.0, UNTIL))
    )
    print(f"within the goal, fixed and following: before the change {before}, after it {after}")
    assert after[1] > 0.95
    assert after[0] < 0.5


def test_a_lost_site_that_returns() -> None:
    """With nobody left in a role the core lets every worker take it: roles order that."""
    fixed, follows = lived(False, PREFILL_LOST), lived(True, PREFILL_LOST)
    assert finished(fixed)
    assert finished(follows)
    lost, back = decided(follows)
    assert lost.at <= LOST_AT + LOOKED_S
    assert back.at >= BACK_AT + HYSTERESIS.dwell_s, "its return has time"
    before = [kept(replay, LOST_AT, lost.at) for replay in (fixed, follows)]
    after = [kept(replay, lost.at + 10.0, BACK_AT) for replay in (fixed, follows)]
    print(f"within the goal, fixed and following: before the change {before}, after it {after}")
    assert after[1] > max(0.95, after[0] + 0.1)


def test_in_peace_nothing_changes() -> None:
    follows, fixed = lived(True), lived(False)
    assert decided(follows) == []
    assert [o.last_at for o in follows.outcomes.values()] == [
        o.last_at for o in fixed.outcomes.values()
    ]
    assert kept(fixed, 0.0, UNTIL) > 0.95, "it is enough for the requests, while it is whole"


def test_a_worker_that_returns_has_the_roles_of_now() -> None:
    change = decided(lived(True, WEAK_LINE))[0].decision.changes[0]
    gone = WorkersLost(name=change.worker, at=LOST_AT, until=LOST_AT + 10.0)
    replay = lived(True, WEAK_LINE, gone)
    before = replay.workers[gone.name].spec.roles
    view = replay.machine.ctx.world.workers[gone.name]
    assert view.up.roles == view.roles == change.after != before
