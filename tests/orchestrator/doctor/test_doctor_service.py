"""What the doctor says of a running service."""

from email.utils import formatdate
from typing import Any

import pytest

from orchestrator.doctor.finding import Finding, State
from orchestrator.doctor.service import Asked, service_findings

AT = 1_800_000_000.0
MODEL = {"tensors": "abc", "kv_dtype": "bfloat16", "layers": 30}
WORKERS = [
    {"name": name, "roles": ["main"], "state": "up", "fingerprint": MODEL}
    for name in ("a/p/0", "a/p/1", "b/q/0")
]
LINK = {
    "between": ["a", "b"],
    "bandwidth_bytes_per_s": 1.25e6,
    "goodput_bytes_per_s": 1.25e6,
    "measured_s_ago": None,
    "rtt_s": 0.05,
    "loss": None,
    "queue_bytes": 2048,
    "emulator": None,
}
STATUS = {
    "model": "m",
    "gateway": {"site": "b"},
    "ready": True,
    "why_not": None,
    "workers": WORKERS,
    "links": [LINK],
}


def look(date: str | None = formatdate(AT, usegmt=True), **changes: Any) -> list[Finding]:
    asked = Asked(sent_at=AT + 0.4, answered_at=AT + 0.6, date=date)
    return service_findings(STATUS | changes, asked)


def odd(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.state is not State.OK]


def test_all_is_well() -> None:
    findings = look()
    assert odd(findings) == []
    values = {finding.check: finding.value for finding in findings}
    assert values["service"] == "m, gateway in b: ready"
    assert values["link a > b"] == (
        "RTT 50 ms, 10 Mbps of 10 Mbps (not measured yet), 2 KiB of KV to send"
    )
    assert values["fingerprint"].endswith(" at 3 of 3 workers that are up")
    assert values["gateway's clock"] == ("round trip 200 ms; +0.0 s from ours, give or take 0.6 s")


def test_the_one_with_another_model_is_named() -> None:
    other = WORKERS[1] | {"fingerprint": MODEL | {"tensors": "xyz"}}
    (finding,) = odd(look(workers=[WORKERS[0], other, WORKERS[2]]))
    assert (finding.check, finding.state) == ("fingerprint of a/p/1", State.FAIL)
    assert finding.value.endswith(": tensors 'xyz' and not 'abc'")


def test_workers_that_are_not_up() -> None:
    down = WORKERS[0] | {"state": "down", "fingerprint": None}
    leaving = WORKERS[1] | {"state": "draining"}
    found = odd(look(workers=[down, leaving, WORKERS[2]]))
    assert [(f.check, f.state) for f in found] == [
        ("worker a/p/0", State.FAIL),
        ("worker a/p/1", State.WARN),
    ]
    assert not any("fingerprint" in f.check for f in look(workers=[down]))


def test_a_service_that_is_not_ready() -> None:
    (finding,) = odd(look(ready=False, why_not="no worker is up"))
    assert (finding.check, finding.state) == ("service", State.FAIL)
    assert finding.value.endswith("not ready: no worker is up")


@pytest.mark.parametrize(
    ("seen", "told", "state"),
    [
        ({"loss": 1e-3}, "loss 0.001, ", State.OK),
        ({"loss": 0.05}, "loss 0.05, ", State.WARN),
        ({"goodput_bytes_per_s": 1e6}, "8 Mbps of 10 Mbps (measured 7 s ago)", State.OK),
        ({"goodput_bytes_per_s": 0.5e6}, "4 Mbps of 10 Mbps (measured 7 s ago)", State.WARN),
        ({"emulator": "127.0.0.1:1"}, ", emulated", State.OK),
    ],
)
def test_a_link_that_was_measured(seen: dict[str, Any], told: str, state: State) -> None:
    finding = look(links=[LINK | {"measured_s_ago": 7.2} | seen])[-1]
    assert finding.state is state
    assert told in finding.value


@pytest.mark.parametrize(("ahead_s", "state"), [(2, State.OK), (-2, State.OK), (10, State.WARN)])
def test_a_clock_that_is_off(ahead_s: int, state: State) -> None:
    clock = look(date=formatdate(AT + ahead_s, usegmt=True))[1]
    assert (clock.check, clock.state) == ("gateway's clock", state)
    assert f"{ahead_s:+.1f} s from ours" in clock.value


@pytest.mark.parametrize("date", [None, "today"])
def test_a_gateway_that_tells_no_date(date: str | None) -> None:
    assert look(date=date)[1].value == "round trip 200 ms; its answer has no date"
