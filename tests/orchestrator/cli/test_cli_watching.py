"""What one who watches a service is told: what there is, then each change and nothing else."""

from typing import Any

from orchestrator.cli.watching import Change, Watch

READY = {"ready": True, "why_not": None, "gateway": {"name": "gw-1"}}


def worker(state: str = "up", pid: int | None = 7, **more: Any) -> dict[str, Any]:
    name, roles = "hami/p/0", ["main", "prefill"]
    return {"name": name, "state": state, "roles": roles, "pid": pid, "load": None} | more


def told(*workers: dict[str, Any], site: str = "up", **more: Any) -> dict[str, Any]:
    return READY | {"sites": [{"name": "hami", "state": site}], "workers": workers} | more


def lines(watch: Watch, account: dict[str, Any] | None) -> list[str]:
    return [str(change) for change in watch.see(account)]


def test_first_what_there_is_then_only_what_changes() -> None:
    watch = Watch()
    assert lines(watch, told(worker())) == [
        "gateway: ready, name gw-1",
        "site hami: up",
        "worker hami/p/0: up, roles main, prefill, pid 7",
    ]
    assert lines(watch, told(worker(load={"running": 3}))) == []
    assert lines(watch, told(worker("draining"), site="draining")) == [
        "site hami: state up > draining",
        "worker hami/p/0: state up > draining",
    ]
    assert lines(watch, told(site="draining")) == ["worker hami/p/0: gone"]
    assert lines(watch, told(worker(roles=["main"]), site="draining")) == [
        "worker hami/p/0: up, roles main, pid 7"
    ]


def test_a_worker_that_another_process_replaces() -> None:
    watch = Watch()
    watch.see(told(worker("draining")))
    assert lines(watch, told(worker("down", None))) == [
        "worker hami/p/0: state draining > down, pid 7 > none"
    ]
    assert watch.see(told(worker("up", 8))) == [
        Change(
            name="worker hami/p/0",
            before={"state": "down"},
            after={"state": "up", "pid": "8"},
        )
    ]


def test_of_a_gateway_that_is_away_nothing_else_is_told() -> None:
    watch = Watch()
    watch.see(told(worker()))
    assert lines(watch, None) == ["gateway: state ready > away, name gw-1 > none"]
    assert lines(watch, None) == []
    back = told(worker(), ready=False, why_not="no worker is up", gateway={"name": "gw-2"})
    assert lines(watch, back) == [
        "gateway: state away > not ready: no worker is up, name none > gw-2"
    ]
