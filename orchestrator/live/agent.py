"""A site's agent: starts and watches the site's workers, and renews its lease at the gateway.

What places workers (Ray, in `ray_site`) stands behind `Placer`; this file knows no Ray.
"""

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx
from pydantic import TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrator.live.http import site_client, why_refused
from orchestrator.live.ports import CannotFollow, Ports, on_free_ports
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
from orchestrator.membership.standing import Standing, read_standing
from transport.tls import TlsContexts, TlsFiles
from workers.api.wire import WireError
from workers.service.app import BearerOnly, answer, read_body, read_bytes
from workers.service.config import WorkerConfig
from workers.service.front import Front, listen
from workers.storage.process import StoreProcessConfig

WORKERS = TypeAdapter(tuple[WorkerConfig, ...])


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The workers that a site is to have, and those that it had and that may still drain."""

    workers: tuple[WorkerConfig, ...]
    leaving: tuple[WorkerConfig, ...] = ()


TOLD = TypeAdapter(Told)
MOST_DEPTH, MOST_NAME = 8, 60  # of a place that an error names

ORDER_S = 2.0  # to tell a worker that it shall drain, or to end it; well below a lease

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

    def remove_store(self, name: str) -> None:
        """Let a store write what waits, and end it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSpec:
    """A site as its agent is told: its workers (a port that is 0 is chosen here), its stores of KV
    blocks, its gateways, its front.

    `gateways` are the gateways' URLs as they are seen from the site, `gateway_site` where they
    stand. With `tls` the front takes connections from `sites` only. `kept` is a file in which other
    workers are kept that the agent was told of, for the one that follows it.
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
    kept: Path | None = None


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
        told = _told(spec)
        self._workers = {worker.name: worker for worker in told.workers}
        self._leaving = {worker.name: worker for worker in told.leaving}
        self._inventory = SiteInventory(
            spec.site,
            map(_assigned, (*told.workers, *told.leaving)),
            front=f"{spec.host}:{spec.port}",
            epoch=time.time_ns(),
            start_s=spec.start_s,
            now=time.monotonic(),
        )
        self._stores = SiteStores(spec.stores, secret, tls)
        self._renewals = {gateway: Renewals() for gateway in spec.gateways}
        self._handles: dict[str, Handle] = {}  # of the workers that were placed and not removed
        self._ports = Ports()
        self._keeps_stores = False
        self._carrying_out = asyncio.Lock()  # a worker's place is free before another is put there
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._stopping = asyncio.Event()

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Serve the front, place or adopt the workers, watch them until told to stop.

        Raises OSError when the front's port is taken, and whatever a watching task failed of.
        """
        front = Front(self._app(), None if self._tls is None else self._tls.server)
        taken = listen(self._spec.host, self._spec.port)
        serving = asyncio.create_task(front.serve(sockets=[taken]))
        await self._settle()
        renewing = [self._begin(self._renew_lease(gateway)) for gateway in self._renewals]
        on_ready()
        await self._stopping.wait()
        tasks = [*renewing, *self._watching.values()]
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in ended:
            if isinstance(outcome, Exception):
                raise outcome  # the process ends; a new agent adopts the workers
        for name in list(self._handles):
            await self._remove(name)
        await self._keep_stores(False)
        async with self._gateways_client() as http:  # they know then what has been drained
            await asyncio.gather(*(self._report_to(to, http, {}) for to in self._renewals))
        front.should_exit = True
        await serving

    def _begin(self, doing: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(doing)
        task.add_done_callback(self._stop_if_failed)
        return task

    def _stop_if_failed(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self._stopping.set()

    # ------------------------------------------------------------ workers

    async def _settle(self) -> None:
        """Adopt the workers that run already, place the others. Of those that the site is to have
        no more, what still runs goes on to end.
        """
        found = {name: self._placer.find(name) for name in self._inventory.names}
        self._handles = {name: handle for name, handle in found.items() if handle is not None}
        refusal = self._placer.refusal(len(self._workers) + len(self._spec.stores))
        if refusal is not None:
            log.error("refused", extra={"reason": refusal})
        else:
            await self._keep_stores(True)
        await self._carry_out(self._inventory.begin(self._handles.keys(), refusal, self._leaving))

    async def _watch(self, name: str) -> None:
        while name in self._inventory.watched:
            await self._carry_out(await self._look(name))
            await asyncio.sleep(WATCH_S)

    async def _look(self, name: str) -> list[Order]:
        handle = self._handles.get(name)
        if handle is None:
            return []  # another is put in its place at this moment
        try:
            async with asyncio.timeout(ANSWER_S):
                said = await handle.describe()
        except (TimeoutError, Unavailable) as error:
            reason = self._placer.refusal(1) or str(error) or None
            return self._inventory.unanswered(name, reason, time.monotonic())
        return self._inventory.described(name, said, time.monotonic())

    async def _carry_out(self, orders: Iterable[Order]) -> None:
        """One after the other, and each within its time: a lease may have to wait for them."""
        orders = list(orders)
        if orders or (self._inventory.drained and self._keeps_stores):
            await self._carry_out_all(orders)
        for name in self._inventory.watched:
            watching = self._watching.get(name)
            if watching is None or watching.done():
                self._watching[name] = self._begin(self._watch(name))

    async def _carry_out_all(self, orders: Sequence[Order]) -> None:
        async with self._carrying_out:
            for order in orders:
                if isinstance(order, Place):
                    await self._keep_stores(True)
                    self._place(order.worker)
                elif isinstance(order, Drain):
                    await self._drain(order.worker)
                else:
                    await self._remove(order.worker)
            if self._inventory.drained:
                await self._keep_stores(False)

    async def follow(self, workers: Sequence[WorkerConfig]) -> None:
        """Run these workers from now on. Raises CannotFollow, and then nothing has changed."""
        refusal = self._placer.refusal(len(workers) + len(self._spec.stores))
        if refusal is not None:
            raise CannotFollow(refusal)
        before = self._workers
        new = {worker.name: worker for worker in on_free_ports(workers, before)}
        changed = [n for n in new if n in before and _process(new[n]) != _process(before[n])]
        had = self._leaving | before
        leaving = {n: had[n] for n in had if n in self._handles and n not in new}
        if self._spec.kept is not None:
            told = Told(workers=tuple(new.values()), leaving=tuple(leaving.values()))
            draft = self._spec.kept.with_suffix(".draft")
            draft.write_bytes(TOLD.dump_json(told))
            draft.replace(self._spec.kept)
        self._workers, self._leaving = new, leaving
        now = time.monotonic()
        await self._carry_out(self._inventory.follow(map(_assigned, new.values()), changed, now))

    def _place(self, name: str) -> None:
        """Start the worker on ports of its own, those that it was given or others."""
        config = self._workers.get(name)
        if config is None:
            return  # it is not wanted any more: the order waited while that was told
        http_port, kv_port = self._ports.give(config)
        config = dataclasses.replace(config, http_port=http_port, kv_port=kv_port)
        self._handles[name] = self._placer.place(config)
        self._inventory.placed(name, f"{config.host}:{http_port}", f"{config.host}:{kv_port}")
        log.info("placed", extra={"worker": name})

    async def _drain(self, name: str) -> None:
        handle = self._handles.get(name)
        if handle is not None:
            with contextlib.suppress(Unavailable, TimeoutError):
                async with asyncio.timeout(ORDER_S):
                    await handle.drain()

    async def _keep_stores(self, wanted: bool) -> None:
        """They go with the last worker of a site that is drained, and come with the first."""
        if wanted == self._keeps_stores:
            return
        self._keeps_stores = wanted
        stores = self._spec.stores
        if wanted:
            for store in stores:
                self._placer.keep_store(store)
            return
        removed = (asyncio.to_thread(self._placer.remove_store, store.name) for store in stores)
        await asyncio.gather(*removed)  # each may have much to write

    async def _remove(self, name: str) -> None:
        handle = self._handles.pop(name, None)
        if name not in self._workers:
            self._ports.take_back(name)
        if handle is not None:
            with contextlib.suppress(Unavailable, TimeoutError):
                async with asyncio.timeout(ORDER_S):
                    await handle.remove()

    # ------------------------------------------------------------ the gateways

    async def _renew_lease(self, gateway: str) -> None:
        """Report to one gateway for ever, whatever becomes of the others."""
        async with self._gateways_client() as http:
            known: dict[str, str] = {}  # versions of the stores that the gateway has
            while True:
                wait_s, known, wanted = await self._report_to(gateway, http, known)
                if wanted is not None:
                    await self._carry_out(self._inventory.told(wanted, time.monotonic()))
                await asyncio.sleep(wait_s)

    async def _report_to(
        self, gateway: str, http: httpx.AsyncClient, known: dict[str, str]
    ) -> tuple[float, dict[str, str], Standing | None]:
        """How long to wait before the next report, the stores' versions that the gateway has then,
        and what it wants of the site; None: it did not say.
        """
        renewals = self._renewals[gateway]
        report = self._report() | {"stores": await self._stores.told(known)}
        try:
            answered = await http.post(f"{gateway}/internal/lease", json=report)
            answered.raise_for_status()
            said = answered.json()
            known, wanted = _versions(said["stores"]), read_standing(said["standing"])
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            # What answers 200 and not in a gateway's words is not the gateway.
            return renewals.failed(why_refused(error)), known, None
        return renewals.renewed(), known, wanted

    def _gateways_client(self) -> httpx.AsyncClient:
        tls = None if self._tls is None else self._tls.client
        return site_client(self._spec.gateway_site, self._secret, tls, timeout_s=RENEW_TIMEOUT_S)

    def _report(self) -> dict[str, Any]:
        states = dict.fromkeys(renewals.state for renewals in self._renewals.values())
        return self._inventory.report("; ".join(states))

    # ------------------------------------------------------------ the front

    def _app(self) -> Starlette:
        async def inventory(request: Request) -> Response:
            return answer(self._report())

        async def drain(request: Request) -> Response:
            try:
                names = read_names(await read_body(request))
            except WireError as error:
                return answer({"error": str(error)}, 400)
            unknown = [name for name in names if name not in self._inventory.names]
            if unknown:
                known = ", ".join(self._inventory.names)
                return answer({"error": f"no worker {unknown[0]}; there are {known}"}, 404)
            await self._carry_out(self._inventory.drain(names))
            return answer({"draining": names})

        async def workers(request: Request) -> Response:
            try:
                wanted = read_workers(await read_bytes(request))
                await self.follow(wanted)
            except (WireError, CannotFollow) as error:
                return answer({"error": str(error)}, 409)
            return answer({"workers": [worker.name for worker in wanted]})

        async def stop(request: Request) -> Response:
            self._stopping.set()
            return answer({"stopping": True})

        return Starlette(
            routes=[
                Route("/inventory", inventory, methods=["GET"]),
                Route("/drain", drain, methods=["POST"]),
                Route("/workers", workers, methods=["POST"]),
                Route("/stop", stop, methods=["POST"]),
            ],
            middleware=[Middleware(BearerOnly, secret=self._secret)],
        )


def read_names(body: Any) -> list[str]:
    """The workers that are to drain. Raises WireError."""
    names = body.get("workers") if isinstance(body, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise WireError('must be {"workers": [names]}')
    return names


def read_workers(body: bytes | bytearray) -> tuple[WorkerConfig, ...]:
    """The workers that a site is to have, from JSON. Raises WireError naming the first mistake."""
    try:
        return WORKERS.validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part)[:MOST_NAME] for part in first["loc"][:MOST_DEPTH])
        raise WireError(f"{where or 'workers'}: {first['msg']}") from None


def _told(spec: SiteSpec) -> Told:
    """The workers of a site as its agent was told last."""
    if spec.kept is None or not spec.kept.exists():
        return Told(workers=spec.workers)
    return TOLD.validate_json(spec.kept.read_bytes())


def _versions(told: Any) -> dict[str, str]:
    """What a gateway knows of the stores, by pool. Raises ValueError and TypeError."""
    return {pool: bytes.fromhex(version).hex() for pool, version in dict(told).items()}


def _assigned(worker: WorkerConfig) -> Assigned:
    return Assigned(name=worker.name, pool=worker.pool, roles=worker.roles)


def _process(worker: WorkerConfig) -> WorkerConfig:
    """What only another process can be told: not roles, nor which of the site's ports it has."""
    return dataclasses.replace(worker, roles=(), http_port=0, kv_port=0)
