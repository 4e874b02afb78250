"""`host`, `ports` and `gateway.agents`: what they become, and each mistake's line."""

from pathlib import Path

import pytest

from orchestrator.topology.addresses import AddressError, check_host, parse_ports
from orchestrator.topology.load import load_topology
from orchestrator.topology.mistakes import TopologyError
from orchestrator.topology.schema import Agents

TEXT = """\
model: smollm2-135m
sites:
  hami:
    launch: agent
    host: 10.0.0.1
    ports: 7000-7004
    pools: {all: {chip: cpu, count: 2, instances: 2, roles: [prefill, relay]}}
  shenzhen:
    launch: agent
    host: shenzhen.example
    ports: 7000 - 7002
    pools: {all: {chip: cpu, roles: [main]}}
links:
  - {between: [hami, shenzhen], distance_km: 4000, bandwidth: 20Gbps}
gateway:
  site: shenzhen
  host: 10.0.0.2
  agents: {host: 10.0.0.2, port: 7100}
"""


def mistakes(folder: Path, *changes: tuple[str, str]) -> list[str]:
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file = folder / "topology.yaml"
    file.write_text(text)
    with pytest.raises(TopologyError) as error:
        load_topology(file)
    return [line.removeprefix(f"{file}:") for line in str(error.value).splitlines()]


def test_what_they_become(tmp_path: Path) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text(TEXT)
    topology = load_topology(file)
    hami, shenzhen = topology.sites["hami"], topology.sites["shenzhen"]
    assert (hami.host, hami.port_range) == ("10.0.0.1", range(7000, 7005))
    assert (shenzhen.host, shenzhen.port_range) == ("shenzhen.example", range(7000, 7003))
    assert topology.gateway.agents == Agents(host="10.0.0.2", port=7100)


def test_without_them_there_are_none(tmp_path: Path) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text(
        TEXT.replace("    host: 10.0.0.1\n    ports: 7000-7004\n", "").replace(
            "  agents: {host: 10.0.0.2, port: 7100}\n", ""
        )
    )
    topology = load_topology(file)
    site = topology.sites["hami"]
    assert (site.host, site.port_range, topology.gateway.agents) == (None, None, None)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            ("host: 10.0.0.1", "host: 0.0.0.0"),
            "5:11: sites.hami.host: 0.0.0.0 is no address that others can reach; give the "
            "machine's own",
        ),
        (
            ("host: 10.0.0.1", "host: 10.0.0.1:7000"),
            "5:11: sites.hami.host: expected a host such as 10.0.0.1, got '10.0.0.1:7000'",
        ),
        (
            ("ports: 7000-7004", "ports: 7000"),
            "6:12: sites.hami.ports: expected text, got 7000",
        ),
        (
            ("ports: 7000-7004", "ports: 7004-7000"),
            "6:12: sites.hami.ports: expected a range of ports such as 7000-7009, got '7004-7000'",
        ),
        (
            ("ports: 7000-7004", "ports: 65530-65540"),
            "6:12: sites.hami.ports: expected a range of ports such as 7000-7009, "
            "got '65530-65540'",
        ),
        (
            ("ports: 7000-7004", "ports: 7000-7003"),
            "6:12: sites.hami.ports: the agent needs one port and each of 2 workers two: 5, "
            "but there are 4",
        ),
        (
            ("host: shenzhen.example", "host: 10.0.0.1"),
            "11:12: sites.shenzhen.ports: port 7000 of 10.0.0.1 is sites.hami.ports already",
        ),
        (
            ("agents: {host: 10.0.0.2, port: 7100}", "agents: {host: 10.0.0.1, port: 7002}"),
            "6:12: sites.hami.ports: port 7002 of 10.0.0.1 is gateway.agents.port already",
        ),
        (
            ("port: 7100}", "port: 8003}\n  processes: 4"),
            "18:34: gateway.agents.port: port 8003 of 10.0.0.2 is gateway.port already",
        ),
        (
            ("port: 7100}", "prot: 7100}"),
            "18:28: gateway.agents.prot: unknown key 'prot'; did you mean 'port'?",
        ),
    ],
)
def test_mistakes(tmp_path: Path, change: tuple[str, str], line: str) -> None:
    assert line in mistakes(tmp_path, change)


def test_one_mistake_is_told_once(tmp_path: Path) -> None:
    assert len(mistakes(tmp_path, ("ports: 7000-7004", "ports: 7004-7000"))) == 1


@pytest.mark.parametrize("text", ["", "a b", "-a", "a-", "::1"])
def test_what_is_no_host(text: str) -> None:
    with pytest.raises(AddressError, match="expected a host"):
        check_host(text)


@pytest.mark.parametrize("text", ["0-9", "1-", "a-b", "1-70000", "7000-7001-7002"])
def test_what_are_no_ports(text: str) -> None:
    with pytest.raises(AddressError, match="expected a range"):
        parse_ports(text)
