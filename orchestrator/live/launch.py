"""Brings up what sites need on this machine: Ray nodes, the line between them, the agents."""

import asyncio
import contextlib
import logging
import shutil
import ssl
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from orchestrator.errors import UserError
from orchestrator.live.agent import WORKERS, SiteSpec
from orchestrator.live.directory import Directory
from orchestrator.live.http import base_url, reason, site_client
from orchestrator.live.ports import free_port
from orchestrator.live.processes import LaunchFailed, end_process
from orchestrator.live.ray_cluster import PORTS as RAY_PORTS
from orchestrator.live.ray_cluster import RayCluster
from orchestrator.live.site_workers import (
    AS_POOLED,
    HOST,
    Roles,
    store_configs,
    worker_configs,
    worker_start_s,
)
from orchestrator.membership.reports import WorkerState
from orchestrator.topology.schema import Topology
from orchestrator.topology.units import show_rate
from transport.emulator.control import LineControl, LineError, start_emulator
from transport.tls import refusal

POLL_S = 0.5
AGENT_S = 10.0  # an agent may be about to place workers
STOP_CHECK_S = 0.1
OTHERS_START_S = 120.0  # Ray, the line, the agents
STORES_S = 12.0  # for sites whose stores write what waits

log = logging.getLogger(__name__)

Progress = Callable[[str], None]


class Deployment:
    """Sites that start here: those with `launch: local`, or the one that is named as `site`. With
    `joined`, a Ray cluster's "host:port", its agent is put there and no node is started.

    `start` may fail anywhere: `stop` cleans up what there is.
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
        site: str | None = None,
        joined: str | None = None,
        log_dir: Path | None = None,
        start_s: float | None = None,
    ) -> None:
        self._topology = topology
        self._model = model
        self._gateways = gateways
        self._secret = secret
        self._roles = roles
        self._tls = tls
        self._progress = progress
        local = [name for name, place in topology.sites.items() if place.launch == "local"]
        self._sites = local if site is None else [site]
        workers_s = max((worker_start_s(topology, name) for name in self._sites), default=0.0)
        self._start_s = workers_s + OTHERS_START_S if start_s is None else start_s
        self._joined = joined
        self._scratch = Path()  # made by `start`
        self._specs: dict[str, SiteSpec] = {}
        self._log_dir = None if log_dir is None else log_dir.resolve()
        self._ray: RayCluster | None = None
        self._emulator: asyncio.subprocess.Process | None = None
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
        """End every process of the deployment and wait for that; harmless when repeated.

        Only stores have something to save: sites with stores are let end by themselves first, as
        are those on nodes that are not ours.
        """
        for task in self._watching:
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STORES_S):
                await asyncio.gather(*map(self._end_agent, filter(self._ends, self.agents)))
        if self.line is not None:
            await self.line.close()
            self.line = None
        if self._ray is not None:
            await self._ray.stop()
        if self._emulator is not None:
            await end_process(self._emulator)
        if self._scratch.name:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _ends(self, site: str) -> bool:
        """Whether a site must end by itself: it has something to save, or its nodes stay."""
        pools = self._topology.sites[site].pools.values()
        return self._joined is not None or any(pool.kv_store is not None for pool in pools)

    async def _end_agent(self, site: str) -> None:
        """Let a site end in order, and wait for that."""
        async with site_client(site, self._secret, self._tls, timeout_s=STORES_S) as http:
            agent = base_url(self.agents[site], self._tls)
            with contextlib.suppress(httpx.HTTPError):  # it has ended
                await http.post(f"{agent}/stop")
                while True:
                    await http.get(f"{agent}/inventory")
                    await asyncio.sleep(STOP_CHECK_S)

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

    async def follow(self, topology: Topology, roles: Roles) -> None:
        """Let the sites have the workers that a changed topology asks for, while they serve.

        Raises UserError when a site cannot, and then none does.
        """
        before = self._topology, self._roles
        told: list[str] = []
        try:
            for site in self._sites:
                told.append(site)  # one that did not answer may have heard
                await self._tell_workers(site, topology, roles)
        except UserError:
            for site in told:
                try:
                    await self._tell_workers(site, *before)
                except UserError as error:  # the first cause is what is told
                    log.error("not taken back", extra={"site": site, "reason": str(error)})
            raise
        self._topology, self._roles = topology, roles

    async def _tell_workers(self, site: str, topology: Topology, roles: Roles) -> None:
        workers = worker_configs(topology, site, self._model, roles, self._specs[site].stores)
        url = f"{base_url(self.agents[site], self._tls)}/workers"
        body = WORKERS.dump_json(workers)
        try:
            async with site_client(site, self._secret, self._tls, timeout_s=AGENT_S) as http:
                answered = await http.post(url, content=body)
        except httpx.HTTPError as error:
            raise UserError(f"sites.{site}: its agent is away ({reason(error)})") from error
        if answered.status_code == httpx.codes.CONFLICT:
            raise UserError(f"sites.{site}: {answered.json()['error']}")
        if answered.status_code != httpx.codes.OK:
            raise UserError(f"sites.{site}: its agent answers {answered.status_code}")

    # ------------------------------------------------------------ starting

    async def _start_line(self) -> None:
        links = [
            link
            for link in self._topology.links
            if link.emulate and set(link.between) <= set(self._sites)
        ]
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
        nodes = f"starting ray ({count} node{'s' if count > 1 else ''})"
        self._progress(nodes if self._joined is None else f"joining ray at {self._joined}")
        pools = [p for site in self._sites for p in self._topology.sites[site].pools.values()]
        stores = sum(pool.kv_store is not None for pool in pools)
        ports = iter(_free_ports(RAY_PORTS + count + stores))
        specs = [await self._spec(site, ports) for site in self._sites]
        self._specs = {spec.site: spec for spec in specs}
        self._ray = RayCluster(
            specs,
            ports,
            scratch=self._scratch,
            logs=self._logs,
            secret=self._secret,
            tell=self._progress,
            joined=self._joined,
        )
        self._watching.append(asyncio.create_task(self._watch_ray(self._ray)))
        self.agents = await self._ray.start()
        await self._until_up()

    async def _spec(self, site: str, ports: Iterator[int]) -> SiteSpec:
        home, tls = self._topology.gateway.site, self._topology.security.tls
        place = self._topology.sites[site]
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
            host=place.host or HOST,
            port=next(ports) if place.port_range is None else place.port_range[0],
            start_s=worker_start_s(self._topology, site),
            tls=None if tls is None else tls.files(site),
            sites=tuple(self._topology.sites),
            kept=None if self._joined else self._scratch / f"workers-{site}.json",
        )

    async def _watch_emulator(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        if not self.failed.done():
            self.failed.set_result(f"the emulated line ended (code {code})")

    async def _watch_ray(self, ray: RayCluster) -> None:
        why = await asyncio.shield(ray.failed)
        if not self.failed.done():
            self.failed.set_result(why)

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


def _free_ports(count: int) -> list[int]:
    """Distinct ports that nobody listens on now."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port(HOST, ports))
    return list(ports)
