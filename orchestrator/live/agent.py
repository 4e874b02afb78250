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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrator.live.http import site_client
from orchestrator.live.stores import SiteStores
from orchestrator.membership.inventory import (
    ANSWER_S,
    RENEW_TIMEOUT_S,
    START_S,
    WATCH_S,
    Assigned,
    Description,
    Drain,
    Order,
    Place,
    Renewals,
    SiteInventory,
)
from transport.tls import TlsContexts, TlsFiles
from workers.api.wire import WireError
from workers.service.app import BearerOnly, answer, read_body
from workers.service.config import WorkerConfig
from workers.service.front import Front, listen
from workers.storage.process import StoreProcessConfig

# Ports outside the range that the kernel gives to outgoing connections, so that nobody takes one
# between its choice and the worker's start, or while a worker restarts.
PORTS = range(20000, 32000)

log = logging.getLogger(__name__)


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

    def keep_store(self, config: StoreProcessConfig) -> None:
        """Start a store of KV blocks, unless it runs already."""

    def remove_store(self, name: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSpec:
    """A site as its agent is told: its workers (their ports chosen here), its stores of KV blocks,
    its gateways, its front.

    `gateways` are the gateways' URLs as they are seen from the site, `gateway_site` where they
    stand. With `tls` the front takes connections from `sites` only.
    """

    site: str
    workers: tuple[WorkerConfig, ...]
    stores: tuple[StoreProcessConfig, ...] = ()
    gateways: tuple[str, ...]
    gateway_site: str
    host: str = "127.0.0.1"
    port: int
    start_s: float = START_S
    tls: TlsFiles | None = None
    sites: tuple[str, ...] = ()


class SiteAgent:
    """Runs until it is told to stop. Workers go on without it; a new agent adopts them.

    `SiteInventory` judges what the workers say; here they are asked, and its orders carried out.
    """

    def __init__(
        self, spec: SiteSpec, placer: Placer, secret: str, tls: TlsContexts | None
    ) -> None:
        self._spec = spec
        self._placer = placer
        self._secret = secret
        self._tls = tls
        self._inventory = SiteInventory(
            spec.site,
            [Assigned(name=c.name, pool=c.pool, roles=c.roles) for c in spec.workers],
            front=f"{spec.host}:{spec.port}",
            epoch=time.time_ns(),
            start_s=spec.start_s,
            now=time.monotonic(),
        )
        self._stores = SiteStores(spec.stores, secret, tls)
        self._renewals = {gateway: Renewals() for gateway in spec.gateways}
        self._handles: dict[str, Handle] = {}  # of the workers that were placed and not removed
        self._ports: set[int] = set()  # given to workers
        self._stopping = asyncio.Event()

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Serve the front, place or adopt the workers, watch them until told to stop.

        Raises OSError when the front's port is taken, and whatever a watching task failed of.
        """
        front = Front(self._app(), None if self._tls is None else self._tls.server)
        taken = listen(self._spec.host, self._spec.port)
        serving = asyncio.create_task(front.serve(sockets=[taken]))
        await self._settle()
        tasks = [asyncio.create_task(self._watch(name)) for name in self._inventory.watched]
        tasks += [asyncio.create_task(self._renew_lease(gateway)) for gateway in self._renewals]
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
        for name in list(self._handles):
            await self._remove(name)
        for store in self._spec.stores:
            await asyncio.to_thread(self._placer.remove_store, store.name)
        front.should_exit = True
        await serving

    def _stop_if_failed(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self._stopping.set()

    # ------------------------------------------------------------ workers

    async def _settle(self) -> None:
        """Adopt the workers that run already, place the others."""
        names = [config.name for config in self._spec.workers]
        found = {name: self._placer.find(name) for name in names}
        self._handles = {name: handle for name, handle in found.items() if handle is not None}
        refusal = self._placer.refusal(len(names) + len(self._spec.stores))
        if refusal is not None:
            log.error("refused", extra={"reason": refusal})
        for store in () if refusal is not None else self._spec.stores:
            self._placer.keep_store(store)
        await self._carry_out(self._inventory.begin(self._handles.keys(), refusal))

    async def _watch(self, name: str) -> None:
        while name in self._inventory.watched:
            await self._carry_out(await self._look(name))
            await asyncio.sleep(WATCH_S)

    async def _look(self, name: str) -> list[Order]:
        try:
            async with asyncio.timeout(ANSWER_S):
                said = await self._handles[name].describe()
        except (TimeoutError, Unavailable) as error:
            reason = self._placer.refusal(1) or str(error) or None
            return self._inventory.unanswered(name, reason, time.monotonic())
        return self._inventory.described(name, said, time.monotonic())

    async def _carry_out(self, orders: Iterable[Order]) -> None:
        for order in orders:
            if isinstance(order, Place):
                self._place(order.worker)
            elif isinstance(order, Drain):
                await self._drain(order.worker)
            else:
                await self._remove(order.worker)

    def _place(self, name: str) -> None:
        """Start the worker on ports of its own."""
        config = next(config for config in self._spec.workers if config.name == name)
        http_port = free_port(config.host, self._ports)
        kv_port = free_port(config.host, self._ports | {http_port})
        self._ports |= {http_port, kv_port}
        config = dataclasses.replace(config, http_port=http_port, kv_port=kv_port)
        self._handles[name] = self._placer.place(config)
        self._inventory.placed(name, f"{config.host}:{http_port}", f"{config.host}:{kv_port}")
        log.info("placed", extra={"worker": name})

    async def _drain(self, name: str) -> None:
        handle = self._handles.get(name)
        if handle is not None:
            with contextlib.suppress(Unavailable):
                await handle.drain()

    async def _remove(self, name: str) -> None:
        handle = self._handles.pop(name, None)
        if handle is not None:
            with contextlib.suppress(Unavailable):
                await handle.remove()

    # ------------------------------------------------------------ the gateways

    async def _renew_lease(self, gateway: str) -> None:
        """Report to one gateway for ever, whatever becomes of the others."""
        renewals = self._renewals[gateway]
        tls = None if self._tls is None else self._tls.client
        async with site_client(
            self._spec.gateway_site, self._secret, tls, timeout_s=RENEW_TIMEOUT_S
        ) as http:
            known: dict[str, int] = {}  # versions of the stores that the gateway has
            while True:
                report = self._report() | {"stores": await self._stores.told(known)}
                try:
                    answered = await http.post(f"{gateway}/internal/lease", json=report)
                    answered.raise_for_status()
                except httpx.HTTPError as error:
                    wait_s = renewals.failed(f"{type(error).__name__}: {error}")
                else:
                    wait_s = renewals.renewed()
                    known = answered.json().get("stores", {})
                await asyncio.sleep(wait_s)

    def _report(self) -> dict[str, Any]:
        states = dict.fromkeys(renewals.state for renewals in self._renewals.values())
        return self._inventory.report("; ".join(states))

    # ------------------------------------------------------------ the front

    def _app(self) -> Starlette:
        async def inventory(request: Request) -> Response:
            return answer(self._report())

        async def drain(request: Request) -> Response:
            try:
                body = await read_body(request)
            except WireError as error:
                return answer({"error": str(error)}, 400)
            names = body.get("workers") if isinstance(body, dict) else None
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                return answer({"error": 'must be {"workers": [names]}'}, 400)
            unknown = [name for name in names if name not in self._inventory.names]
            if unknown:
                known = ", ".join(self._inventory.names)
                return answer({"error": f"no worker {unknown[0]}; there are {known}"}, 404)
            await self._carry_out(self._inventory.drain(names))
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
