"""What workers and agents say of themselves is read strictly."""

from typing import Any

import orjson
import pytest

from orchestrator.membership.reports import (
    Hello,
    LeaseRefused,
    WorkerState,
    read_hello,
    read_report,
)
from workers.api.budget import Budget
from workers.api.messages import Role
from workers.api.wire import WireError

H0 = {
    "name": "hami/p/0",
    "pool": "p",
    "roles": ["prefill"],
    "state": "up",
    "reason": None,
    "http": "127.0.0.1:1",
    "kv": "127.0.0.1:2",
    "info": {"pid": 1},
}
S0 = H0 | {"name": "shenzhen/q/0", "pool": "q"}
HELLO = {
    "worker": "hami/p/0",
    "incarnation": "first",
    "pid": 100,
    "slots": 4,
    "kv_bytes_per_token": 128,
    "info": {"max_context": 512, "kv_total_tokens": 2048},
}


DEEP: Any = orjson.loads("[" * 1020 + "]" * 1020)  # as deep as JSON is read, deeper than repr
STORE = {"pool": "p", "since": "", "version": "v", "whole": True, "added": "", "removed": ""}
ACCOUNT = {
    "counts": {"misses": 3},
    "tiers": {"dram": {"bytes": 1, "capacity_bytes": 2, "tenants": {"acme": 1}}},
    "unwritten_bytes": 0,
}


def account(**changed: Any) -> dict[str, Any]:
    return report(H0) | {"stores": [STORE | {"account": ACCOUNT | changed}]}


def report(*workers: dict[str, Any]) -> dict[str, Any]:
    return {"site": "hami", "agent_epoch": 1, "workers": list(workers), "lease": "renewed"}


def test_a_report_is_read_with_what_the_gateway_needs() -> None:
    said = read_report(report(H0 | {"state": "failed", "reason": "no memory"}))
    assert (said.site, said.agent_epoch, list(said.workers)) == ("hami", 1, ["hami/p/0"])
    worker = said.workers["hami/p/0"]
    assert (worker.pool, worker.roles) == ("p", {Role.PREFILL})
    assert (worker.state, worker.reason) == (WorkerState.FAILED, "no memory")
    assert (worker.http, worker.kv) == ("127.0.0.1:1", "127.0.0.1:2")


def test_of_a_stores_account_is_kept_what_is_shown() -> None:
    (store,) = read_report(account()).stores
    assert store.account == ACCOUNT | {"tiers": {"dram": {"bytes": 1, "capacity_bytes": 2}}}
    (away,) = read_report(report(H0) | {"stores": [STORE]}).stores
    assert away.account is None


def test_a_hello_is_read() -> None:
    assert read_hello(HELLO) == Hello(
        worker="hami/p/0",
        incarnation="first",
        pid=100,
        slots=4,
        max_context=512,
        kv_total_tokens=2048,
        kv_bytes_per_token=128,
    )


def test_a_hello_tells_how_large_a_block_is() -> None:
    assert read_hello(HELLO).block_size == 1, "its tokens are counted one by one"
    assert read_hello(HELLO | {"info": HELLO["info"] | {"block_size": 16}}).block_size == 16


def test_a_hello_may_tell_how_much_is_kept() -> None:
    keeps = {"budget": 0.5, "slack": 9, "recent": 8, "first": 0, "keep_prompt": True}
    assert read_hello(HELLO).keeps is None
    assert read_hello(HELLO | {"keeps": keeps}).keeps == Budget(**keeps)


def test_a_hello_may_tell_the_models_fingerprint() -> None:
    model = {"layers": 30, "windows": []}
    info = HELLO["info"] | {"fingerprint": model}
    assert read_hello(HELLO).fingerprint is None
    assert read_hello(HELLO | {"info": info}).fingerprint == model


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (None, "TypeError"),
        ([], "TypeError"),
        ({}, "KeyError 'info'"),
        (HELLO | {"info": None}, "TypeError"),
        (HELLO | {"pid": "100"}, "whole and above 0"),
        (HELLO | {"pid": True}, "whole and above 0"),
        (HELLO | {"incarnation": ""}, "must be text"),
        (HELLO | {"incarnation": 7}, "must be text"),
        (HELLO | {"slots": 0}, "whole and above 0"),
        (HELLO | {"info": HELLO["info"] | {"block_size": 0}}, "whole and above 0"),
        (HELLO | {"kv_bytes_per_token": None}, "whole and above 0"),
        (HELLO | {"keeps": {"budget": 0}}, "budget: a share"),
        (HELLO | {"keeps": {"share": 1}}, "TypeError"),
    ],
)
def test_what_is_no_hello_is_refused(body: Any, told: str) -> None:
    with pytest.raises(WireError, match=told):
        read_hello(body)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (None, "site: missing"),
        ([], "site: missing"),
        ({"site": 1}, "site: missing, or not of type str"),
        ({"site": "hami", "agent_epoch": "1"}, "agent_epoch: missing, or not of type int"),
        ({"site": "hami", "agent_epoch": True}, "agent_epoch: missing, or not of type int"),
        ({"site": "hami", "agent_epoch": 1}, "workers: missing"),
        ({"site": "hami", "agent_epoch": 1, "workers": ["x"]}, "roles: missing"),
        (report(H0) | {"workers": [H0 | {"name": None}]}, "name: missing"),
        (report(H0) | {"workers": [S0]}, "name: 'shenzhen/q/0' is no worker of 'hami/q'"),
        (report(H0 | {"roles": ["cook"]}), "'cook' is not a valid Role"),
        (report(H0 | {"roles": [["main"]]}), "roles: ['main'] is no role"),
        (report(H0 | {"roles": [DEEP]}), "roles: [[["),
        (report(H0) | {"standing": {"version": DEEP}}, "standing.version: [[["),
        (report(H0) | {"standing": {"version": 2**64 - 1}}, "is no version"),
        (report(H0) | {"site": "a\nb"}, "name: 'hami/p/0' is no worker of 'a\\nb/p'"),
        (report(H0) | {"stores": [STORE | {"account": []}]}, "counts: missing"),
        (report(H0) | {"stores": [STORE | {"account": {}}]}, "counts: missing"),
        (report(H0) | {"stores": [STORE | {"account": {"a\nb": 1}}]}, "counts: missing"),
        (account(counts={"a\nb": "3"}), "a\\nb: missing, or not of type int"),
        (account(counts={"misses": -1}), "'misses' is -1, below 0"),
        (account(tiers={"dram": {"bytes": 1}}), "capacity_bytes: missing"),
        (account(tiers={"dram": None}), "bytes: missing"),
        (account(unwritten_bytes=1.5), "unwritten_bytes: missing, or not of type int"),
        (report(H0 | {"state": "asleep"}), "'asleep' is not a valid WorkerState"),
        (report(H0 | {"http": "10.0.0.1"}), "http: '10.0.0.1' is not host:port"),
        (report(H0 | {"kv": "a b:1"}), "kv: 'a b:1' is not host:port"),
    ],
)
def test_a_malformed_report_is_refused_by_name(body: Any, told: str) -> None:
    with pytest.raises(LeaseRefused) as caught:
        read_report(body)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
