"""Roles that a file leaves out are planned; with `replan` they follow."""

from pathlib import Path

import pytest

from orchestrator.errors import UserError
from orchestrator.replan.watch import Hysteresis
from orchestrator.replay.scenario.load import load_scenario
from orchestrator.replay.scenario.roles import plan_roles, replanning_of
from orchestrator.replay.scenario.run import play
from orchestrator.state.actions import Finish
from orchestrator.topology.load import load_topology
from orchestrator.topology.schema import Topology
from workers.api.messages import Role

P, R, M = Role.PREFILL, Role.RELAY, Role.MAIN
# Near prefills three times as fast, far decodes three times as fast.
OPEN = """\
model: smollm2-135m
sites:
  near:
    pools:
      compute: {chip: cpu, count: 3, instances: 2, engine: simulated,
                simulate: {prefill_tokens_per_s: 400, step: 60ms}}
  far:
    pools:
      memory: {chip: cpu, count: 2, instances: 2, engine: simulated,
               simulate: {prefill_tokens_per_s: 130, step: 20ms}}
links: [{between: [near, far], delay: 10ms, bandwidth: 200Mbps}]
gateway: {site: far}
slo: {ttft: 4s, tpot: 80ms}
plan: {prompt: 200, output: 40}
"""


def topology(folder: Path, text: str = OPEN, **changes: str) -> Topology:
    for old, new in changes.items():
        text = "\n".join(
            f"{old}: {new}" if line.startswith(f"{old}: ") else line for line in text.split("\n")
        )
    file = folder / "topology.yaml"
    file.write_text(text, encoding="utf-8")
    return load_topology(file)


def test_each_does_what_it_does_best(tmp_path: Path) -> None:
    planned = plan_roles(topology(tmp_path))
    assert planned.roles == {
        "near/compute/0": {P},
        "near/compute/1": {P},
        "far/memory/0": {M},
        "far/memory/1": {M},
    }, "two of the three chips have a worker"
    assert planned.told[:2] == ("planned: near/compute: 2 prefill", "planned: far/memory: 2 main")


def test_over_a_weak_line_each_site_serves_by_itself(tmp_path: Path) -> None:
    planned = plan_roles(topology(tmp_path, OPEN.replace("200Mbps", "5Mbps")))
    for site in ("near/compute", "far/memory"):
        assert {role for n in range(2) for role in planned.roles[f"{site}/{n}"]} == {P, M}


def test_roles_that_are_given_are_kept(tmp_path: Path) -> None:
    text = OPEN.replace("chip: cpu, count: 2", "chip: cpu, count: 2, roles: [prefill]")
    planned = plan_roles(topology(tmp_path, text))
    assert planned.roles.keys() == {"near/compute/0", "near/compute/1"}
    assert {M} in planned.roles.values()
    both = text.replace("count: 3", "count: 3, roles: [main]")
    assert plan_roles(topology(tmp_path, both)).roles == {}, "nothing is left to plan"


def test_engines_that_compute_are_planned_by_their_chips(tmp_path: Path) -> None:
    """With the memory that the file, or its default, gives each worker."""
    text = OPEN.replace("tpot: 80ms", "tpot: 1s").replace("ttft: 4s", "ttft: 20s")
    for simulated in ("400, step: 60ms", "130, step: 20ms"):
        text = text.replace(f"simulate: {{prefill_tokens_per_s: {simulated}}}", "slots: 4")
    planned = plan_roles(topology(tmp_path, text.replace("engine: simulated", "engine: torch")))
    assert {role for roles in planned.roles.values() for role in roles} >= {P, M}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "plan: {prompt: 200, output: 40}\n",
            "",
            "sites.near.pools.compute.roles: left out, so they are planned; add plan: {prompt: "
            "600, output: 128}, a usual request's tokens, or give roles",
        ),
        (
            "ttft: 4s",
            "ttft: 10ms",
            "sites.near.pools.compute.roles: left out, and no roles keep the slo: 100% of the "
            "requests miss TTFT 0.01 s with nobody before them; the longest take ",
        ),
        (
            "chip: cpu, count: 3, instances: 2, engine: simulated,\n                "
            "simulate: {prefill_tokens_per_s: 400, step: 60ms}",
            "chip: m890, instances: 1, count: 1",
            "sites.near.pools.compute.chip: to plan roles: the catalogue has no memory_tb_s of ",
        ),
    ],
    ids=["no plan", "no hope", "no figures"],
)
def test_what_cannot_be_planned_is_told(tmp_path: Path, old: str, new: str, told: str) -> None:
    text = OPEN.replace(old, new)
    assert text != OPEN
    with pytest.raises(UserError) as caught:
        plan_roles(topology(tmp_path, text))
    assert str(caught.value).startswith(told)


def test_roles_that_follow_need_a_usual_request(tmp_path: Path) -> None:
    assert replanning_of(topology(tmp_path)) is None
    found = replanning_of(topology(tmp_path, OPEN + "replan: {every: 2s, gain: 0.3}\n"))
    assert found is not None
    assert found.hysteresis == Hysteresis(margin=0.25, dwell_s=30.0, gain=0.3)
    assert found.every_s == 2.0
    assert [(pool.name, pool.shapes[0].most) for pool in found.base.pools] == [
        ("near/compute", 2),
        ("far/memory", 2),
    ]
    without = OPEN.replace("plan: {prompt: 200, output: 40}\n", "replan: {}\n")
    with pytest.raises(UserError, match="replan: until enough requests were measured it needs"):
        replanning_of(topology(tmp_path, without))


def test_a_policy_whose_roles_follow(tmp_path: Path) -> None:
    """The policy says so, or its topology does."""
    text = OPEN.replace("count: 3", "count: 3, roles: [prefill]")
    topology(tmp_path, text.replace("count: 2", "count: 2, roles: [main]"))
    file = tmp_path / "scenario.yaml"
    file.write_text(
        """\
topology: topology.yaml
workload:
  generated: {rate: 0.25/s, prompt: {mean: 200}, output: {mean: 40}, count: 40}
policies: [{name: fixed}, {name: follows, replan: {dwell: 5s}}]
faults: [{kind: site, site: near, from: 40s, until: 80s}]
""",
        encoding="utf-8",
    )
    scenario = load_scenario(file)
    fixed, follows = (play(scenario, policy) for policy in scenario.file.policies)
    for run in (fixed, follows):
        assert all(isinstance(outcome.end, Finish) for outcome in run.outcomes)
    assert fixed.roles == ()
    assert follows.roles[0].startswith("at 50 s site near is lost; nobody has the role prefill: ")
    assert [o.last_at for o in fixed.outcomes] != [o.last_at for o in follows.outcomes]
