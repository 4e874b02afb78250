"""A whole deployment on this machine: the sites, the line between them and the gateways."""

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.live.driver import Record, new_gateway_name
from orchestrator.live.gateway import Gateway, gateway_tls, load_tokenizer, read_card, take_port
from orchestrator.live.gateway_processes import GatewayProcesses, check_ports
from orchestrator.live.launch import Deployment
from orchestrator.live.openai.border.keys import read_door
from orchestrator.live.ports import free_port
from orchestrator.live.processes import LaunchFailed
from orchestrator.live.replanner import Replanner
from orchestrator.live.site_workers import AS_POOLED, Roles
from orchestrator.live.startable import agent_sites, agents_addresses, agents_host
from orchestrator.replan.watch import Replanning
from orchestrator.topology.schema import Topology
from workers.engines.models import ModelError, Progress, resolve_model
from workers.service.config import SECRET_ENV

READY_S = 60.0  # from the last worker up to its first word at the gateway


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """What is up: `serving` is the gateways' task and ends only by a failure.

    `model` is the name that clients ask for. `gateway` None: there are several `processes`.
    """

    model: str
    gateway: Gateway | None
    serving: "asyncio.Task[None]"
    deployment: Deployment
    processes: GatewayProcesses | None
    replanner: Replanner | None

    async def follow(self, topology: Topology, roles: Roles, replanning: Replanning | None) -> None:
        """Take on a changed topology while requests are served. Raises UserError: it is as before.

        Gateways learn from the agents who is there, so only those that begin later are told.
        """
        await self.deployment.follow(topology, roles)
        if self.processes is not None:
            self.processes.follow(topology)
        if self.replanner is not None and replanning is not None:
            self.replanner.begin_anew(replanning)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ports:
    """Where the gateways hear agents. `sockets`: of the only one, for clients and for agents."""

    hearing: list[int]
    sockets: tuple[socket.socket, socket.socket] | None


@contextlib.asynccontextmanager
async def running(
    topology: Topology,
    *,
    progress: Callable[[str], None],
    model_progress: Progress,
    log_dir: Path | None = None,
    record: Record | None = None,
    roles: Roles = AS_POOLED,
    replanning: Replanning | None = None,
) -> AsyncIterator[Running]:
    """Bring everything up, yield when requests can be served, end everything.

    With `replanning` roles follow the world. Raises UserError for what the user can mend, before
    anything was started where that can be known, and LaunchFailed for what did not come up.
    `record` and `replanning` are for a single gateway.
    """
    door = read_door(topology.security)
    tls = gateway_tls(topology)
    with _ports(topology) as ports:
        try:
            directory = await asyncio.to_thread(resolve_model, topology.model, model_progress)
        except ModelError as error:
            raise UserError(str(error)) from error
        card = await asyncio.to_thread(read_card, topology.model, directory)
        # Given by those who must talk to workers themselves; else nobody needs to know it.
        secret = os.environ.get(SECRET_ENV) or secrets.token_hex(32)
        deployment = Deployment(
            topology,
            model=str(directory),
            gateways=[f"{agents_host(topology)}:{port}" for port in ports.hearing],
            secret=secret,
            roles=roles,
            tls=None if tls is None else tls.client,
            progress=progress,
            log_dir=log_dir,
        )
        tokenizer = await asyncio.to_thread(load_tokenizer, topology.model, directory)
        # Sites elsewhere are started when it suits those who run them.
        away = agent_sites(topology)
        try:
            await deployment.start()
            if away:
                progress(f"hearing agents at {', '.join(agents_addresses(topology))}")
            gateway, processes = None, None
            replanner = None if replanning is None else Replanner(replanning, tell=progress)
            if ports.sockets is None:
                processes = GatewayProcesses(
                    topology,
                    model=directory,
                    internal=ports.hearing,
                    emulator=deployment.emulator_port,
                    secret=secret,
                    log_dir=log_dir,
                    tell=progress,
                )
                serving = _as_processes(processes)
            else:
                gateway = Gateway(
                    topology,
                    name=new_gateway_name(),
                    card=card,
                    tokenizer=tokenizer,
                    directory=deployment.directory,
                    secret=secret,
                    door=door,
                    record=record,
                    replanner=replanner,
                    tls=tls,
                )
                serving = _in_here(gateway, ports.sockets, None if away else READY_S, progress)
            async with serving as task:
                yield Running(
                    model=card.name,
                    gateway=gateway,
                    serving=task,
                    deployment=deployment,
                    processes=processes,
                    replanner=replanner,
                )
        finally:
            await deployment.stop()


@contextlib.contextmanager
def _ports(topology: Topology) -> Iterator[_Ports]:
    """Taken before anything slow. Raises UserError."""
    gateway, agents = topology.gateway, topology.gateway.agents
    host = agents_host(topology)
    if gateway.processes == 1:
        port = 0 if agents is None else agents.port
        with (
            contextlib.closing(take_port(gateway.host, gateway.port)) as public,
            contextlib.closing(take_port(host, port, key="gateway.agents")) as internal,
        ):
            yield _Ports(hearing=[internal.getsockname()[1]], sockets=(public, internal))
        return
    check_ports(topology)
    hearing: list[int] = []
    for number in range(gateway.processes):
        hearing.append(free_port(host, set(hearing)) if agents is None else agents.port + number)
    yield _Ports(hearing=hearing, sockets=None)


@contextlib.asynccontextmanager
async def _in_here(
    gateway: Gateway,
    sockets: tuple[socket.socket, socket.socket],
    ready_s: float | None,
    tell: Callable[[str], None],
) -> AsyncIterator["asyncio.Task[None]"]:
    """A single gateway; None: it waits for its workers for ever. Raises LaunchFailed."""
    stop = asyncio.Event()
    serving = asyncio.create_task(gateway.run(*sockets, stop))
    try:
        problem = await gateway.ready(ready_s, serving, tell)
        if problem is not None:
            raise LaunchFailed(problem)
        yield serving
    finally:
        stop.set()
        await serving


@contextlib.asynccontextmanager
async def _as_processes(processes: GatewayProcesses) -> AsyncIterator["asyncio.Task[None]"]:
    """Several. Raises LaunchFailed."""
    serving = asyncio.create_task(processes.watch())
    try:
        await processes.up()
        yield serving
    finally:
        serving.cancel()
        await processes.stop()
