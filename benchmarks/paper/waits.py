"""What users wait for behind the wire, and how long KV is on its way, in PDD's set-up.

A transfer lasts from a prefill's token until all KV has landed, the wait for a connection included.
The paper's are compared with those of runs without a relay: of requests that end on a relay before
their KV has landed there is none.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.replay.outcome import Outcome
from orchestrator.replay.report.metrics import Spread, spread, summarise
from orchestrator.replay.scenario.load import load_scenario
from orchestrator.replay.scenario.run import play
from orchestrator.replay.scenario.schema import Compared, Scenario
from orchestrator.state.actions import Finish

SCENARIO = "paper"
PRESETS = {"skewed": "pdd", "narrow": "pdd-narrow"}
PREFILL = ("compute", "prefill")  # the pool of which instances are varied


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One policy of the scenario. None: as many prefill instances as it says; all requests."""

    policy: str
    hits: str = "skewed"
    prefills: int | None = None
    requests: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """What came of a case. `routes`: how many requests finished on which."""

    case: Case
    requests: int
    finished: int
    routes: dict[str, int]
    ttft_s: Spread
    second_token_s: Spread
    transfer_s: Spread


def wait(case: Case) -> Waits:
    """Replay a case."""
    scenario = scenario_of(case)
    run = play(scenario, policy_of(scenario, case.policy))
    summary = summarise(run, scenario.goal)
    return Waits(
        case=case,
        requests=summary.requests,
        finished=summary.finished,
        routes=summary.routes,
        ttft_s=summary.metrics["ttft_s"],
        second_token_s=summary.metrics["second_token_s"],
        transfer_s=_transfers(run.outcomes),
    )


def scenario_of(case: Case) -> Scenario:
    """The paper's set-up with what the case changes."""
    scenario = load_scenario(SCENARIO)
    file = scenario.file
    section = file.workload.model_copy(
        update={"preset": PRESETS[case.hits], "limit": case.requests}
    )
    topology = file.topology
    if case.prefills is not None:
        site, name = PREFILL
        place = topology.sites[site]
        pool = place.pools[name]
        sized = pool.model_copy(
            update={"instances": case.prefills, "count": case.prefills * pool.parallel}
        )
        place = place.model_copy(update={"pools": place.pools | {name: sized}})
        topology = topology.model_copy(update={"sites": topology.sites | {site: place}})
    return scenario.with_file(
        file.model_copy(update={"workload": section, "topology": topology, "timelines": 0})
    )


def policy_of(scenario: Scenario, name: str) -> Compared:
    """One of a scenario's policies."""
    return next(policy for policy in scenario.file.policies if policy.name == name)


def prefills(scenario: Scenario) -> int:
    """How many instances prefill."""
    site, name = PREFILL
    return scenario.file.topology.sites[site].pools[name].instances


def reduction(less: float | None, more: float | None) -> float | None:
    """By which part one is less than the other; None: one was not measured."""
    return None if less is None or not more else 1 - less / more


def _transfers(outcomes: Sequence[Outcome]) -> Spread:
    ends = [outcome.end for outcome in outcomes]
    took = [end.summary.kv_transfer_s for end in ends if isinstance(end, Finish)]
    return spread(np.sort(np.array([seconds for seconds in took if seconds is not None], float)))
