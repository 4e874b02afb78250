"""The paper's three figures, each from replays, and what stands in the way of those not reached."""

from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing import get_context
from typing import Any

from benchmarks.paper import account
from benchmarks.paper.waits import SCENARIO, Case, Waits, prefills, reduction, wait
from benchmarks.paper.worth import RATIOS, Worth, cost_per_h, deployments, worth
from benchmarks.paper.worth import SCENARIO as WORTH_SCENARIO
from orchestrator.children import end_with_parent
from orchestrator.replay.scenario.load import load_scenario

FEWER = (10,)  # prefill instances, to see what they decide

Tell = Callable[[str], None]


def run(*, requests: int | None, jobs: int, tell: Tell = lambda line: None) -> dict[str, Any]:
    """All figures. `requests`: at most so many of each replay (None: all the scenarios have).

    With fewer than all there is no burst, and deployments are not full: the figures mean little.
    """
    one_site, two_sites = deployments()
    cases = [
        Case(policy="direct", requests=requests),
        Case(policy="relay", requests=requests),
        Case(policy="direct", hits="narrow", requests=requests),
        *(
            Case(policy=policy, prefills=count, requests=requests)
            for count in FEWER
            for policy in ("direct", "relay")
        ),
    ]
    with ProcessPoolExecutor(jobs, get_context("spawn"), end_with_parent) as pool:
        told: dict[Future[Any], str] = {}
        searches, waits = [], []
        for name in (two_sites, *one_site):  # the longest come first
            searches.append(pool.submit(worth, name, requests))
            told[searches[-1]] = f"the goodput of {name}"
        for case in cases:
            waits.append(pool.submit(wait, case))
            told[waits[-1]] = _told(case)
        for done in as_completed(told):
            tell(f"done: {told[done]}")
        found = {case: future.result() for case, future in zip(cases, waits, strict=True)}
        worths = [future.result() for future in searches]
    return _figures(cases, found, worths)


def _told(case: Case) -> str:
    of = "" if case.prefills is None else f", {case.prefills} prefill instances"
    return f"{case.policy}, {case.hits} hits{of}"


def _figures(cases: list[Case], found: dict[Case, Waits], worths: list[Worth]) -> dict[str, Any]:
    direct, relay, narrow = (found[case] for case in cases[:3])
    fewer = [(found[a], found[b]) for a, b in zip(cases[3::2], cases[4::2], strict=True)]
    stated = load_scenario(WORTH_SCENARIO)
    chips = stated.file.prices.chips
    ratio = chips["h200"] / chips["h100"]
    two, *ones = worths
    figures: dict[str, Any] = {
        "p90_second_token_reduction": reduction(
            relay.second_token_s.p90, direct.second_token_s.p90
        ),
        "p90_ttft_reduction": reduction(relay.ttft_s.p90, direct.ttft_s.p90),
        "bcr_gain": _gain(two, ones, ratio),
        "transfer": {
            name: {"p50_s": each.transfer_s.p50, "p99_s": each.transfer_s.p99}
            for name, each in (("skewed", direct), ("narrow", narrow))
        },
        "curve": [{"h200_over_h100": r, "bcr_gain": _gain(two, ones, r)} for r in RATIOS],
        "price_ratio": ratio,
        "deployments": [
            {**asdict(each), "cost_per_h": cost_per_h(stated, each.deployment, ratio)}
            for each in worths
        ],
        "waits": [asdict(each) for each in found.values()],
        "prefills": [
            {
                "instances": count,
                "p90_second_token_reduction": reduction(b.second_token_s.p90, a.second_token_s.p90),
                "direct_ttft_p50_s": a.ttft_s.p50,
                "direct_second_token_p90_s": a.second_token_s.p90,
                "transfer_p99_s": a.transfer_s.p99,
            }
            for count, (a, b) in zip(
                (prefills(load_scenario(SCENARIO)), *FEWER), ((direct, relay), *fewer), strict=True
            )
        ],
    }
    return {**figures, "account": account.account(figures)}


def _gain(two: Worth, ones: list[Worth], ratio: float) -> float | None:
    """By how much two sites' goodput for its price is above the best of one site."""
    scenario = load_scenario(WORTH_SCENARIO)

    def per_cost(each: Worth) -> float:
        return each.goodput_per_s * 3600 / cost_per_h(scenario, each.deployment, ratio)

    best = max(per_cost(each) for each in ones)
    return per_cost(two) / best - 1 if best else None
