"""Requests within the SLO for the money: PDD's two sites against one site of H100 only.

A deployment's goodput is the highest steady rate at which nine requests in ten keep to the SLO,
times the part that does, found by halving an interval of rates. The first of the requests only
fill the deployment and are not judged. What it costs an hour are all its chips and its line. One
site may divide its chips between prefill and decode as suits it best: the scenario has several
ways, and the one with the most goodput for its price counts.
"""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.paper.waits import policy_of
from orchestrator.replay.report.metrics import keeps
from orchestrator.replay.scenario.load import load_scenario
from orchestrator.replay.scenario.prices import bill
from orchestrator.replay.scenario.run import play
from orchestrator.replay.scenario.schema import Scenario
from orchestrator.state.actions import Finish

SCENARIO = "paper-goodput"
KEPT = 0.9  # part of the requests
FILLING = 0.5  # part of the requests that are not judged: about as long as an answer takes
RATES = (52.0, 84.0)  # requests per second: what the deployments are sized for lies between
HALVINGS = 4  # to two requests per second
RATIOS = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6)  # price of an H200 over that of an H100


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """A deployment's goodput. `rate_per_s`: at which it was found; `probes`: (rate, part kept)."""

    deployment: str
    rate_per_s: float
    goodput_per_s: float
    probes: tuple[tuple[float, float], ...]


def worth(deployment: str, requests: int | None) -> Worth:
    """The goodput of one of the scenario's policies; None: as many requests as it says a probe."""
    probes = search(lambda rate: _kept(deployment, rate, requests))
    rate, kept = max((probe for probe in probes if probe[1] >= KEPT), default=(0.0, 0.0))
    return Worth(
        deployment=deployment,
        rate_per_s=rate,
        goodput_per_s=rate * kept,
        probes=tuple(probes),
    )


def search(kept: Callable[[float], float]) -> list[tuple[float, float]]:
    """(rate, part kept) of each rate tried, halving RATES towards the highest that keeps KEPT."""
    low, high = RATES
    probes = []
    for _ in range(HALVINGS):
        rate = (low + high) / 2
        probes.append((rate, kept(rate)))
        if probes[-1][1] >= KEPT:
            low = rate
        else:
            high = rate
    return probes


def deployments() -> tuple[list[str], str]:
    """The names of those of one site, and of that of two."""
    scenario = load_scenario(SCENARIO)
    names = [policy.name for policy in scenario.file.policies]
    return [name for name in names if name != "relay"], "relay"


def cost_per_h(scenario: Scenario, deployment: str, ratio: float) -> float:
    """Of a deployment whose H200 cost `ratio` times its H100."""
    prices = scenario.file.prices
    chips = prices.chips | {"h200": ratio * prices.chips["h100"]}
    priced = prices.model_copy(update={"chips": chips})
    scenario = scenario.with_file(scenario.file.model_copy(update={"prices": priced}))
    cost = bill(scenario, policy_of(scenario, deployment)).cost(3600.0, {})
    assert cost is not None
    return cost


def _kept(deployment: str, rate: float, requests: int | None) -> float:
    """Which part of the requests keeps to the SLO at a rate."""
    scenario = load_scenario(SCENARIO)
    file = scenario.file
    update = {"rate_per_s": rate} | ({} if requests is None else {"limit": requests})
    section = file.workload.model_copy(update=update)
    scenario = scenario.with_file(file.model_copy(update={"workload": section}))
    run = play(scenario, policy_of(scenario, deployment))
    judged = run.outcomes[int(FILLING * len(run.outcomes)) :]
    kept = [isinstance(o.end, Finish) and keeps(o, scenario.goal) for o in judged]
    return sum(kept) / len(kept)
