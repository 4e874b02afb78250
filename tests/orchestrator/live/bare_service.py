"""Real gateways, agents and worker processes without Ray: simulated engines, up in seconds."""

import asyncio
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx

from orchestrator.live.agent import SiteAgent, SiteSpec, Unavailable
from orchestrator.live.directory import Directory
from orchestrator.live.driver import new_gateway_name
from orchestrator.live.gateway import Gateway, load_tokenizer, read_card, take_port
from orchestrator.live.gateway_processes import GatewayProcesses, check_ports
from orchestrator.live.ports import free_port
from orchestrator.live.site_workers import store_configs, worker_configs
from orchestrator.membership.inventory import Description, Phase
from orchestrator.topology.schema import Topology
from workers.engines.models import resolve_model
from workers.service.config import SECRET_ENV, WorkerConfig
from workers.service.process import SIMULATED_MODEL
from workers.storage.process import StoreProcessConfig

SECRET = "a-secret-of-this-test"
KEY = {"authorization": f"Bearer {SECRET}"}
HOST = "127.0.0.1"
UP_S = 60.0


class ProcessHandle:
    """A worker that is a child process of the test."""

    def __init__(self, config: WorkerConfig, folder: Path) -> None:
        self._config = config
        file = folder / f"{config.name.replace('/', '-')}.json"
        file.write_text(json.dumps(dataclasses.asdict(config)))
        self._log = file.with_suffix(".log")
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "workers.service.process", str(file)],
                env=os.environ | {SECRET_ENV: SECRET, "OMP_NUM_THREADS": "1"},
                stderr=log,
            )
        self.url = f"http://{config.host}:{config.http_port}"
        self._http = httpx.AsyncClient(base_url=self.url, headers=KEY, trust_env=False)
        self._draining = False

    async def describe(self) -> Description:
        config, info, phase = self._config, None, Phase.SERVING
        if self.process.poll() is not None:
            if not self._draining:
                raise Unavailable(self._log.read_text().strip() or "its process is gone")
            phase = Phase.ENDED
        else:
            try:
                info = (await self._http.get("/info")).json()
            except httpx.TransportError as error:
                raise Unavailable(str(error)) from error
        return Description(
            http=f"{config.host}:{config.http_port}",
            kv=f"{config.host}:{config.kv_port}",
            phase=phase,
            reason=None,
            draining=self._draining,
            info=info,
        )

    async def drain(self) -> None:
        self._draining = True
        await self._http.post("/drain")

    async def remove(self) -> None:
        self.kill()

    async def blocks(self) -> dict[str, int]:
        """The worker's own count of legs and tokens."""
        counted: dict[str, int] = (await self._http.get("/blocks")).json()
        return counted

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


class ProcessPlacer:
    """Places a site's workers and stores as child processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.placed: dict[str, ProcessHandle] = {}
        self.stores: dict[str, StoreProcessConfig] = {}
        self._stores: dict[str, subprocess.Popen[bytes]] = {}

    def refusal(self, workers: int) -> str | None:
        return None

    def find(self, name: str) -> ProcessHandle | None:
        return self.placed.get(name)

    def place(self, config: WorkerConfig) -> ProcessHandle:
        self.placed[config.name] = ProcessHandle(config, self._folder)
        return self.placed[config.name]

    def keep_store(self, config: StoreProcessConfig) -> None:
        file = self._folder / f"{config.name.replace('/', '-')}.json"
        file.write_text(json.dumps(dataclasses.asdict(config), default=str))
        self.stores[config.name] = config
        with file.with_suffix(".log").open("wb") as log:
            self._stores[config.name] = subprocess.Popen(
                [sys.executable, "-m", "workers.storage.process", str(file)],
                env=os.environ | {SECRET_ENV: SECRET},
                stderr=log,
            )

    def remove_store(self, name: str) -> None:
        self._stores[name].terminate()
        self._stores[name].wait(20)

    def kill_all(self) -> None:
        for handle in self.placed.values():
            handle.kill()
        for process in self._stores.values():
            process.kill()
            process.wait(10)


class Bare:
    """What runs. `urls` are the gateways' as clients see them, `agents` the agents' fronts.

    Of gateways that are processes each one's own comes first, then that of all. `told` is what
    they are said to do.
    """

    def __init__(self, topology: Topology, folder: Path) -> None:
        self.topology = topology
        self.placer = ProcessPlacer(folder)
        self.http = httpx.AsyncClient(headers=KEY, timeout=30.0, trust_env=False)
        self.urls: list[str] = []
        self.told: list[str] = []
        self.agents: dict[str, str] = {}

    async def free(self) -> bool:
        """No worker has a leg or a referenced block."""
        counts = [await handle.blocks() for handle in self.placer.placed.values()]
        return all(count["legs"] == 0 == count["held_tokens"] for count in counts)

    async def until_free(self, within_s: float) -> None:
        await until(self.free, "every worker is free", within_s)

    async def status(self, url: str) -> dict[str, Any]:
        told: dict[str, Any] = (await self.http.get(f"{url}/status")).json()
        return told


async def until(true: Callable[[], Any], what: str, within_s: float = 20.0) -> None:
    """Wait until an awaitable says so."""
    loop = asyncio.get_running_loop()
    end = loop.time() + within_s
    while not await true():
        assert loop.time() < end, f"not within {within_s:g} s: {what}"
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def bare_service(
    topology: Topology, *, gateways: int = 1, model: str = SIMULATED_MODEL
) -> AsyncIterator[Bare]:
    """Everything up; ended at the end, process by process. `model`: the workers' (the KV of
    `SIMULATED_MODEL` is small).

    With `gateway.processes` above 1 they are what they are then; else `gateways` of them are in
    this process, each at an address of its own.
    """
    with tempfile.TemporaryDirectory() as folder:
        bare = Bare(topology, Path(folder))
        try:
            async with contextlib.AsyncExitStack() as stack:
                await stack.enter_async_context(bare.http)
                if topology.gateway.processes > 1:
                    internal = await _gateway_processes(bare, stack)
                else:
                    internal = [await _gateway(bare, stack) for _ in range(gateways)]
                for site in topology.sites:
                    await _agent(bare, stack, site, internal, model)
                for url in bare.urls:
                    await until(lambda url=url: _ready(bare, url), f"{url} is ready", UP_S)
                yield bare
        finally:
            bare.placer.kill_all()


async def _ready(bare: Bare, url: str) -> bool:
    try:
        return (await bare.http.get(f"{url}/ready")).status_code == 200
    except httpx.TransportError:
        return False


async def _gateway_processes(bare: Bare, stack: contextlib.AsyncExitStack) -> list[str]:
    """Start them; where agents reach each."""
    gateway = bare.topology.gateway
    check_ports(bare.topology)
    ports = _free_ports(gateway.processes)
    processes = GatewayProcesses(
        bare.topology,
        model=resolve_model(bare.topology.model),
        internal=ports,
        emulator=None,
        secret=SECRET,
        log_dir=None,
        tell=bare.told.append,
    )
    stack.push_async_callback(processes.stop)
    own = range(gateway.port + 1, gateway.port + 1 + gateway.processes)
    bare.urls += [f"http://{HOST}:{port}" for port in (*own, gateway.port)]
    return [f"http://{HOST}:{port}" for port in ports]


async def _gateway(bare: Bare, stack: contextlib.AsyncExitStack) -> str:
    """Start one; where agents reach it."""
    topology = bare.topology
    directory = resolve_model(topology.model)
    gateway = Gateway(
        topology,
        name=new_gateway_name(),
        card=read_card(topology.model, directory),
        tokenizer=load_tokenizer(topology.model, directory),
        directory=Directory(topology, None),
        secret=SECRET,
    )
    public, internal = (stack.enter_context(take_port(HOST, 0)) for _ in range(2))
    stop = asyncio.Event()
    running = asyncio.create_task(gateway.run(public, internal, stop))

    async def end() -> None:
        stop.set()
        await running

    stack.push_async_callback(end)
    bare.urls.append(f"http://{HOST}:{public.getsockname()[1]}")
    return f"http://{HOST}:{internal.getsockname()[1]}"


async def _agent(
    bare: Bare, stack: contextlib.AsyncExitStack, site: str, gateways: list[str], model: str
) -> None:
    port, *others = _free_ports(1 + len(bare.topology.sites[site].pools))
    ports = iter(others)
    stores = store_configs(bare.topology, site, lambda: next(ports))
    spec = SiteSpec(
        site=site,
        workers=worker_configs(bare.topology, site, model, stores=stores),
        stores=stores,
        gateways=tuple(gateways),
        gateway_site=bare.topology.gateway.site,
        port=port,
    )
    ready = asyncio.Event()
    running = asyncio.create_task(SiteAgent(spec, bare.placer, SECRET, None).run(ready.set))

    async def end() -> None:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    stack.push_async_callback(end)
    await ready.wait()
    bare.agents[site] = f"http://{HOST}:{port}"


def _free_ports(count: int) -> list[int]:
    ports: list[int] = []
    for _ in range(count):
        ports.append(free_port(HOST, set(ports)))
    return ports
