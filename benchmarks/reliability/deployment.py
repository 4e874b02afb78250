"""The deployment that is put to the test: where its processes are, and what is free at its end."""

import asyncio
import contextlib
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import psutil
from ruamel.yaml import YAML

from benchmarks.reliability.asking import Asker
from benchmarks.service import Served, serving
from transport.emulator.control import LineControl
from workers.engines.models import resolve_model
from workers.service.config import SECRET_ENV
from workers.service.process import simulated_model

HAMI, SHENZHEN = "hami", "shenzhen"
POLL_S = 0.03


@dataclass(kw_only=True)
class Deployment:
    """A running service, and an asker that knows its answers."""

    served: Served
    asker: Asker
    control: httpx.AsyncClient  # with the deployment's secret

    async def page(self) -> dict[str, Any]:
        """What the live page shows."""
        return dict((await self.control.get(f"{self.served.base}/pdd/state")).json())

    async def status(self) -> dict[str, Any]:
        return dict((await self.control.get(f"{self.served.base}/status")).json())

    async def pid(self, worker: str) -> int:
        """Of a worker's process. Raises LookupError while it is down."""
        for told in (await self.status())["workers"]:
            if told["name"] == worker and told["state"] == "up":
                return int(told["pid"])
        raise LookupError(f"{worker} is not up")

    def processes(self, *words: str) -> list[psutil.Process]:
        """Of the service, those with all the words in name or arguments."""
        found = []
        for process in psutil.Process(self.served.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                said = " ".join([process.name(), *process.cmdline()])
                if all(word in said for word in words):
                    found.append(process)
        return found

    @contextlib.asynccontextmanager
    async def line(self) -> AsyncIterator[tuple[LineControl, str]]:
        """The emulated line's control, and the line's name."""
        told = (await self.status())["links"][0]
        control = await LineControl.connect(int(told["emulator"].rpartition(":")[2]))
        try:
            (name,) = await control.stats()
            yield control, name
        finally:
            await control.close()

    async def held(self) -> int:
        """Tokens of KV that some worker holds for a request, or -1 while one does not answer."""
        count = 0
        for worker in (await self.status())["workers"]:
            try:
                told = (await self.control.get(f"{worker['control']}/blocks")).json()
            except (httpx.HTTPError, ValueError):
                return -1
            count += told["held_tokens"] + told["legs"]
        return count

    def agents(self) -> list[psutil.Process]:
        """Those that run."""
        return self.processes("AgentActor")

    async def all_up(self) -> bool:
        """Whether every worker and every site's agent is there."""
        told = await self.status()
        up = all(worker["state"] == "up" for worker in told["workers"])
        return up and len(self.agents()) == len(told["sites"])


async def until(true: Callable[[], Any], within_s: float) -> float | None:
    """Seconds until an awaitable says so, which it must be possible to ask; None: too late."""
    began = time.monotonic()
    while time.monotonic() - began < within_s:
        with contextlib.suppress(httpx.HTTPError, ValueError, KeyError):
            if await true():
                return time.monotonic() - began
        await asyncio.sleep(POLL_S)
    return None


@contextlib.contextmanager
def serving_with_secret(
    topology: dict[str, Any],
    tell: Callable[[str], None],
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[tuple[Served, str]]:
    """`pdd serve` of a topology, and the secret with which its workers can be asked."""
    secret = secrets.token_hex(16)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "reliability.yaml")
        YAML(typ="safe").dump(topology, file)
        with serving(file, tell=tell, environment={**environment, SECRET_ENV: secret}) as served:
            yield served, secret


@contextlib.asynccontextmanager
async def connected(served: Served, secret: str) -> AsyncIterator[Deployment]:
    """Ready to be asked; `served` runs in a context of its own, which takes no loop."""
    headers = {"authorization": f"Bearer {secret}"}
    # As the launcher names the model to the workers.
    asker = Asker(served, simulated_model(str(resolve_model(served.model))))
    async with httpx.AsyncClient(headers=headers, timeout=5.0, trust_env=False) as control:
        try:
            yield Deployment(served=served, asker=asker, control=control)
        finally:
            await asker.close()
