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
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from multiprocessing import get_context
from typing import Any

from benchmarks.machine import machine
from benchmarks.plan_cases import Case, large, small
from orchestrator.children import end_with_parent
from orchestrator.plan.assignment import Assignment, posts_of
from orchestrator.plan.explain import explain
from orchestrator.plan.problem import Problem
from orchestrator.plan.record import to_record
from orchestrator.plan.search import Objective, Plan, plan
from orchestrator.replay.report.metrics import keeps
from orchestrator.replay.scenario.load import load_scenario
from orchestrator.replay.scenario.problem import asked_rate, problem_of, roles_by_plan
from orchestrator.replay.scenario.run import play
from orchestrator.replay.scenario.schema import Scenario
from orchestrator.state.actions import Finish
from workers.api.messages import RELAY

SHARE = 0.9  # of the requests that keep the goal, as the planner's own
CLOSE = 0.03  # a simulated rate is known well enough
AS_GOOD = 0.97  # a plan within that of the best counts as the best: rates are known no better
MOST_RUNS = 14  # replays for one rate: enough from a guess that is off by a factor of twenty
FEW = 900  # requests: a replay that may only flatter, and takes a quarter of the time
PAPER_GAIN = 0.375  # goodput per cost over one site, arXiv 2609.13161

Tell = Callable[[str], None]


def run(*, only: str | None = None, jobs: int | None = None, tell: Tell) -> dict[str, Any]:
    """All cases, or the small ones whose name contains `only`; `tell` is called after each.

    {"cases": see `measure`, "scale", "pdd", "three_sites", "machine"}.
    """
    cases = [case for case in small() if only is None or only in case.name]
    jobs = min(jobs or os.cpu_count() or 1, max(1, len(cases)))
    with ProcessPoolExecutor(jobs, get_context("spawn"), end_with_parent) as pool:
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
    others = [other for other in _able(problem, found) if other != best.assignment]
    top, top_rate = _top(case, problem, runs, (best.assignment, simulated), others)
    # At the price of the plan, so that both rates can be compared.
    top_rate *= _price(case, problem, best.assignment) / _price(case, problem, top)
    return {
        "name": case.name,
        "objective": case.objective.value,
        "plan_s": plan_s,
        "bound": best.rate,
        "simulated": simulated,
        "best_by_simulation": top_rate,
        "optimal": simulated >= AS_GOOD * top_rate,
        "error": best.rate / simulated - 1 if simulated else None,
        "assignment": str(best.assignment),
        "best_assignment": str(top),
        "assignments": len(others) + 1,
        "replays": runs.count,
        "relaxed_bound": found.bound.score,
        "gap": found.gap,
    }


def _top(
    case: Case,
    problem: Problem,
    runs: "Runs",
    top: tuple[Assignment, float],
    others: Sequence[Assignment],
) -> tuple[Assignment, float]:
    """The best by simulation, and its requests/s: `top`, unless one of the others is better."""
    score = top[1] / _price(case, problem, top[0])
    for assignment in others:
        price = _price(case, problem, assignment)
        if runs.kept(assignment, score * price, FEW) >= SHARE:
            rate = runs.capacity(assignment, score * price * 1.1)
            if rate / price > score:
                top, score = (assignment, rate), rate / price
    return top


def _price(case: Case, problem: Problem, assignment: Assignment) -> float:
    """By what a rate is divided to be compared: money an hour, where the case is about it."""
    return 1.0 if case.objective is Objective.GOODPUT else assignment.chips_per_h(problem)


def _able(problem: Problem, found: Plan) -> list[Assignment]:
    """Every assignment that could serve something, the likeliest first."""
    tried = {value.assignment: value for value in found.tried}
    every = (Assignment(posts=posts) for posts in product(*map(posts_of, problem.pools)))
    able: list[tuple[float, Assignment]] = []
    for one in every:
        value = tried.get(one)
        if value is None and one.possible:
            able.append((0.0, one))
        elif value is not None and (value.rate or value.solved is not None):
            # Those without any way from a prefill to a main are nothing to replay.
            able.append((value.rate, one))
    return [one for _, one in sorted(able, key=lambda pair: -pair[0])]


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
    problem = replace(problem, demand=asked_rate(problem))
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
    """By which part `a` serves more for its money; None: `b` serves nothing."""
    return a.best.per_cost / b.best.per_cost - 1 if b.best.per_cost else None
