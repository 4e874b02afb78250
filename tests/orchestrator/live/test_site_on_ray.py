"""`pdd site --ray`: a site on the node of a Ray cluster that somebody else started."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.service import free_port
from orchestrator.live.launch import _free_ports
from tests.orchestrator.live.live_service import until
from tests.orchestrator.live.test_launch_deployment import Gateway, Loop
from workers.service.config import SECRET_ENV

pytestmark = pytest.mark.timeout(400)

SECRET = "a-secret-of-this-test"
HOST = "127.0.0.1"


def topology(agents: int, ports: int, instances: int) -> str:
    return f"""
model: smollm2-135m
sites:
  hami:
    launch: agent
    host: {HOST}
    ports: {ports}-{ports + 4}
    pools:
      p: {{chip: cpu, count: 2, instances: {instances}, engine: simulated, roles: [prefill, main]}}
  shenzhen: {{launch: agent, host: {HOST}}}
links:
  - {{between: [hami, shenzhen], delay: 1ms, bandwidth: 1Gbps}}
gateway: {{site: shenzhen, agents: {{host: {HOST}, port: {agents}}}}}
"""


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    loop = Loop()

    async def made() -> Gateway:
        return Gateway()

    gateway = loop.run(made())
    loop.spawn(gateway.serve())
    yield gateway
    loop.close()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """What a cluster's nodes and whoever joins it have in common."""
    return os.environ | {
        SECRET_ENV: SECRET,
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "0123456789abcdef" * 4,
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }


@pytest.fixture
def ray(environment: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """The address of a cluster of one node with the site's label."""
    port, dashboard = _free_ports(2)
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *("--port", str(port), "--node-ip-address", HOST, "--temp-dir", f"/tmp/pdd-{port}"),
        *("--labels", "site=hami", "--num-cpus", "1", "--num-gpus", "0"),
        *("--object-store-memory", str(100 << 20), "--include-dashboard", "false"),
        *("--dashboard-port", str(dashboard)),
        *("--dashboard-agent-listen-port", "0", "--metrics-export-port", "0"),
        *("--disable-usage-stats", "--include-log-monitor", "false"),
    ]
    log = (tmp_path / "ray.log").open("wb")
    process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    yield f"{HOST}:{port}"
    family = [process, *psutil.Process(process.pid).children(recursive=True)]
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.terminate()
    psutil.wait_procs(family[1:], 20)
    process.wait(20)
    log.close()


class Site:
    """`pdd site` as a process, and what it says."""

    def __init__(self, file: Path, ray: str, environment: dict[str, str]) -> None:
        self.said: list[str] = []
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "orchestrator.cli.main", "site", "hami", str(file)),
                *("--ray", ray, "-o", "json"),
            ],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.strip())

    def says(self, text: str) -> None:
        ended = self.process.poll
        until(lambda: self.has(text) or ended() is not None, f"it says {text}", 120.0)
        assert self.has(text), self.said

    def has(self, text: str) -> bool:
        return any(text in line for line in self.said)

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        code = self.process.wait(120)
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@pytest.fixture
def site(ray: str, environment: dict[str, str]) -> Iterator[Callable[[Path], Site]]:
    """Starts the site of a file; one that a test leaves running ends with it."""
    started: list[Site] = []

    def start(file: Path) -> Site:
        started.append(Site(file, ray, environment))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.end(signal.SIGTERM)


def pid(worker: dict[str, Any]) -> int | None:
    return (worker.get("info") or {}).get("pid")


def left_here() -> list[str]:
    """Actors of a site whose processes are of this test's cluster."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            line = " ".join(child.cmdline())
            if "WorkerActor" in line or "AgentActor" in line:
                found.append(line)
    return found


def test_a_site_joins_a_cluster_is_adopted_follows_its_file_and_leaves(
    gateway: Gateway, site: Callable[[Path], Site], tmp_path: Path
) -> None:
    file, ports = tmp_path / "topology.yaml", free_port()
    file.write_text(topology(gateway.port, ports, 1))
    first = site(file)
    first.says('"ready"')
    until(lambda: gateway.worker("hami/p/0")["state"] == "up", "the worker is up")
    before = pid(gateway.worker("hami/p/0"))
    assert len(left_here()) == 2
    first.end(signal.SIGKILL)
    second = site(file)
    second.says('"ready"')
    until(lambda: gateway.worker("hami/p/0")["state"] == "up", "the other agent has heard it")
    assert pid(gateway.worker("hami/p/0")) == before, "another agent adopted it"
    file.write_text(topology(gateway.port, ports, 2))
    second.process.send_signal(signal.SIGHUP)
    second.says("sites.hami.pools.p: instances 1 > 2")
    until(lambda: gateway.worker("hami/p/1")["state"] == "up", "the new worker is up")
    assert pid(gateway.worker("hami/p/0")) == before
    assert second.end(signal.SIGTERM) == 0, second.said
    until(lambda: left_here() == [], "nothing of it is left in the cluster", 30.0)
    assert {w["state"] for w in gateway.leases["hami"]["workers"]} == {"drained"}
