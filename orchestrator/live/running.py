"""A whole deployment on this machine: the sites, the line between them and the gateway."""

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.live.gateway import Gateway, load_tokenizer, read_api_keys, read_card, take_port
from orchestrator.live.launch import Deployment, LaunchFailed
from orchestrator.state.events import Event
from orchestrator.topology.schema import Topology
from workers.engines.models import ModelError, Progress, resolve_model
from workers.service.config import SECRET_ENV

log = logging.getLogger(__name__)

READY_S = 60.0
BACKLOG = 512


@contextlib.asynccontextmanager
async def running(
    topology: Topology,
    *,
    progress: Callable[[str], None],
    model_progress: Progress,
    log_dir: Path | None = None,
    record: Callable[[float, Event], None] | None = None,
) -> AsyncIterator[tuple[Gateway, asyncio.Task[None], Deployment]]:
    """Bring everything up, yield when requests can be served, end everything.

    Yields the gateway, its serving task (it ends only by a failure) and the deployment. Raises
    UserError for what the user can mend, LaunchFailed for what did not come up.
    """
    host, port = topology.gateway.host, topology.gateway.port
    api_keys = read_api_keys(topology)
    with contextlib.closing(take_port(host, port)) as listening:
        # From here on agents may connect; they are answered as soon as the gateway serves.
        listening.listen(BACKLOG)
        try:
            directory = await asyncio.to_thread(resolve_model, topology.model, model_progress)
        except ModelError as error:
            raise UserError(str(error)) from error
        card = read_card(topology.model, directory)
        # Given by those who must talk to workers themselves; else nobody needs to know it.
        secret = os.environ.get(SECRET_ENV) or secrets.token_hex(32)
        deployment = Deployment(
            topology,
            model=str(directory),
            gateway=f"{host}:{port}",
            secret=secret,
            progress=progress,
            log_dir=log_dir,
        )
        reading = asyncio.create_task(asyncio.to_thread(load_tokenizer, directory))
        stop = asyncio.Event()
        try:
            await deployment.start()
            gateway = Gateway(
                topology,
                card=card,
                tokenizer=await reading,
                directory=deployment.directory,
                secret=secret,
                api_keys=api_keys,
                record=record,
            )
            serving = asyncio.create_task(gateway.run(listening, stop))
            try:
                problem = await gateway.ready(READY_S)
                if problem is not None:
                    raise LaunchFailed(problem)
                yield gateway, serving, deployment
            finally:
                stop.set()
                await serving
        finally:
            reading.cancel()
            await deployment.stop()
