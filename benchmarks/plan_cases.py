"""Small deployments in which every assignment can be simulated, and large ones to be quick with."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.catalogue import load_catalogue
from orchestrator.plan.problem import Problem
from orchestrator.plan.search import Objective
from orchestrator.replay.scenario.schema import (
    Compared,
    Generate,
    Lengths,
    Scenario,
    ScenarioFile,
    WorkloadSection,
)
from orchestrator.topology.schema import Deadlines, Gateway, Link, Policy, Pool, Site, Slo, Topology
from workers.api.messages import MAIN, PREFILL, RELAY, Role

REQUESTS = 4000  # by fewer a queue that is overloaded has not grown yet
# A request that is refused is not late: the goal alone is to judge.
PATIENT = Deadlines(queue_s=300.0, prefill_s=300.0)
CV = 0.5  # of prompts and outputs
PRICES = {"h100": 2.0, "h200": 2.5, "h20": 1.2, "a100": 1.2, "l40s": 0.9}  # a chip an hour

ENDS = frozenset({PREFILL, MAIN})
NEAR = frozenset({PREFILL, RELAY})
ONLY_MAIN = frozenset({MAIN})
ONLY_PREFILL = frozenset({PREFILL})
ANY = frozenset(Role)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A scenario to plan; `free` shapes, or only the ones that its pools name."""

    name: str
    scenario: Scenario
    objective: Objective = Objective.GOODPUT
    free: bool = False

    def narrowed(self, problem: Problem) -> Problem:
        """The problem with the shapes that count here."""
        if self.free:
            return problem
        pools = []
        for pool in problem.pools:
            site, name = pool.name.split("/")
            parallel = self.scenario.file.topology.sites[site].pools[name].parallel
            pools.append(replace(pool, shapes=(pool.shape(parallel),)))
        return replace(problem, pools=tuple(pools))


def chips(chip: str, count: int, parallel: int, roles: frozenset[Role]) -> Pool:
    """So many of a kind, `parallel` of them to a worker."""
    return Pool(chip=chip, count=count, parallel=parallel, roles=roles, price_per_h=PRICES[chip])


def make(
    name: str,
    sites: Mapping[str, Mapping[str, Pool]],
    *,
    links: Sequence[tuple[str, str, float, float]] = (),
    gateway: str,
    prompt: float,
    output: float,
    model: str = "llama-3.1-70b",
    ttft_s: float = 3.0,
    tpot_s: float = 0.05,
    hits: float = 0.0,
    objective: Objective = Objective.GOODPUT,
    free: bool = False,
) -> Case:
    """`links`: two sites, Gbps, and seconds one way."""
    topology = Topology(
        model=model,
        sites={site: Site(launch="agent", pools=dict(pools)) for site, pools in sites.items()},
        links=tuple(
            Link(between=(a, b), rate_bytes_per_s=gbps * 0.125e9, delay_s=delay_s)
            for a, b, gbps, delay_s in links
        ),
        gateway=Gateway(site=gateway),
        slo=Slo(ttft_s=ttft_s, tpot_s=tpot_s),
        policy=Policy(queue_limit=100_000, deadlines=PATIENT),
    )
    generated = Generate(
        rate_per_s=1.0,
        prompt=Lengths(mean=prompt, cv=CV, most=16_384),
        output=Lengths(mean=output, cv=CV, most=2048),
        hits=hits,
        documents=8,
        count=REQUESTS,
    )
    file = ScenarioFile(
        topology=topology,
        workload=WorkloadSection(generated=generated, warm=bool(hits)),
        policies=(Compared(name="auto"),),
        seed=1,
    )
    catalogue = load_catalogue()
    scenario = Scenario(name=name, file=file, catalogue=catalogue, directory=Path())
    return Case(name=name, scenario=scenario, objective=objective, free=free)


def small() -> list[Case]:
    """Each with few enough assignments for all to be simulated."""
    per_cost = Objective.PER_COST
    return [
        make(
            "one site",
            {"a": {"x": chips("h100", 16, 4, ENDS)}},
            gateway="a", prompt=2000, output=200,
        ),
        make(
            "one site, for its money",
            {"a": {"x": chips("h100", 16, 4, ENDS)}},
            gateway="a", prompt=2000, output=200, objective=per_cost,
        ),
        make(
            "long answers",
            {"a": {"x": chips("h100", 16, 4, ENDS)}},
            gateway="a", prompt=1000, output=700, tpot_s=0.03,
        ),
        make(
            "long prompts",
            {"a": {"x": chips("h100", 16, 4, ENDS)}},
            gateway="a", prompt=6000, output=100, ttft_s=8.0,
        ),
        make(
            "two kinds of chips",
            {"a": {"x": chips("h100", 8, 4, ENDS), "y": chips("h20", 8, 4, ENDS)}},
            gateway="a", prompt=2000, output=300, ttft_s=4.0,
        ),
        make(
            "two sites, 20 Gbps",
            {"a": {"x": chips("h100", 12, 4, NEAR)}, "b": {"y": chips("h200", 8, 4, ONLY_MAIN)}},
            links=[("a", "b", 20, 0.025)],
            gateway="b", prompt=3000, output=200,
        ),
        make(
            "two sites, 3 Gbps",
            {"a": {"x": chips("h100", 12, 4, NEAR)}, "b": {"y": chips("h200", 8, 4, ONLY_MAIN)}},
            links=[("a", "b", 3, 0.025)],
            gateway="b", prompt=3000, output=200,
        ),
        make(
            "two sites, for their money",
            {"a": {"x": chips("h100", 8, 4, ENDS)}, "b": {"y": chips("h20", 8, 4, ENDS)}},
            links=[("a", "b", 20, 0.025)],
            gateway="b", prompt=2000, output=300, ttft_s=4.0, objective=per_cost,
        ),
        make(
            "short answers, slow line",
            {"a": {"x": chips("h100", 12, 4, NEAR)}, "b": {"y": chips("h200", 4, 4, ONLY_MAIN)}},
            links=[("a", "b", 2, 0.1)],
            gateway="a", prompt=3000, output=40, tpot_s=0.04,
        ),
        make(
            "three sites",
            {
                "a": {"x": chips("h100", 8, 4, ONLY_PREFILL)},
                "b": {"y": chips("h200", 4, 4, ONLY_MAIN)},
                "c": {"z": chips("h20", 4, 4, ONLY_MAIN)},
            },
            links=[("a", "b", 20, 0.02), ("a", "c", 20, 0.02), ("b", "c", 10, 0.01)],
            gateway="a", prompt=2000, output=300,
        ),
        make(
            "free shapes",
            {"a": {"x": chips("h200", 8, 2, ENDS)}},
            gateway="a", prompt=2000, output=200, model="qwen3-32b", free=True,
        ),
        make(
            "any role",
            {"a": {"x": chips("h100", 4, 4, ANY)}, "b": {"y": chips("h200", 8, 4, ENDS)}},
            links=[("a", "b", 20, 0.025)],
            gateway="b", prompt=3000, output=200,
        ),
        make(
            "known prompts",
            {"a": {"x": chips("h100", 8, 4, ENDS)}, "b": {"y": chips("h200", 4, 4, ENDS)}},
            links=[("a", "b", 10, 0.025)],
            gateway="b", prompt=4000, output=200, hits=0.7,
        ),
    ]  # fmt: skip


def large(sites: int, pools: int) -> Case:
    """Sites in a chain with some chords, pools of all kinds; nobody could try all assignments."""
    draw = random.Random(1)
    names = [f"s{number}" for number in range(sites)]
    placed: dict[str, dict[str, Pool]] = {name: {} for name in names}
    for number in range(pools):
        chip = draw.choice(sorted(PRICES))
        parallel = 8 if chip == "l40s" else 4
        pool = chips(chip, parallel * draw.choice((1, 2, 4)), parallel, ANY)
        placed[names[number % sites]][f"p{number}"] = pool.model_copy(update={"scale_up": 8})
    links = [
        (a, b, draw.choice((5.0, 10.0, 20.0, 100.0)), 0.003 + 0.02 * draw.random())
        for place, a in enumerate(names)
        for b in names[place + 1 :]
        if sites <= 3 or b == names[(place + 1) % sites] or draw.random() < 0.3
    ]
    return make(
        f"{sites} sites, {pools} pools", placed, links=links, gateway="s0", prompt=3000, output=250,
        objective=Objective.PER_COST, free=True,
    )  # fmt: skip
