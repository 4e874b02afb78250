"""What of a changed file a running deployment takes on, in lines, and what it refuses."""

from typing import Any

import pytest

from orchestrator.errors import UserError
from orchestrator.topology.changes import changes
from orchestrator.topology.schema import Topology

POOL = {"chip": "cpu", "engine": "simulated", "roles": ["prefill", "main"]}
RELAY = POOL | {"roles": ["relay"]}
KEPT = {"kv_store": {"dram": 1 << 30}}


def topology(hami: dict[str, Any] | None = None, **changed: Any) -> Topology:
    sites = {
        "hami": {"pools": {"p": POOL, "r": RELAY} if hami is None else hami},
        "shenzhen": {"pools": {"m": POOL | KEPT}},
    }
    return Topology.model_validate(
        {
            "model": "smollm2-135m",
            "sites": sites,
            "links": [{"between": ["hami", "shenzhen"], "delay": 0.025, "bandwidth": 1e6}],
            "gateway": {"site": "shenzhen"},
        }
        | changed
    )


def test_pools_come_go_and_change() -> None:
    new = topology(
        hami={
            "p": POOL | {"instances": 3, "simulate": {"step": 0.1}},
            "extra": {"chip": "cpu", "instances": 2},
        }
    )
    assert changes(topology(), new) == [
        "sites.hami.pools.p: instances 1 > 3, "
        "simulate none > prefill_tokens_per_s 2000.0, step_s 0.1",
        "sites.hami.pools.extra: added, 2 workers, roles by plan",
        "sites.hami.pools.r: removed, 1 worker, relay",
    ]
    assert changes(new, new) == []


def test_roles_and_what_they_are_planned_for() -> None:
    open_ = {"p": {"chip": "cpu", "engine": "simulated"}, "r": RELAY}
    other = {"p": POOL | {"roles": ["main"]}, "r": RELAY}
    assert changes(topology(), topology(other)) == [
        "sites.hami.pools.p: roles main and prefill > main"
    ]
    planned = topology(open_, plan={"prompt": 100, "output": 10})
    assert changes(topology(), planned) == ["sites.hami.pools.p: roles by plan", "plan: changed"]
    assert changes(planned, topology())[0] == "sites.hami.pools.p: roles main and prefill"
    assert changes(topology(), topology(slo={"ttft": 1.0})) == ["slo: changed"]


@pytest.mark.parametrize(
    ("new", "where"),
    [
        (topology(model="other"), "model"),
        (topology(gateway={"site": "shenzhen", "port": 9}), "gateway"),
        (topology(policy={"route": "relay"}), "policy"),
        (topology(security={"api_keys_env": "K"}), "security"),
        (topology(links=[]), "links"),
        (
            topology(hami={"p": POOL | KEPT, "r": RELAY}),
            "sites.hami.pools.p.kv_store",
        ),
        (topology(replan={}), "replan"),
    ],
)
def test_what_cannot_change_is_named(new: Topology, where: str) -> None:
    with pytest.raises(UserError) as refused:
        changes(topology(), new)
    assert str(refused.value) == f"{where}: cannot change while it runs"


def test_sites_stay_and_everything_wrong_is_named_at_once() -> None:
    before = topology()
    hami = before.sites["hami"]
    sites = {"mars": hami, "hami": hami.model_copy(update={"launch": "agent", "pools": {}})}
    new = before.model_copy(update={"sites": sites, "model": "other"})
    with pytest.raises(UserError) as refused:
        changes(before, new)
    assert str(refused.value) == (
        "model; sites.hami.launch; sites.shenzhen; sites.mars: cannot change while it runs"
    )


def test_a_removed_pool_with_a_store_cannot_go() -> None:
    before = topology()
    shenzhen = before.sites["shenzhen"].model_copy(update={"pools": {}})
    new = before.model_copy(update={"sites": before.sites | {"shenzhen": shenzhen}})
    with pytest.raises(UserError, match=r"^sites\.shenzhen\.pools\.m\.kv_store: cannot change"):
        changes(before, new)


def test_what_an_engines_environment_holds_is_not_told() -> None:
    def with_env(value: str) -> Topology:
        vllm = {"engine": "vllm", "vllm": {"python": "p", "env": {"TOKEN": value}}}
        return topology(hami={"p": POOL | vllm, "r": RELAY})

    (line,) = changes(with_env("s3cret"), with_env("0ther"))
    assert "env TOKEN" in line
    assert "s3cret" not in line
    assert "0ther" not in line
