"""A whole deployment of simulated workers: Ray nodes, agents, the line; up, deaths, down."""

import asyncio
import dataclasses
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from orchestrator.live.agent import SiteSpec
from orchestrator.live.launch import Deployment
from orchestrator.live.ports import free_port
from orchestrator.live.processes import LaunchFailed
from orchestrator.live.site_workers import worker_configs
from orchestrator.membership.standing import Standing
from orchestrator.topology.load import load_topology
from workers.api.messages import Role
from workers.service.config import SECRET_ENV, Line

ROOT = Path(__file__).parents[3]
TOPOLOGY = ROOT / "configs/topologies/laptop-simulated.yaml"
# Ray needs 5-15 s to start, and several times that on a machine with other work.
pytestmark = pytest.mark.timeout(300)

WORKERS = ["hami/compute/0", "hami/relay/0", "shenzhen/memory/0"]


def processes_of(secret: str) -> list[psutil.Process]:
    """Every process that was given the deployment's secret, and it alone."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(SECRET_ENV) == secret:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def wait_until(good: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    """What `good` returns once that is true. Bounded."""
    pause = threading.Event()
    end = time.monotonic() + timeout_s
    while not (value := good()):
        assert time.monotonic() < end, "waited in vain"
        pause.wait(0.1)
    return value


class Gateway:
    """Hears the agents' leases, by site."""

    def __init__(self) -> None:
        self.port = free_port("127.0.0.1", set())
        self.leases: dict[str, dict[str, Any]] = {}

    async def serve(self) -> None:
        async def lease(request: Request) -> JSONResponse:
            body = await request.json()
            self.leases[body["site"]] = body
            return JSONResponse({"renewed": True, "stores": {}, "standing": Standing().told()})

        app = Starlette(routes=[Route("/internal/lease", lease, methods=["POST"])])
        config = uvicorn.Config(app, port=self.port, log_config=None, lifespan="off")
        await uvicorn.Server(config).serve()

    def worker(self, name: str) -> dict[str, Any]:
        site = name.split("/")[0]
        workers = self.leases.get(site, {"workers": []})["workers"]
        return next((w for w in workers if w["name"] == name), {"state": "unheard of"})


class Loop:
    """An event loop in a thread, for what lives longer than one test."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, job: Coroutine[Any, Any, Any], timeout_s: float = 100.0) -> Any:
        return asyncio.run_coroutine_threadsafe(job, self._loop).result(timeout_s)

    def spawn(self, job: Coroutine[Any, Any, Any]) -> None:
        asyncio.run_coroutine_threadsafe(job, self._loop)

    def close(self) -> None:
        """End what still runs in it, then the loop itself."""
        self.run(self._end_tasks(), 10.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)
        self._loop.close()

    async def _end_tasks(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class World:
    """The deployment under test, its gateway and its secret."""

    def __init__(self, loop: Loop, log_dir: Path) -> None:
        self.loop = loop
        # Others' children, such as multiprocessing's tracker that an earlier test has started.
        self.before = set(psutil.Process().children(recursive=True))
        self.secret = secrets.token_hex(16)
        self.gateway = Gateway()
        self.said: list[str] = []
        loop.spawn(self.gateway.serve())
        self.deployment: Deployment = loop.run(self._build(log_dir))

    async def _build(self, log_dir: Path) -> Deployment:
        return Deployment(
            load_topology(TOPOLOGY),
            model="simulated",
            gateways=[f"127.0.0.1:{self.gateway.port}"],
            secret=self.secret,
            progress=self.said.append,
            log_dir=log_dir,
        )

    def ask(self, address: str, path: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.secret}"}
        return httpx.get(f"http://{address}{path}", headers=headers, timeout=5.0)

    def until_up(self, name: str, other_than_pid: int | None = None) -> dict[str, Any]:
        def good() -> dict[str, Any] | None:
            worker = self.gateway.worker(name)
            up = worker["state"] == "up" and worker["info"]["pid"] != other_than_pid
            return worker if up else None

        return wait_until(good, 60.0)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    loop = Loop()
    made = World(loop, tmp_path_factory.mktemp("logs"))
    try:
        loop.run(made.deployment.start(), 250.0)
        yield made
    finally:
        loop.run(made.deployment.stop())
        loop.close()


def test_it_comes_up_and_tells_how(world):
    assert world.said[0] == "emulating hami - shenzhen: 25 ms, 10 Mbps"
    assert world.said[1] == "starting ray (2 nodes)"
    for name in WORKERS:
        assert f"worker {name}: up" in world.said
        worker = world.until_up(name)
        described = world.ask(worker["http"], "/info").json()
        assert described["worker"] == name
        assert described["pid"] == worker["info"]["pid"]
        assert httpx.get(f"http://{worker['http']}/info").status_code == 401


def test_the_directory_leads_through_the_line(world):
    """Within a site plainly; across, through the line: a round trip takes its delay, twice."""
    directory = world.deployment.directory
    near = world.until_up("shenzhen/memory/0")
    far = world.until_up("hami/relay/0")

    def add(worker: dict[str, Any], site: str) -> Any:
        job = directory.add(worker["name"], site, worker["http"], worker["kv"])
        return world.loop.run(job)

    assert add(near, "shenzhen").control == f"http://{near['http']}"
    place = add(far, "hami")
    assert len({place.control, place.tokens, f"http://{far['http']}"}) == 3
    assert directory.kv("hami/relay/0", "hami") == f"{far['kv']}@hami"
    across = directory.kv("shenzhen/memory/0", "hami")
    assert across.endswith("@shenzhen")
    assert near["kv"] not in across
    assert add(far, "hami") == place
    began = time.monotonic()
    assert world.ask(place.control.removeprefix("http://"), "/health").status_code == 200
    assert time.monotonic() - began >= 0.05


def test_a_killed_worker_comes_back_on_its_ports(world):
    before = world.until_up("hami/compute/0")
    os.kill(before["info"]["pid"], signal.SIGKILL)
    after = world.until_up("hami/compute/0", other_than_pid=before["info"]["pid"])
    assert (after["http"], after["kv"]) == (before["http"], before["kv"])
    assert world.ask(after["http"], "/health").json()["ok"]


def test_a_killed_agent_is_replaced_and_adopts_the_workers(world):
    workers = [world.until_up(name) for name in WORKERS[:2]]
    epoch = world.gateway.leases["hami"]["agent_epoch"]
    (agent,) = (
        p
        for p in processes_of(world.secret)
        if "AgentActor" in p.name() + " ".join(p.cmdline())
        and any(c.laddr.port == port_of(world, "hami") for c in p.net_connections("tcp"))
    )
    agent.kill()
    wait_until(lambda: world.gateway.leases["hami"]["agent_epoch"] > epoch, 60.0)
    assert [world.until_up(name) for name in WORKERS[:2]] == workers


def port_of(world: World, site: str) -> int:
    return int(world.deployment.agents[site].rsplit(":", 1)[1])


def test_a_site_that_no_node_has_is_refused_at_once(world, tmp_path):
    """Ray itself would wait in silence for ever."""
    environment = processes_of(world.secret)[0].environ()
    port = free_port("127.0.0.1", set())
    spec = SiteSpec(site="mars", workers=(), gateways=(), gateway_site="mars", port=port)
    order = {
        "address": environment["RAY_ADDRESS"],
        "nodes": 2,
        "log_dir": None,
        "sites": [dataclasses.asdict(spec)],
    }
    (tmp_path / "order.json").write_text(json.dumps(order))
    command = [sys.executable, "-m", "orchestrator.live.create_agents", "order.json", "result.json"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=60)
    refused = json.loads((tmp_path / "result.json").read_text())["error"]
    assert refused.startswith("no node with label site=mars (nodes: ")
    assert "site=hami" in refused
    assert "site=shenzhen" in refused


@pytest.mark.parametrize("site", ["shenzhen", "hami"])
def test_a_node_that_ends_is_started_again(world, site):
    """And with it what ran there; hami's is the head, without which all nodes end."""
    ours = [name for name in WORKERS if name.startswith(site)]
    pids = {name: world.until_up(name)["info"]["pid"] for name in ours}
    (raylet,) = (
        p
        for p in processes_of(world.secret)
        if p.name() == "raylet" and f"site={site}" in p.parent().cmdline()
    )
    raylet.kill()
    for name, pid in pids.items():
        world.until_up(name, other_than_pid=pid)
    assert not world.deployment.failed.done()
    for name in WORKERS:
        world.until_up(name)
    assert any("started again" in line for line in world.said)


def test_a_worker_that_its_agent_drains_ends(world):
    worker = world.until_up("hami/relay/0")
    drained = httpx.post(
        f"http://{world.deployment.agents['hami']}/drain",
        json={"workers": ["hami/relay/0"]},
        headers={"authorization": f"Bearer {world.secret}"},
        timeout=5.0,
    )
    assert drained.json() == {"draining": ["hami/relay/0"]}
    wait_until(lambda: world.gateway.worker("hami/relay/0")["state"] == "drained")
    wait_until(lambda: not psutil.pid_exists(worker["info"]["pid"]), 10.0)
    assert world.gateway.worker("hami/compute/0")["state"] == "up"


def test_a_line_that_ends_is_a_failed_deployment(world):
    (line,) = [
        child
        for child in psutil.Process().children()
        if child.status() != psutil.STATUS_ZOMBIE and "transport.emulator" in child.cmdline()
    ]
    assert not world.deployment.failed.done()
    line.kill()
    wait_until(world.deployment.failed.done, 10.0)
    assert world.deployment.failed.result() == "the emulated line ended (code -9)"


def test_a_stop_leaves_no_process(world):
    children = set(psutil.Process().children(recursive=True)) - world.before
    assert len(children) > 5
    assert len(processes_of(world.secret)) > 5
    world.loop.run(world.deployment.stop())
    assert processes_of(world.secret) == []
    assert [p for p in children if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []


def test_a_start_that_fails_halfway_leaves_no_process():
    secret = secrets.token_hex(16)

    async def scenario() -> None:
        deployment = Deployment(
            load_topology(TOPOLOGY),
            model="simulated",
            gateways=["127.0.0.1:1"],
            secret=secret,
            progress=lambda _: None,
            start_s=3.0,
        )
        with pytest.raises(LaunchFailed, match="not up within 3 s"):
            await deployment.start()

    asyncio.run(scenario())
    assert processes_of(secret) == []


OWNER = """
import asyncio, sys
from orchestrator.live.launch import Deployment
from orchestrator.topology.load import load_topology

async def main():
    deployment = Deployment(
        load_topology(sys.argv[1]), model="simulated", gateways=["127.0.0.1:1"],
        secret=sys.argv[2], progress=lambda line: print(line, flush=True))
    await deployment.start()

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_everything_ends_when_the_owner_is_killed(number):
    secret = secrets.token_hex(16)
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(TOPOLOGY), secret],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
    )
    try:
        started = wait_until(
            lambda: [p for p in processes_of(secret) if p.name() == "gcs_server"], 60.0
        )
        family = psutil.Process(owner.pid).children(recursive=True)
        assert started[0] in family
        owner.send_signal(number)
        owner.wait(45)  # its supervisor may take what it is given
        wait_until(lambda: not processes_of(secret), 15.0)
        wait_until(lambda: not any(p.is_running() for p in family), 5.0)
    finally:
        owner.kill()
        owner.wait(10)


def test_workers_are_configured_as_the_topology_says():
    topology = load_topology(TOPOLOGY)
    configs = worker_configs(topology, "hami", "/a/model")
    assert [c.name for c in configs] == WORKERS[:2]
    assert configs[0].roles == (Role.MAIN, Role.PREFILL)
    line = Line(rate_bytes_per_s=1.25e6, rtt_s=0.05, paced=True)
    assert configs[0].lines == {"shenzhen": line}
    assert {c.model for c in configs} == {"/a/model"}
    pool = topology.sites["hami"].pools["compute"]
    assert replace(configs[0], http_port=1).kv_tokens == pool.kv_tokens
