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
from orchestrator.live.agent import free_port
from orchestrator.live.driver import Record, new_gateway_name
from orchestrator.live.gateway import Gateway, gateway_tls, load_tokenizer, read_card, take_port
from orchestrator.live.gateway_processes import GatewayProcesses, check_ports
from orchestrator.live.launch import Deployment, LaunchFailed
from orchestrator.live.openai.border.keys import read_door
from orchestrator.live.replanner import Replanner
from orchestrator.live.site_workers import AS_POOLED, HOST, Roles
from orchestrator.replan.watch import Replanning
from orchestrator.topology.schema import Topology
from workers.engines.models import ModelError, Progress, resolve_model
from workers.service.config import SECRET_ENV
from workers.service.front import listen

READY_S = 60.0  # from the last worker up to its first word at the gateway
MOST_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """What is up: `serving` is the gateways' task and ends only by a failure.

    `model` is the name that clients ask for. `gateway` None: there are several, each a process.
    """

    model: str
    gateway: Gateway | None
    serving: "asyncio.Task[None]"
    deployment: Deployment


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ports:
    """Where the gateways hear agents. `sockets`: of the only one, for clients and for agents."""

    hearing: list[int]
    sockets: tuple[socket.socket, socket.socket] | None


def check_startable(topology: Topology) -> None:
    """Raise UserError for what a good file may say but this machine cannot start."""
    gateway = topology.gateway
    if gateway.processes > 1 and topology.replan is not None:
        raise UserError(
            f"gateway.processes: {gateway.processes} gateways would each follow the world by roles "
            "of their own; leave out replan, or processes"
        )
    if gateway.processes > 1 and gateway.port + gateway.processes > MOST_PORT:
        raise UserError(f"gateway.port: no port above it for each of {gateway.processes} processes")
    for site_name, site in topology.sites.items():
        where = f"sites.{site_name}"
        if site.launch == "agent":
            raise UserError(
                f"{where}.launch: agents that dial in are not supported yet; "
                "pdd serve can only start sites with launch: local"
            )
        for pool_name, pool in site.pools.items():
            if pool.engine == "torch" and pool.parallel > 1:
                raise UserError(
                    f"{where}.pools.{pool_name}.parallel: the torch engine runs one worker on one "
                    f"chip, got {pool.parallel}; leave it out"
                )


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
            gateways=[f"{HOST}:{port}" for port in ports.hearing],
            secret=secret,
            roles=roles,
            tls=None if tls is None else tls.client,
            progress=progress,
            log_dir=log_dir,
        )
        tokenizer = await asyncio.to_thread(load_tokenizer, topology.model, directory)
        try:
            await deployment.start()
            gateway = None
            if ports.sockets is None:
                serving = _as_processes(
                    GatewayProcesses(
                        topology,
                        model=directory,
                        internal=ports.hearing,
                        emulator=deployment.emulator_port,
                        secret=secret,
                        log_dir=log_dir,
                        tell=progress,
                    )
                )
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
                    replanner=None if replanning is None else Replanner(replanning, tell=progress),
                    tls=tls,
                )
                serving = _in_here(gateway, *ports.sockets)
            async with serving as task:
                yield Running(model=card.name, gateway=gateway, serving=task, deployment=deployment)
        finally:
            await deployment.stop()


@contextlib.contextmanager
def _ports(topology: Topology) -> Iterator[_Ports]:
    """Taken before anything slow. Raises UserError."""
    gateway = topology.gateway
    if gateway.processes == 1:
        with (
            contextlib.closing(take_port(gateway.host, gateway.port)) as public,
            contextlib.closing(listen(HOST, 0)) as internal,
        ):
            yield _Ports(hearing=[internal.getsockname()[1]], sockets=(public, internal))
        return
    check_ports(topology)
    hearing: list[int] = []
    for _ in range(gateway.processes):
        hearing.append(free_port(HOST, set(hearing)))
    yield _Ports(hearing=hearing, sockets=None)


@contextlib.asynccontextmanager
async def _in_here(
    gateway: Gateway, public: socket.socket, internal: socket.socket
) -> AsyncIterator["asyncio.Task[None]"]:
    """A single gateway. Raises LaunchFailed."""
    stop = asyncio.Event()
    serving = asyncio.create_task(gateway.run(public, internal, stop))
    try:
        problem = await gateway.ready(READY_S)
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
