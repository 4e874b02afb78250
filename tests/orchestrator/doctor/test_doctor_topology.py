"""What the doctor says of a topology: its lines' buffers and its certificates."""

import datetime
from pathlib import Path

import pytest

from orchestrator.doctor.certificates import certificate_findings
from orchestrator.doctor.finding import Finding, State
from orchestrator.doctor.lines import line_findings
from orchestrator.doctor.tcp import Kernel
from orchestrator.topology.load import load_topology
from orchestrator.topology.schema import Topology
from tests.orchestrator.doctor.test_doctor_tcp import KERNEL, MIB
from transport.certificates import Authority
from transport.tcp.client import CONNECTIONS

NOW = datetime.datetime.now(datetime.UTC)
TEXT = """
model: llama-3.1-70b
sites:
  hami:
    launch: agent
    pools:
      compute: {chip: h100, roles: [prefill]}
  shenzhen:
    pools:
      memory: {chip: h200, roles: [main]}
links:
  - {between: [hami, shenzhen], delay: 25ms, bandwidth: BANDWIDTH}
gateway: {site: shenzhen}
"""


def topology(folder: Path, bandwidth: str = "1Gbps", more: str = "") -> Topology:
    file = folder / "topology.yaml"
    file.write_text(TEXT.replace("BANDWIDTH", bandwidth) + more, encoding="utf-8")
    return load_topology(file)


def line(folder: Path, bandwidth: str, *, wmem: int, rmem: int) -> Finding:
    kernel = Kernel(
        available=KERNEL.available,
        allowed=KERNEL.allowed,
        rmem=(4096, 131072, rmem),
        wmem=(4096, 16384, wmem),
        rmem_max=None,
        wmem_max=None,
        slow_start_after_idle=False,
        window_scaling=True,
    )
    (finding,) = line_findings(topology(folder, bandwidth), kernel)
    assert finding.check == "line hami - shenzhen"
    return finding


# 1 Gbps x 50 ms: 6.25 MB under way; twice that, shared by the connections, is what each holds.
NEEDED = int(2 * 6.25e6 / CONNECTIONS)


def test_buffers_that_are_just_enough(tmp_path: Path) -> None:
    finding = line(tmp_path, "1Gbps", wmem=NEEDED, rmem=NEEDED)
    assert (finding.state, finding.advice) == (State.OK, None)
    assert finding.value.startswith("1 Gbps x 50 ms = 5.96 MiB under way; 4 connections need ")


@pytest.mark.parametrize("small", ["wmem", "rmem"])
def test_a_buffer_that_is_too_small(tmp_path: Path, small: str) -> None:
    sizes = {"wmem": 4 * MIB, "rmem": 4 * MIB} | {small: NEEDED // 2}
    finding = line(tmp_path, "1Gbps", **sizes)
    assert finding.state is State.WARN
    assert finding.value.endswith("enough for about 500 Mbps")
    first = {"wmem": 16384, "rmem": 131072}[small]
    least = f"net.ipv4.tcp_{small}='4096 {first} {3 * MIB}'"
    assert finding.advice == f"on both ends: sysctl -w {least}"


def test_a_line_beyond_what_the_connections_take(tmp_path: Path) -> None:
    finding = line(tmp_path, "400Gbps", wmem=512 * MIB, rmem=512 * MIB)
    assert finding.state is State.WARN
    assert "need buffers of 256 MiB each, the most they take: enough for about 85" in finding.value


def test_an_emulated_line_asks_nothing_of_tcp(tmp_path: Path) -> None:
    finding = line(tmp_path, "400Gbps, emulate: true", wmem=4096, rmem=4096)
    assert finding.state is State.OK
    assert "emulated" in finding.value


def certified(folder: Path, lasts: datetime.timedelta) -> Topology:
    authority = Authority(NOW, lasts)
    (folder / "ca.pem").write_bytes(authority.pair.cert)
    pair = authority.issue("shenzhen")
    (folder / "shenzhen.pem").write_bytes(pair.cert)
    (folder / "shenzhen.key").write_bytes(pair.key)
    tls = 'security: {tls: {ca: ca.pem, cert: "{site}.pem", key: "{site}.key"}}'
    return topology(folder, more=tls)


def test_certificates_of_this_machine(tmp_path: Path) -> None:
    far, near = datetime.timedelta(days=31, minutes=1), datetime.timedelta(days=29, minutes=1)
    for lasts, state, days in ((far, State.OK, "31 days"), (near, State.WARN, "29 days")):
        findings = certificate_findings(certified(tmp_path, lasts), NOW)
        # Hami's agent runs elsewhere, and so do its files.
        checks = ["certificate of the CA", "certificate of shenzhen"]
        assert [finding.check for finding in findings] == checks
        assert {finding.state for finding in findings} == {state}
        assert all(finding.value.endswith(days) for finding in findings)


def test_without_tls_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert certificate_findings(topology(tmp_path), NOW) == []
