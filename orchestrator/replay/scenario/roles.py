"""Roles that a file leaves to the planner: those to begin with, and those that follow."""

from dataclasses import dataclass
from pathlib import Path

from orchestrator.catalogue import load_catalogue
from orchestrator.errors import UserError
from orchestrator.plan.assignment import ROLES, Assignment
from orchestrator.plan.search import Objective, plan
from orchestrator.replan.decide import roles_of
from orchestrator.replan.seen import WorkerSeen
from orchestrator.replan.watch import Hysteresis, Replanning
from orchestrator.replay.scenario.impossible import impossible
from orchestrator.replay.scenario.problem import problem_of
from orchestrator.replay.scenario.schema import (
    Compared,
    Generate,
    Lengths,
    Scenario,
    ScenarioFile,
    WorkloadSection,
)
from orchestrator.topology.mistakes import path_text
from orchestrator.topology.schema import Replan, Topology
from workers.api.messages import Role

EXAMPLE = "plan: {prompt: 600, output: 128}, a usual request's tokens"
SAID = ("kv_tokens", "slots", "chunk_tokens")  # of a pool, also where its file does not
REQUESTS = 400  # that stand for the usual one; those that find a document first are few of them


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRoles:
    """What the workers of open pools do, and that in lines for people."""

    roles: dict[str, frozenset[Role]]
    told: tuple[str, ...]


def plan_roles(topology: Topology) -> PlannedRoles:
    """For the pools that leave their roles out. Raises UserError for what cannot be planned."""
    left = [
        f"sites.{site}.pools.{name}.roles"
        for site, place in topology.sites.items()
        for name, pool in place.pools.items()
        if pool.open
    ]
    if not left:
        return PlannedRoles(roles={}, told=())
    if topology.plan is None:
        raise UserError(f"{left[0]}: left out, so they are planned; add {EXAMPLE}, or give roles")
    problem = problem_of(_usual(topology), keep_roles=True, running=True)
    best = plan(problem, Objective.GOODPUT).best
    if not best.rate:
        raise UserError(
            f"{left[0]}: left out, and no roles keep the slo: {best.why}; give roles, another slo "
            "or another plan"
        )
    workers = [
        WorkerSeen(name=f"{site}/{name}/{i}", site=site, pool=f"{site}/{name}", roles=pool.roles)
        for site, place in topology.sites.items()
        for name, pool in place.pools.items()
        if pool.open
        for i in range(pool.instances)
    ]
    return PlannedRoles(
        roles=roles_of(workers, best.assignment), told=tuple(_told(best.assignment, best.rate))
    )


def replanning_of(topology: Topology) -> Replanning | None:
    """How a running topology's roles follow the world. Raises UserError."""
    if topology.replan is None:
        return None
    if topology.plan is None:
        raise UserError(f"replan: until enough requests were measured it needs {EXAMPLE}")
    return replanning(_usual(topology), topology.replan)


def replanning(scenario: Scenario, settings: Replan) -> Replanning:
    """For a scenario's topology and workload. Raises UserError."""
    return Replanning(
        base=problem_of(scenario, running=True),
        hysteresis=Hysteresis(margin=settings.margin, dwell_s=settings.dwell_s, gain=settings.gain),
        every_s=settings.every_s,
    )


def _usual(topology: Topology) -> Scenario:
    """The topology as it is served, under its usual request. Raises UserError."""
    usual = topology.plan
    assert usual is not None
    asked = {
        "rate_per_s": 1.0,
        "prompt": Lengths(mean=usual.prompt),
        "output": Lengths(mean=usual.output),
        "hits": usual.hits,
        "count": REQUESTS,
    }
    scenario = Scenario(
        name="plan",
        file=ScenarioFile(
            topology=_as_served(topology),
            workload=WorkloadSection(generated=Generate.model_validate(asked)),
            policies=(Compared(name="plan"),),
        ),
        catalogue=load_catalogue(),
        directory=Path(),
    )
    for where, what in impossible(scenario):
        raise UserError(f"{path_text(where[1:])}: to plan roles: {what}")
    return scenario


def _as_served(topology: Topology) -> Topology:
    """Its pools say what a worker is given, defaults too: in a scenario they would not count."""
    sites = {}
    for site, place in topology.sites.items():
        pools = {}
        for name, pool in place.pools.items():
            said = {key: getattr(pool, key) for key in SAID}
            pools[name] = pool.model_copy(update=said)
        sites[site] = place.model_copy(update={"pools": pools})
    return topology.model_copy(update={"sites": sites})


def _told(assignment: Assignment, rate: float) -> list[str]:
    lines = []
    for post in assignment.posts:
        counts = [f"{post.count(role)} {role.value}" for role in ROLES if post.count(role)]
        lines.append(f"planned: {post.pool}: {', '.join(counts) or 'whatever comes'}")
    return [*lines, f"planned: {rate:.3g} requests/s within the slo"]
