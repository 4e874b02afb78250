"""One site on this machine, for a gateway elsewhere: its Ray node, its agent, its workers."""

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx

from orchestrator.errors import UserError
from orchestrator.live.http import WRONG_SECRET, base_url, reason, site_client
from orchestrator.live.launch import Deployment
from orchestrator.live.site_workers import AS_POOLED, Roles
from orchestrator.live.startable import agents_addresses, site_tls
from orchestrator.membership.reports import FINAL, WorkerState
from orchestrator.topology.schema import Topology
from transport.tls import refusal
from workers.engines.models import ModelError, Progress, resolve_model
from workers.service.config import SECRET_ENV

LOOK_S = 1.0
ANSWER_S = 5.0
DRAIN_S = 75.0  # a worker itself gives up after `WorkerConfig.drain_s`

Tell = Callable[[str], None]


class OneSite:
    """A site that is up. `failed` is done when something of it ended by itself: why."""

    def __init__(
        self, name: str, deployment: Deployment, secret: str, tls: ssl.SSLContext | None
    ) -> None:
        self.name = name
        self.agent = deployment.agents[name]
        self.failed = deployment.failed
        self._deployment = deployment
        self._secret = secret
        self._tls = tls

    async def follow(self, topology: Topology, roles: Roles) -> None:
        """Have the workers that a changed topology asks for. Raises UserError: it is as before."""
        await self._deployment.follow(topology, roles)

    async def watch(self, tell: Tell) -> None:
        """Tell of what changes, for ever: workers, the lease at the gateway, another agent."""
        said: dict[str, str] = {}
        while True:
            for what, text in (await self._look()).items():
                if said.get(what, WorkerState.UP) != text:  # that has been told already
                    tell(f"{what}: {text}")
                said[what] = text
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> dict[str, str]:
        try:
            told = await self._deployment.inventory(self.name)
        except httpx.HTTPError as error:
            return {"agent": f"away ({reason(error)}), the workers go on"}
        workers = {f"worker {w['name']}": _worker(w) for w in told["workers"]}
        return workers | {"lease": told["lease"], "agent": f"there, epoch {told['agent_epoch']}"}

    async def leave(self) -> None:
        """Let what runs end while nothing new is taken, then take leave of the gateway.

        Takes at most `DRAIN_S`, and nothing where the agent does not answer.
        """
        with contextlib.suppress(httpx.HTTPError, TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                told = False
                await self._post("/drain", {"workers": await self._unfinished()})
                while True:  # until the agent has reported for the last time and is gone
                    if not await self._unfinished() and not told:
                        await self._post("/stop", None)
                        told = True
                    await asyncio.sleep(LOOK_S / 4)

    async def _unfinished(self) -> list[str]:
        workers = (await self._deployment.inventory(self.name))["workers"]
        return [worker["name"] for worker in workers if worker["state"] not in FINAL]

    async def _post(self, path: str, body: Any) -> None:
        async with site_client(self.name, self._secret, self._tls, timeout_s=ANSWER_S) as http:
            answered = await http.post(f"{base_url(self.agent, self._tls)}{path}", json=body)
            answered.raise_for_status()


@contextlib.asynccontextmanager
async def one_site(
    topology: Topology,
    name: str,
    *,
    tell: Tell,
    model_progress: Progress,
    ray: str | None = None,
    log_dir: Path | None = None,
    roles: Roles = AS_POOLED,
) -> AsyncIterator[OneSite]:
    """Bring the site up, yield when its workers are, end everything. `ray`: on the nodes of a
    cluster that runs at that "host:port".

    Raises UserError for what the user can mend, and LaunchFailed for what did not come up.
    """
    secret, tls = os.environ[SECRET_ENV], site_tls(topology, name)
    dialled = None if tls is None else tls.client
    gateways = agents_addresses(topology)
    for gateway in gateways:
        await _greet(gateway, topology.gateway.site, secret, dialled, tell)
    try:
        directory = await asyncio.to_thread(resolve_model, topology.model, model_progress)
    except ModelError as error:
        raise UserError(str(error)) from error
    deployment = Deployment(
        topology,
        site=name,
        joined=ray,
        model=str(directory),
        gateways=gateways,
        secret=secret,
        roles=roles,
        tls=dialled,
        progress=tell,
        log_dir=log_dir,
    )
    await deployment.start()
    site = OneSite(name, deployment, secret, dialled)
    watching = asyncio.create_task(site.watch(tell))
    try:
        yield site
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await deployment.stop()


async def _greet(
    gateway: str, home: str, secret: str, tls: ssl.SSLContext | None, tell: Tell
) -> None:
    """What a gateway that is there refuses is told before anything is started.

    Raises UserError. One that is not there yet is no mistake: the agent dials until it is.
    """
    async with site_client(home, secret, tls, timeout_s=ANSWER_S) as http:
        try:
            answered = await http.get(f"{base_url(gateway, tls)}/internal/lease")
        except httpx.HTTPError as error:
            if refusal(error) is not None:
                raise UserError(f"gateway.agents: {gateway}: {refusal(error)}") from error
            tell(f"no gateway at {gateway} yet ({reason(error)}); the agent will ask again")
            return
    if answered.status_code == httpx.codes.UNAUTHORIZED:
        raise UserError(f"gateway.agents: {gateway} {WRONG_SECRET}")


def _worker(told: dict[str, Any]) -> str:
    state, why = told["state"], told["reason"]
    return f"{state}: {why}" if why else f"{state}"
