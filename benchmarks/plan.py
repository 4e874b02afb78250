"""Is the plan the best, and does it serve what it says? Every assignment of small deployments is
simulated, large ones are planned against the clock.

What an assignment serves in simulation is the highest rate of its requests at which nine in ten of
them, the first quarter left out, keep TTFT and TPOT (as DistServe counts, arXiv 2401.09670), to
3 %. The plan's own rate is found by halving. Every other assignment is then replayed at the rate
at which it would be better than the best so far, with fewer requests, which only flatters it: too
much load needs a while to show. One that keeps the goal there is measured.
"""

import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from multiprocessing import get_context
from typing import Any

from benchmarks.machine import machine
from benchmarks.plan_cases import Case, large, small
from orchestrator.plan.assignment import Assignment, posts_of
from orchestrator.plan.explain import explain
from orchestrator.plan.problem import Problem
from orchestrator.plan.programme.value import Value
from orchestrator.plan.record import to_record
from orchestrator.plan.search import Objective, Plan, plan
from orchestrator.replay.report.metrics import keeps
from orchestrator.replay.scenario.load import load_scenario
from orchestrator.replay.scenario.problem import problem_of, roles_by_plan
from orchestrator.replay.scenario.run import play
from orchestrator.replay.scenario.schema import Scenario
from orchestrator.state.actions import Finish
from workers.api.messages import RELAY

SHARE = 0.9
CLOSE = 0.03
AS_GOOD = 0.97  # a plan within 3 % of the best counts as the best
MOST_RUNS = 14
FEW = 900  # requests
PAPER_GAIN = 0.375  # goodput per cost over one site, arXiv 2609.13161

Tell = Callable[[str], None]


def run(*, only: str | None = None, jobs: int | None = None, tell: Tell) -> dict[str, Any]:
    """All cases, or those whose name contains `only`."""
    cases = [case for case in small() if only is None or only in case.name]
    jobs = min(jobs or os.cpu_count() or 1, max(1, len(cases)))
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        found = []
        for result in pool.map(measure, cases):
            tell(
                f"{result['name']}: planned {result['bound']:.2f}, simulated "
                f"{result['simulated']:.2f}, best {result['best_by_simulation']:.2f} a second"
            )
            found.append(result)
    extra: dict[str, Any] = {}
    if only is None:
        extra = {
            "scale": [timed(large(3, 12)), timed(large(10, 40))],
            "pdd": pdd(),
            "three_sites": three_sites(),
        }
    return {"cases": found, **extra, "machine": machine()}


# ------------------------------------------------------------------------------- small deployments


def measure(case: Case) -> dict[str, Any]:
    """One case: plan it, simulate the plan, and look for an assignment that is better."""
    problem = case.narrowed(problem_of(case.scenario, keep_roles=True))
    began = time.perf_counter()
    found = plan(problem, case.objective)
    plan_s = time.perf_counter() - began
    best = found.best
    runs = Runs(case.scenario)
    simulated = runs.capacity(best.assignment, best.rate)
    top, top_rate = best.assignment, _worth(case, best, simulated)
    others = [value for value in _all(problem, found) if value != best.assignment]
    for assignment in others:
        cost = assignment.chips_per_h(problem)
        beats = top_rate if case.objective is Objective.GOODPUT else top_rate * cost
        if runs.kept(assignment, beats, FEW) >= SHARE:
            rate = runs.capacity(assignment, beats * 1.1)
            worth = rate if case.objective is Objective.GOODPUT else rate / cost
            if worth > top_rate:
                top, top_rate = assignment, worth
    scale = 1.0 if case.objective is Objective.GOODPUT else best.assignment.chips_per_h(problem)
    return {
        "name": case.name,
        "objective": case.objective.value,
        "plan_s": plan_s,
        "bound": best.rate,
        "simulated": simulated,
        "best_by_simulation": top_rate * scale,
        "optimal": simulated >= AS_GOOD * top_rate * scale,
        "error": best.rate / simulated - 1 if simulated else None,
        "assignment": str(best.assignment),
        "best_assignment": str(top),
        "assignments": len(others) + 1,
        "replays": runs.count,
        "relaxed_bound": found.bound.score,
        "gap": found.gap,
    }


def _worth(case: Case, value: Value, rate: float) -> float:
    """In the objective's unit."""
    if case.objective is Objective.GOODPUT:
        return rate
    return rate / value.assignment.chips_per_h(value.solved.net.problem) if value.solved else 0.0


def _all(problem: Problem, found: Plan) -> list[Assignment]:
    """Every assignment that could serve something, the likeliest first."""
    tried = {value.assignment: value.rate for value in found.tried}
    # Those without any way from a prefill to a main are nothing to replay.
    ways = {value.assignment for value in found.tried if value.rate or value.solved is not None}
    every = (Assignment(posts=posts) for posts in product(*map(posts_of, problem.pools)))
    able = [one for one in every if one.possible and (one in ways or one not in tried)]
    return sorted(able, key=lambda one: -tried.get(one, 0.0))


@dataclass(slots=True)
class Runs:
    """Replays of one scenario under assignments and rates."""

    scenario: Scenario
    count: int = 0

    def kept(self, assignment: Assignment, rate: float, requests: int | None = None) -> float:
        """The part of the requests (the first few, or all) that keep the goal at that rate."""
        self.count += 1
        planned = roles_by_plan(self.scenario, assignment)
        changes = {"rate_per_s": rate, "limit": requests}
        workload = planned.file.workload.model_copy(update=changes)
        planned = planned.with_file(planned.file.model_copy(update={"workload": workload}))
        outcomes = play(planned, planned.file.policies[0]).outcomes
        judged = outcomes[len(outcomes) // 4 :]
        good = sum(isinstance(o.end, Finish) and keeps(o, planned.goal) for o in judged)
        return good / len(judged)

    def capacity(self, assignment: Assignment, guess: float) -> float:
        """The highest rate at which enough keep the goal, to `CLOSE`."""
        return highest(lambda rate: self.kept(assignment, rate) >= SHARE, guess or 1.0)


def highest(good: Callable[[float], bool], guess: float) -> float:
    """Up to where a rate is good, to `CLOSE`: from a guess by growing steps, then by halving."""
    low, high, rate, step = 0.0, inf, guess, 0.06
    for _ in range(MOST_RUNS):
        if good(rate):
            low = rate
        else:
            high = rate
        if high < inf and high - low <= CLOSE * high:
            break
        if high == inf:
            rate, step = low * (1 + step), 2 * step
        elif not low:
            rate, step = high * max(0.3, 1 - step), 2 * step
        else:
            rate = (low + high) / 2
    return (low + high) / 2 if high < inf else low


# -------------------------------------------------------------------------------- large and known


def timed(case: Case) -> dict[str, Any]:
    """How long a plan takes, and how near it is to the bound."""
    problem = problem_of(case.scenario, most_classes=4)
    began, began_cpu = time.perf_counter(), time.process_time()
    found = plan(problem, case.objective)
    return {
        "name": case.name,
        "plan_s": time.perf_counter() - began,
        "cpu_s": time.process_time() - began_cpu,
        "rate": found.best.rate,
        "goodput_per_cost": found.best.per_cost,
        "bound": found.bound.score,
        "gap": found.gap,
        "tried": len(found.tried),
    }


def pdd() -> dict[str, Any]:
    """PDD's own set-up: the split that is found, against one site of H100 and against direct."""
    problem = problem_of(load_scenario("plan-pdd"))
    demand = sum(kind.rate for kind in problem.classes)
    problem = replace(problem, demand=demand)
    whole = plan(problem)
    home = problem.pools[0].site
    near = replace(
        problem,
        pools=tuple(pool for pool in problem.pools if pool.site == home),
        lines=(),
        gateway_site=home,
    )
    direct = replace(
        problem,
        pools=tuple(replace(pool, roles=pool.roles - {RELAY}) for pool in problem.pools),
        lines=problem.lines,
    )
    one_site, no_relay = plan(near), plan(direct)
    return {
        "plan": to_record(whole, explain(whole)),
        "one_site": to_record(one_site, None),
        "direct": to_record(no_relay, None),
        "over_one_site": _gain(whole, one_site),
        "over_direct": _gain(whole, no_relay),
        "papers_gain_over_one_site": PAPER_GAIN,
    }


def three_sites() -> dict[str, Any]:
    """810E, 910C, H20, H200 and an M890 supernode: who does what, and why."""
    problem = problem_of(load_scenario("three-sites"))
    found = plan(problem, Objective.GOODPUT)  # as much as there is: then every chip has a chance
    return to_record(found, explain(found))


def _gain(a: Plan, b: Plan) -> float | None:
    return a.best.per_cost / b.best.per_cost - 1 if b.best.per_cost else None
