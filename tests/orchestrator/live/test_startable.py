"""What `pdd serve` and `pdd site` refuse before they start anything, and the ports they give."""

from pathlib import Path

import pytest

from orchestrator.errors import UserError
from orchestrator.live.site_workers import worker_configs, worker_start_s
from orchestrator.live.startable import agents_addresses, agents_host, check_site, check_startable
from orchestrator.membership.inventory import START_S
from orchestrator.topology.load import load_topology
from orchestrator.topology.schema import Topology
from workers.engines.vllm.settings import START_S as VLLM_START_S
from workers.engines.vllm.settings import VllmSettings
from workers.service.config import SECRET_ENV

TEXT = """\
model: smollm2-135m
sites:
  hami:
    launch: agent
    host: 10.0.0.1
    ports: 7000-7006
    pools:
      compute: {chip: cpu, count: 2, instances: 2, roles: [prefill]}
      relay: {chip: cpu, roles: [relay]}
  shenzhen:
    host: 10.0.0.2
    pools: {memory: {chip: cpu, roles: [main]}}
links:
  - {between: [hami, shenzhen], distance_km: 4000, bandwidth: 20Gbps}
gateway: {site: shenzhen, agents: {host: 10.0.0.2, port: 7100}}
"""
AGENTS = ", agents: {host: 10.0.0.2, port: 7100}"


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_ENV, "a secret of this test")


def topology(folder: Path, *changes: tuple[str, str]) -> Topology:
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file = folder / "topology.yaml"
    file.write_text(text)
    return load_topology(file)


def refusals(folder: Path, site: str, *changes: tuple[str, str]) -> list[str]:
    """What the gateway's machine says, and what the site's."""
    told, found = topology(folder, *changes), []
    for check in (lambda: check_startable(told), lambda: check_site(told, site)):
        with pytest.raises(UserError) as error:
            check()
        found.append(str(error.value))
    return found


def test_a_site_here_and_one_elsewhere(tmp_path: Path) -> None:
    told = topology(tmp_path)
    check_startable(told)
    check_site(told, "hami")
    assert agents_addresses(told) == ["10.0.0.2:7100"]
    assert agents_host(told) == "10.0.0.2"


def test_each_process_of_the_gateway_hears_agents_on_a_port_of_its_own(tmp_path: Path) -> None:
    told = topology(tmp_path, (AGENTS, AGENTS + ", processes: 2"))
    assert agents_addresses(told) == ["10.0.0.2:7100", "10.0.0.2:7101"]
    last = topology(tmp_path, (AGENTS, ", agents: {host: 10.0.0.2, port: 65535}, processes: 2"))
    with pytest.raises(UserError, match=r"gateway\.agents\.port: no room above it for 2"):
        agents_addresses(last)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            (AGENTS, ""),
            "gateway.agents: missing; say where agents reach the gateway, such as "
            "{host: 10.0.0.2, port: 7100}",
        ),
        (
            ("    host: 10.0.0.2\n", ""),
            "sites.shenzhen.host: missing; say where the other sites reach its workers",
        ),
        (
            ("20Gbps}", "20Gbps, emulate: true}"),
            "links[0].emulate: only between sites that start on one machine, not with "
            "launch: agent; leave it out",
        ),
    ],
)
def test_what_sites_on_several_machines_must_say(
    tmp_path: Path, change: tuple[str, str], line: str
) -> None:
    assert refusals(tmp_path, "hami", change) == [line, line]


def test_agents_need_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET_ENV)
    (line,) = set(refusals(tmp_path, "hami"))
    assert line.startswith("PDD_SECRET is not set: ")


def test_each_machine_looks_after_its_own_engines(tmp_path: Path) -> None:
    relay = "relay: {chip: cpu, count: 2, parallel: 2, roles: [relay]}"
    told = topology(tmp_path, ("relay: {chip: cpu, roles: [relay]}", relay))
    check_startable(told)
    with pytest.raises(UserError, match=r"sites\.hami\.pools\.relay\.parallel: the torch engine"):
        check_site(told, "hami")


def test_what_is_no_site_for_an_agent(tmp_path: Path) -> None:
    told = topology(tmp_path)
    with pytest.raises(UserError, match=r"sites\.shenzhen\.launch: local, so pdd serve starts it"):
        check_site(told, "shenzhen")
    with pytest.raises(UserError, match="unknown site 'hammi'; did you mean 'hami'"):
        check_site(told, "hammi")


def test_declared_ports_are_given_in_their_order(tmp_path: Path) -> None:
    """The first is the agent's."""
    told = topology(tmp_path)
    assert [(c.host, c.http_port, c.kv_port) for c in worker_configs(told, "hami", "m")] == [
        ("10.0.0.1", 7001, 7002),
        ("10.0.0.1", 7003, 7004),
        ("10.0.0.1", 7005, 7006),
    ]
    (memory,) = worker_configs(told, "shenzhen", "m")
    assert (memory.host, memory.http_port, memory.kv_port) == ("10.0.0.2", 0, 0)


def test_a_worker_is_told_of_its_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A python with a slash is meant from here: workers run elsewhere."""
    monkeypatch.chdir(tmp_path)
    vllm = "engine: vllm, parallel: 2, count: 2, vllm: {python: env/bin/python, args: [--x]}"
    change = ("pools: {memory: {chip: cpu,", f"pools: {{memory: {{chip: cpu, {vllm},")
    one = topology(tmp_path, change, ("model: smol", "kv_dtype: float32\nmodel: smol"))
    (config,) = worker_configs(one, "shenzhen", "m")
    assert (config.engine, config.kv_dtype, config.parallel) == ("vllm", "float32", 2)
    assert config.vllm == VllmSettings(python=str(tmp_path / "env/bin/python"), args=("--x",))
    assert worker_start_s(one, "hami") == START_S
    assert worker_start_s(one, "shenzhen") == START_S + VLLM_START_S, "the engine's own wait"
    attach = (vllm, 'engine: vllm, vllm: {attach: "http://127.0.0.1:1", pools: here}')
    (config,) = worker_configs(topology(tmp_path, change, attach), "shenzhen", "m")
    assert config.vllm == VllmSettings(attach="http://127.0.0.1:1", pools=str(tmp_path / "here"))
    (plain, *_) = worker_configs(one, "hami", "m")
    assert (plain.engine, plain.vllm) == ("torch", None)
