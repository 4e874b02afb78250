"""A whole deployment on this machine: the sites, the line between them and the gateway."""

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.live.driver import Record
from orchestrator.live.gateway import Gateway, load_tokenizer, read_card, take_port
from orchestrator.live.launch import Deployment, LaunchFailed
from orchestrator.live.openai.border.keys import read_door
from orchestrator.live.replanner import Replanner
from orchestrator.live.site_workers import AS_POOLED, HOST, Roles
from orchestrator.replan.watch import Replanning
from orchestrator.topology.schema import Topology
from transport.tls import TlsContexts, TlsError, load_contexts
from workers.engines.models import ModelError, Progress, resolve_model
from workers.service.config import SECRET_ENV
from workers.service.front import listen

READY_S = 60.0  # from the last worker up to its first word at the gateway


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """What is up: `serving` is the gateway's task and ends only by a failure."""

    gateway: Gateway
    serving: "asyncio.Task[None]"
    deployment: Deployment


def check_startable(topology: Topology) -> None:
    """Raise UserError for what a good file may say but this machine cannot start."""
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


def gateway_tls(topology: Topology) -> TlsContexts | None:
    """The gateway's own, which is its site's. Raises UserError."""
    tls, site = topology.security.tls, topology.gateway.site
    if tls is None:
        return None
    try:
        return load_contexts(tls.files(site), site, topology.sites)
    except TlsError as error:
        raise UserError(f"security.tls: {error}") from error


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
    """
    door = read_door(topology.security)
    host, port = topology.gateway.host, topology.gateway.port
    tls = gateway_tls(topology)
    with (
        contextlib.closing(take_port(host, port)) as public,
        contextlib.closing(listen(HOST, 0)) as internal,
    ):
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
            gateways=[f"{HOST}:{internal.getsockname()[1]}"],
            secret=secret,
            roles=roles,
            tls=None if tls is None else tls.client,
            progress=progress,
            log_dir=log_dir,
        )
        tokenizer = await asyncio.to_thread(load_tokenizer, topology.model, directory)
        try:
            await deployment.start()
            stop = asyncio.Event()
            gateway = Gateway(
                topology,
                card=card,
                tokenizer=tokenizer,
                directory=deployment.directory,
                secret=secret,
                door=door,
                record=record,
                replanner=None if replanning is None else Replanner(replanning, tell=progress),
                tls=tls,
            )
            serving = asyncio.create_task(gateway.run(public, internal, stop))
            try:
                problem = await gateway.ready(READY_S)
                if problem is not None:
                    raise LaunchFailed(problem)
                yield Running(gateway=gateway, serving=serving, deployment=deployment)
            finally:
                stop.set()
                await serving
        finally:
            await deployment.stop()
