"""Brings up what `launch: local` sites need on this machine: Ray nodes, the line, the agents."""

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import ssl
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx

from orchestrator.live.agent import SiteSpec, free_port
from orchestrator.live.directory import Directory
from orchestrator.live.http import base_url, site_client
from orchestrator.live.site_workers import AS_POOLED, HOST, Roles, store_configs, worker_configs
from orchestrator.membership.reports import WorkerState
from orchestrator.topology.schema import Topology
from orchestrator.topology.units import show_rate
from transport.emulator.control import LineControl, LineError, start_emulator
from transport.tls import refusal
from workers.service.config import SECRET_ENV

ROOT = Path(__file__).parents[2]
# Ray turns 127.0.0.1 into an address that others can reach; this one it leaves on the loopback.
RAY_HOST = "127.0.0.2" if sys.platform == "linux" else HOST
OBJECT_STORE_BYTES = 100 * 1024 * 1024
WORKERS_PER_CPU = 10  # as many as `ray_site.WORKER_CPUS` lets into one of Ray's CPUs
HELPER = "helper"
POLL_S = 0.5
STOP_S = 15.0

log = logging.getLogger(__name__)

Progress = Callable[[str], None]


class LaunchFailed(Exception):
    """The deployment did not come up; one line naming the cause."""


class Deployment:
    """The local sites of a topology. `start` may fail anywhere: `stop` cleans up what there is.

    `model` is what workers load: a name from the catalogue or a directory. `gateways` are the
    "host:port" where each gateway hears agents, `tls` what they are dialled with. `agents` holds
    the agents' addresses by site, `line` the control of the emulated line, `failed` is done when
    a process of the deployment ended by itself.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        model: str,
        gateways: Sequence[str],
        secret: str,
        roles: Roles = AS_POOLED,
        tls: ssl.SSLContext | None = None,
        progress: Progress,
        log_dir: Path | None = None,
        start_s: float = 300.0,
    ) -> None:
        self._topology = topology
        self._model = model
        self._gateways = gateways
        self._secret = secret
        self._roles = roles
        self._tls = tls
        self._progress = progress
        self._start_s = start_s
        self._sites = [name for name, site in topology.sites.items() if site.launch == "local"]
        self._scratch = Path()  # made by `start`
        self._log_dir = None if log_dir is None else log_dir.resolve()
        self._supervisor: asyncio.subprocess.Process | None = None
        self._emulator: asyncio.subprocess.Process | None = None
        self._helped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watching: list[asyncio.Task[None]] = []
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.agents: dict[str, str] = {}
        self.line: LineControl | None = None
        self.directory = Directory(topology, None)

    async def start(self) -> None:
        """Return when every local worker is up. Raises LaunchFailed, after cleaning up."""
        self._scratch = Path(tempfile.mkdtemp(prefix="pdd-"))
        try:
            self._logs.mkdir(parents=True, exist_ok=True)
            async with asyncio.timeout(self._start_s):
                await self._start_line()
                if self._sites:
                    await self._start_sites()
        except TimeoutError as error:
            await self.stop()
            raise LaunchFailed(f"not up within {self._start_s:g} s") from error
        except (OSError, LineError) as error:
            await self.stop()
            raise LaunchFailed(str(error)) from error
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End every process of the deployment and wait for that; harmless when repeated."""
        for task in self._watching:
            task.cancel()
        if self.line is not None:
            await self.line.close()
            self.line = None
        for process in (self._supervisor, self._emulator):
            if process is not None:
                await end_process(process)
        if self._scratch.name:
            shutil.rmtree(self._scratch, ignore_errors=True)

    @property
    def emulator_port(self) -> int | None:
        """Where the emulated line is told what to do; None: there is none."""
        return None if self.line is None else int(self.line.address.rpartition(":")[2])

    @property
    def _logs(self) -> Path:
        return self._scratch / "logs" if self._log_dir is None else self._log_dir

    async def inventory(self, site: str) -> dict[str, Any]:
        """What a site's agent knows. Raises httpx.HTTPError."""
        async with site_client(site, self._secret, self._tls, timeout_s=5.0) as http:
            answered = await http.get(f"{base_url(self.agents[site], self._tls)}/inventory")
            answered.raise_for_status()
            inventory: dict[str, Any] = answered.json()
            return inventory

    # ------------------------------------------------------------ starting

    async def _start_line(self) -> None:
        links = [link for link in self._topology.links if link.emulate]
        if not links:
            return
        for link in links:
            rate, ends = show_rate(link.rate_bytes_per_s), " - ".join(link.between)
            self._progress(f"emulating {ends}: {link.delay_s * 1e3:g} ms, {rate}")
        lines = [
            {
                "between": list(link.between),
                "delay_s": link.delay_s,
                "rate_bytes_per_s": link.rate_bytes_per_s,
                "jitter_s": link.jitter_s,
                "loss": link.loss,
            }
            for link in links
        ]
        self._emulator, self.line = await start_emulator({"lines": lines})
        self._watching.append(asyncio.create_task(self._watch_emulator(self._emulator)))
        self.directory = Directory(self._topology, self.line)

    async def _start_sites(self) -> None:
        count = len(self._sites)
        self._progress(f"starting ray ({count} node{'s' if count > 1 else ''})")
        pools = [p for site in self._sites for p in self._topology.sites[site].pools.values()]
        stores = sum(pool.kv_pool is not None for pool in pools)
        ports = iter(_free_ports(3 + count + stores))
        address = f"{RAY_HOST}:{next(ports)}"
        environment = self._environment(address)
        specs = [await self._spec(site, ports) for site in self._sites]
        await self._start_supervisor()
        self._start_nodes(address, specs, environment, dashboard=next(ports), client=next(ports))
        await self._create_agents(address, specs, environment)
        await self._until_up()

    async def _spec(self, site: str, ports: Iterator[int]) -> SiteSpec:
        home, tls = self._topology.gateway.site, self._topology.security.tls
        seen = [
            await self.directory.seen(gateway, home, site, "control") for gateway in self._gateways
        ]
        stores = store_configs(self._topology, site, lambda: next(ports))
        for store in stores:
            if store.tiers.files is not None:  # what cannot be made shows at once
                store.tiers.files.mkdir(mode=0o700, parents=True, exist_ok=True)
        return SiteSpec(
            site=site,
            workers=worker_configs(self._topology, site, self._model, self._roles, stores),
            stores=stores,
            gateways=tuple(base_url(gateway, self._tls) for gateway in seen),
            gateway_site=home,
            host=HOST,
            port=next(ports),
            tls=None if tls is None else tls.files(site),
            sites=tuple(self._topology.sites),
        )

    def _environment(self, address: str) -> dict[str, str]:
        path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            "PYTHONPATH": os.pathsep.join(path),
            SECRET_ENV: self._secret,
            "OMP_NUM_THREADS": "1",
            "RAY_ADDRESS": address,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "RAY_BACKEND_LOG_LEVEL": "warning",
            "RAY_prestart_worker_first_driver": "0",
            "RAY_worker_niceness": "0",  # by default Ray's workers give way to everything else
            # Two nodes on one machine would each count the other's memory as their own.
            "RAY_memory_monitor_refresh_ms": "0",
        }

    async def _start_supervisor(self) -> None:
        self._supervisor = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "orchestrator.live.supervisor",
            str(self._scratch),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches the gateway, which ends things in order
        )
        self._watching.append(asyncio.create_task(self._watch_supervisor(self._supervisor)))

    async def _watch_emulator(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        if not self.failed.done():
            self.failed.set_result(f"the emulated line ended (code {code})")

    async def _watch_supervisor(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            ended = json.loads(line)
            name, code = ended["exited"], ended["code"]
            if name == HELPER:
                self._helped.set_result(None)
            elif not self.failed.done():
                tail = _tail(self._logs / f"{name}.log")
                self.failed.set_result(f"{name} ended (code {code}): {tail}")
        if not self.failed.done():
            self.failed.set_result("the supervisor ended")

    def _start_nodes(
        self,
        address: str,
        specs: list[SiteSpec],
        environment: dict[str, str],
        *,
        dashboard: int,
        client: int,
    ) -> None:
        head = [
            *("--head", "--port", address.rsplit(":", 1)[1], "--no-monitor"),
            *("--include-dashboard", "false", "--dashboard-port", str(dashboard)),
        ]
        if find_spec("grpc") is not None:
            # Where gRPC is installed Ray opens its client's port, else at one fixed number.
            head += ["--ray-client-server-port", str(client)]
        member = ["--address", address]
        for number, spec in enumerate(specs):
            cpus = -(-(len(spec.workers) + len(spec.stores)) // WORKERS_PER_CPU) or 1
            argv = [
                *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block"),
                *(member if number else head),
                *("--node-ip-address", RAY_HOST, "--temp-dir", str(self._scratch / "ray")),
                *("--labels", f"site={spec.site}", "--num-cpus", str(cpus), "--num-gpus", "0"),
                *("--object-store-memory", str(OBJECT_STORE_BYTES)),
                *("--min-worker-port", "0", "--max-worker-port", "0"),
                *("--dashboard-agent-listen-port", "0", "--dashboard-agent-grpc-port", "0"),
                *("--metrics-export-port", "0", "--include-log-monitor", "false"),
                "--disable-usage-stats",
            ]
            self._command(f"ray-{spec.site}", argv, environment)

    def _command(self, name: str, argv: list[str], environment: dict[str, str]) -> None:
        assert self._supervisor is not None
        assert self._supervisor.stdin is not None
        log_file = str(self._logs / f"{name}.log")
        command = {"start": name, "argv": argv, "env": environment, "log": log_file}
        self._supervisor.stdin.write(json.dumps(command).encode() + b"\n")

    async def _create_agents(
        self, address: str, specs: list[SiteSpec], environment: dict[str, str]
    ) -> None:
        """Let the helper do it: it waits for the nodes itself. Raises LaunchFailed."""
        order, result = self._scratch / "order.json", self._scratch / "agents.json"
        content = {
            "address": address,
            "nodes": len(specs),
            "log_dir": str(self._logs),
            "sites": [dataclasses.asdict(spec) for spec in specs],
        }
        order.write_text(json.dumps(content, default=str))  # paths are text in it
        argv = [sys.executable, "-m", "orchestrator.live.create_agents", str(order), str(result)]
        self._command(HELPER, argv, environment)
        await asyncio.wait((self._helped, self.failed), return_when=asyncio.FIRST_COMPLETED)
        if self.failed.done():
            raise LaunchFailed(self.failed.result())
        if not result.exists():
            raise LaunchFailed(
                f"the agents were not created: {_tail(self._logs / f'{HELPER}.log')}"
            )
        answer = json.loads(result.read_bytes())
        if "error" in answer:
            raise LaunchFailed(answer["error"])
        self.agents = answer["agents"]

    async def _until_up(self) -> None:
        """Tell how the workers come along until all are up. Raises LaunchFailed."""
        said: dict[str, str] = {}
        while True:
            states: list[str | None] = []
            for site in self.agents:
                try:
                    inventory = await self.inventory(site)
                except httpx.HTTPError as error:
                    if refusal(error) is not None:  # as it is now it will stay
                        raise LaunchFailed(f"agent of {site}: {refusal(error)}") from error
                    log.info("agent away", extra={"site": site, "reason": repr(error)})
                    states.append(None)
                    continue
                for worker in inventory["workers"]:
                    states.append(worker["state"])
                    self._tell(said, worker)
            if all(state == WorkerState.UP for state in states):
                return
            if self.failed.done():
                raise LaunchFailed(self.failed.result())
            await asyncio.sleep(POLL_S)

    def _tell(self, said: dict[str, str], worker: dict[str, Any]) -> None:
        name, state, reason = worker["name"], worker["state"], worker["reason"]
        if state == WorkerState.FAILED:
            raise LaunchFailed(f"worker {name}: {reason}")
        text = state if state == WorkerState.UP else reason or state
        if said.get(name) != text:
            said[name] = text
            self._progress(f"worker {name}: {text}")


async def end_process(process: asyncio.subprocess.Process) -> None:
    """Close its standard input, which it takes as the end; then insist. Harmless when it ended."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        log.warning("killed", extra={"pid": process.pid})
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        await process.wait()


def _free_ports(count: int) -> list[int]:
    """Distinct ports that nobody listens on now, on the hosts used here."""
    ports: set[int] = set()
    while len(ports) < count:
        port = free_port(HOST, ports)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((RAY_HOST, port))
            ports.add(port)
    return list(ports)


def _tail(path: Path) -> str:
    """The last line of a log that says something."""
    try:
        lines = path.read_text(errors="replace").strip().splitlines()
    except OSError:
        return "it left no log"
    return lines[-1].strip() if lines else "it said nothing"
