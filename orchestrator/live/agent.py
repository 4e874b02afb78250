"""A site's agent: starts and watches the site's workers, and renews its lease at the gateway.

What places workers (Ray, in `ray_site`) stands behind `Placer`; this file knows no Ray.
"""

import asyncio
import contextlib
import dataclasses
import logging
import random
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import httpx
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from workers.api.wire import WireError
from workers.service.app import BearerOnly, answer, read_body
from workers.service.config import WorkerConfig
from workers.service.front import Front, listen

WATCH_S = 1.0
LEASE_S = 1.0
LEASE_MOST_S = 5.0
LEASE_TIMEOUT_S = 3.0  # below a lease, so that one stuck renewal does not cost it
ANSWER_S = 10.0
# Ports outside the range that the kernel gives to outgoing connections, so that nobody takes one
# between its choice and the worker's start, or while a worker restarts.
PORTS = range(20000, 32000)

log = logging.getLogger(__name__)


class WorkerState(StrEnum):
    """What the agent knows of a worker."""

    STARTING = "starting"
    UP = "up"
    RESTARTING = "restarting"
    FAILED = "failed"
    DRAINING = "draining"
    DRAINED = "drained"


class Phase(StrEnum):
    """What a worker's own process says of itself."""

    LOADING = "loading"
    SERVING = "serving"
    FAILED = "failed"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A worker process's account of itself. `config` has the ports it was given."""

    config: WorkerConfig
    phase: Phase
    reason: str | None
    info: dict[str, Any] | None


class Unavailable(Exception):
    """The worker's process does not answer now; it is being restarted, or is gone."""


class Handle(Protocol):
    """A placed worker. `describe` raises Unavailable."""

    async def describe(self) -> Description: ...
    async def drain(self) -> None: ...
    async def remove(self) -> None: ...


class Placer(Protocol):
    """Where workers are placed."""

    def refusal(self, workers: int) -> str | None:
        """Why the site's nodes cannot hold so many workers; None: they can."""

    def find(self, name: str) -> Handle | None:
        """A worker that already runs."""

    def place(self, config: WorkerConfig) -> Handle: ...


@dataclass(slots=True)
class Placed:
    """One worker of the site."""

    config: WorkerConfig
    handle: Handle | None = None
    state: WorkerState = WorkerState.STARTING
    reason: str | None = None
    info: dict[str, Any] | None = None

    def report(self) -> dict[str, Any]:
        config = self.config
        return {
            "name": config.name,
            "pool": config.pool,
            "roles": list(config.roles),
            "state": self.state,
            "reason": self.reason,
            "http": f"{config.host}:{config.http_port}",
            "kv": f"{config.host}:{config.kv_port}",
            "info": self.info,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSpec:
    """A site as its agent is told: its workers (their ports chosen here), its gateway, its front.

    `gateway` is the gateway's URL as it is seen from the site; None: nobody to report to.
    """

    site: str
    workers: tuple[WorkerConfig, ...]
    gateway: str | None
    host: str = "127.0.0.1"
    port: int
    start_s: float = 180.0  # a worker that is not up after this long has failed


class SiteAgent:
    """Runs until it is told to stop. Workers go on without it; a new agent adopts them."""

    def __init__(self, spec: SiteSpec, placer: Placer, secret: str) -> None:
        self._spec = spec
        self._placer = placer
        self._secret = secret
        self._epoch = time.time_ns()
        self._refusal: str | None = None
        self._workers = {c.name: Placed(config=c) for c in spec.workers}
        self._stopping = asyncio.Event()
        self._lease_state = "not yet renewed"

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Serve the front, place or adopt the workers, watch them until told to stop.

        Raises OSError when the front's port is taken, and whatever a watching task failed of.
        """
        front = Front(self._app())
        taken = listen(self._spec.host, self._spec.port)
        serving = asyncio.create_task(front.serve(sockets=[taken]))
        self._refusal = self._placer.refusal(len(self._workers))
        if self._refusal is not None:
            log.error("refused", extra={"reason": self._refusal})
            for placed in self._workers.values():
                placed.state, placed.reason = WorkerState.FAILED, self._refusal
            watching = []
        else:
            self._settle()
            watching = [asyncio.create_task(self._watch(p)) for p in self._workers.values()]
        tasks = [*watching, asyncio.create_task(self._renew_lease())]
        for task in tasks:
            task.add_done_callback(self._stop_if_failed)
        on_ready()
        await self._stopping.wait()
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in ended:
            if isinstance(outcome, Exception):
                raise outcome  # the process ends; a new agent adopts the workers
        await self._remove_all()
        front.should_exit = True
        await serving

    def _stop_if_failed(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self._stopping.set()

    # ------------------------------------------------------------ workers

    def _settle(self) -> None:
        """Adopt the workers that run already, place the others on ports of their own."""
        for placed in self._workers.values():
            name = placed.config.name
            placed.handle = self._placer.find(name)
            if placed.handle is not None:
                log.info("adopting", extra={"worker": name})
                continue
            self._place(placed)

    def _place(self, placed: Placed) -> None:
        used = {
            port
            for other in self._workers.values()
            for port in (other.config.http_port, other.config.kv_port)
        }
        http_port = free_port(placed.config.host, used)
        kv_port = free_port(placed.config.host, used | {http_port})
        placed.config = dataclasses.replace(placed.config, http_port=http_port, kv_port=kv_port)
        placed.handle = self._placer.place(placed.config)
        log.info("placed", extra={"worker": placed.config.name})

    async def _watch(self, placed: Placed) -> None:
        began = time.monotonic()
        while placed.state not in (WorkerState.FAILED, WorkerState.DRAINED):
            await self._look(placed)
            waiting = placed.state in (WorkerState.STARTING, WorkerState.RESTARTING)
            if not waiting:
                began = time.monotonic()
            elif time.monotonic() - began > self._spec.start_s:
                what = placed.reason or "its process does not answer"
                await self._fail(placed, f"not up within {self._spec.start_s:g} s: {what}")
            await asyncio.sleep(WATCH_S)

    async def _look(self, placed: Placed) -> None:
        if placed.handle is None:
            return
        try:
            async with asyncio.timeout(ANSWER_S):
                described = await placed.handle.describe()
        except (TimeoutError, Unavailable) as error:
            if placed.state is WorkerState.UP:
                log.warning("worker restarts", extra={"worker": placed.config.name})
                placed.state = WorkerState.RESTARTING
            placed.reason = self._placer.refusal(1) or str(error) or "its process does not answer"
            return
        placed.config = described.config
        await _AFTER[described.phase](self, placed, described)

    async def _loading(self, placed: Placed, described: Description) -> None:
        if placed.state is WorkerState.UP:
            placed.state = WorkerState.RESTARTING
        placed.reason = "loading model"

    async def _serving(self, placed: Placed, described: Description) -> None:
        if placed.state is not WorkerState.DRAINING:
            placed.state = WorkerState.UP
        placed.reason, placed.info = described.reason, described.info

    async def _failed(self, placed: Placed, described: Description) -> None:
        await self._fail(placed, described.reason or "failed")

    async def _ended(self, placed: Placed, described: Description) -> None:
        placed.state, placed.reason = WorkerState.DRAINED, None
        await self._remove(placed)

    async def _fail(self, placed: Placed, reason: str) -> None:
        log.error("worker failed", extra={"worker": placed.config.name, "reason": reason})
        placed.state, placed.reason = WorkerState.FAILED, reason
        await self._remove(placed)

    async def _remove(self, placed: Placed) -> None:
        if placed.handle is not None:
            with contextlib.suppress(Unavailable):
                await placed.handle.remove()
            placed.handle = None

    async def _remove_all(self) -> None:
        for placed in self._workers.values():
            await self._remove(placed)

    async def _drain(self, names: list[str]) -> None:
        for name in names:
            placed = self._workers.get(name)
            if placed is None or placed.handle is None:
                continue
            placed.state = WorkerState.DRAINING
            with contextlib.suppress(Unavailable):
                await placed.handle.drain()

    # ------------------------------------------------------------ the gateway

    async def _renew_lease(self) -> None:
        """Report every second. A gateway that is away is tried again."""
        if self._spec.gateway is None:
            return
        url = f"{self._spec.gateway}/internal/lease"
        headers = {"authorization": f"Bearer {self._secret}"}
        wait = LEASE_S
        async with httpx.AsyncClient(
            headers=headers, timeout=LEASE_TIMEOUT_S, trust_env=False
        ) as http:
            while True:
                try:
                    answered = await http.post(url, json=self._inventory())
                    answered.raise_for_status()
                except httpx.HTTPError as error:
                    self._lease_state = f"{type(error).__name__}: {error}"
                    wait = min(2 * wait, LEASE_MOST_S)
                else:
                    self._lease_state, wait = "renewed", LEASE_S
                await asyncio.sleep(wait)

    def _inventory(self) -> dict[str, Any]:
        return {
            "site": self._spec.site,
            "agent_epoch": self._epoch,
            "agent": f"{self._spec.host}:{self._spec.port}",
            "refusal": self._refusal,
            "lease": self._lease_state,
            "workers": [placed.report() for placed in self._workers.values()],
        }

    # ------------------------------------------------------------ the front

    def _app(self) -> Starlette:
        async def inventory(request: Request) -> Response:
            return answer(self._inventory())

        async def drain(request: Request) -> Response:
            try:
                body = await read_body(request)
            except WireError as error:
                return answer({"error": str(error)}, 400)
            names = body.get("workers") if isinstance(body, dict) else None
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                return answer({"error": 'must be {"workers": [names]}'}, 400)
            unknown = [name for name in names if name not in self._workers]
            if unknown:
                known = ", ".join(self._workers)
                return answer({"error": f"no worker {unknown[0]}; there are {known}"}, 404)
            await self._drain(names)
            return answer({"draining": names})

        async def stop(request: Request) -> Response:
            self._stopping.set()
            return answer({"stopping": True})

        return Starlette(
            routes=[
                Route("/inventory", inventory, methods=["GET"]),
                Route("/drain", drain, methods=["POST"]),
                Route("/stop", stop, methods=["POST"]),
            ],
            middleware=[Middleware(BearerOnly, secret=self._secret)],
        )


_AFTER: dict[Phase, Callable[[SiteAgent, Placed, Description], Awaitable[None]]] = {
    Phase.LOADING: SiteAgent._loading,
    Phase.SERVING: SiteAgent._serving,
    Phase.FAILED: SiteAgent._failed,
    Phase.ENDED: SiteAgent._ended,
}


def free_port(host: str, used: set[int]) -> int:
    """A port nobody listens on now, chosen at random. Raises OSError when all are taken."""
    candidates = list(PORTS)
    random.shuffle(candidates)
    for port in candidates:
        if port in used:
            continue
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port in {PORTS.start}-{PORTS.stop - 1} on {host}")
