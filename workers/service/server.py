"""One running worker: core, engine thread, HTTP, KV in and out, put together."""

import asyncio
import contextlib
import dataclasses
import logging
import os
import secrets
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from transport.base import StreamId
from transport.tcp.client import CONNECTIONS, KVClient
from transport.tcp.peer import Route
from transport.tcp.server import KVServer
from transport.tcp.sockets import buffer_bytes
from transport.tls import TlsContexts, site_hostname
from workers.api.messages import HEARTBEAT_S, DownMessage, Load, Stop
from workers.engines.base import Engine, SeqId
from workers.handover import LEG_ENDED
from workers.outputs import (
    CloseStream,
    DropImport,
    LoadBlocks,
    OpenStream,
    Output,
    SaveBlocks,
    Up,
)
from workers.service.app import build_app
from workers.service.config import WorkerConfig
from workers.service.engine_thread import EngineThread
from workers.service.exporter import Exporter
from workers.service.front import Front
from workers.service.importer import Importer
from workers.service.token_streams import TokenStream, TokenStreams
from workers.storage.storage import Storage
from workers.streams.links import link_loads
from workers.tiers.client import StoreClient
from workers.worker import Worker

DRAIN_CHECK_S = 0.2

log = logging.getLogger(__name__)


class WorkerServer:
    """Serves until it is drained, told to stop, orphaned, or its engine fails.

    Built and run inside one event loop; `drain` and `stop` may be called from any thread.
    """

    def __init__(
        self,
        config: WorkerConfig,
        worker: Worker,
        engine: Engine,
        secret: str,
        tls: TlsContexts | None,
    ) -> None:
        self._config = config
        self._engine = engine
        self._secret = secret
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self.up = False
        self._draining = False
        self._drained = False
        self._parent = os.getppid()
        self._info = {
            "worker": config.name,
            "site": config.site,
            "pool": config.pool,
            "roles": list(config.roles),
            "slots": config.slots,
            "incarnation": secrets.token_hex(8),
            "pid": os.getpid(),
            "http_port": config.http_port,
            "kv_port": config.kv_port,
            "info": dataclasses.asdict(engine.info),
            "kv_bytes_per_token": engine.info.kv_bytes_per_token,
            "keeps": None if config.eviction is None else dataclasses.asdict(config.eviction.plain),
        }
        self._streams = TokenStreams(self._info)
        self._thread = EngineThread(worker, engine, self._outputs, self._end_soon)
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="kv-read")
        dialled = None if tls is None else tls.client
        self._storage = Storage(
            engine,
            [StoreClient(at, secret, site=config.site, tls=dialled) for at in config.stores],
            max((line.rate_bytes_per_s for line in config.lines.values()), default=None),
            self._blocks_loaded,
        )
        info = engine.info
        about: dict[str, Any] = {
            "name": config.name,
            "secret": secret,
            "model": info.fingerprint.canonical,
            "layout": info.layout,
        }
        self._client = KVClient(**about, tls=dialled)
        self._exporter = Exporter(
            engine,
            self._client,
            self._readers,
            self._route,
            on_done=self._export_done,
            on_failed=self._export_failed,
        )
        self._kv = KVServer(
            Importer(engine, self._thread),
            **about,
            host=config.host,
            port=config.kv_port,
            buffer=max(
                (
                    buffer_bytes(line.rate_bytes_per_s, line.rtt_s, CONNECTIONS)
                    for line in config.lines.values()
                ),
                default=None,
            ),
            tls=None if tls is None else tls.server,
        )

    async def run(self, http: socket.socket) -> int:
        """Serve on `http` until the end; the exit code. Raises OSError if a port is taken."""
        await self._kv.start()
        front = Front(
            build_app(self, self._secret), None if self._tls is None else self._tls.server
        )
        self._thread.start()
        serving = asyncio.create_task(front.serve(sockets=[http]))
        beating = asyncio.create_task(self._beat())
        try:
            await front.up.wait()
            log.info("serving", extra={"http_port": self._config.http_port})
            self.up = True
            await self._ended.wait()
        finally:
            beating.cancel()
            self._streams.close()
            front.should_exit = True
            await serving
            await self._exporter.shutdown()
            await self._kv.close()
            await self._client.close()
            await asyncio.to_thread(self._thread.stop)
            self._readers.shutdown(wait=False, cancel_futures=True)
            await asyncio.to_thread(self._storage.close)
        if self._thread.failure is not None:
            log.error("engine failed", extra={"reason": self._thread.failure})
            return 1
        log.info("stopped", extra={"drained": self._drained})
        return 0

    # ------------------------------------------------------------ what the front asks

    def take(self, messages: Sequence[DownMessage], gateway: str | None) -> None:
        """Queue messages for the core; a stop also interrupts a running step.

        What a gateway posts under its name, be it nothing, renews the lease on its legs.
        """
        for message in messages:
            if isinstance(message, Stop):
                self._thread.cancel(SeqId(message.request, message.epoch))
        if gateway is not None:
            self._renew(gateway)

        def handle(worker: Worker, now: float) -> Sequence[Output]:
            return [output for message in messages for output in worker.handle(message, now)]

        if messages:
            self._thread.submit(handle)

    def open_stream(self, gateway: str) -> TokenStream:
        self._renew(gateway)
        return self._streams.open(gateway)

    def stream_ended(self, stream: TokenStream) -> None:
        self._streams.closed(stream)

    def describe(self) -> dict[str, Any]:
        return self._info

    def health(self) -> tuple[bool, dict[str, Any]]:
        good = self._thread.healthy(self._config.stall_s)
        body = {
            "ok": good,
            "draining": self._draining,
            "reason": None if good else self._thread.failure or "the engine makes no progress",
        }
        return good, body

    async def blocks(self) -> dict[str, Any]:
        """The engine's memory, and what went to and came from the site's stores so far."""

        def count(worker: Worker, now: float) -> dict[str, Any]:
            return {
                "held_tokens": self._engine.kv_held_tokens(),
                "free_tokens": self._engine.kv_free_tokens(),
                "legs": worker.leg_count,
                "stores": self._storage.counts(),
            }

        return await self._thread.ask(count)

    # ------------------------------------------------------------ life

    def drain(self) -> None:
        """Take no new legs; end when the running ones have, or after `drain_s`. Any thread."""
        self._loop.call_soon_threadsafe(self._start_drain)

    def stop(self) -> None:
        """End now. Any thread."""
        self._end_soon()

    def _start_drain(self) -> None:
        if not self._draining:
            self._draining = True
            self._draining_task = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        log.info("draining")
        self._thread.look(lambda worker, now: worker.drain(now))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.drain_s):
                while not self._drained:
                    self._drained = self._thread.look(lambda worker, now: worker.idle)
                    await asyncio.sleep(DRAIN_CHECK_S)
        self._ended.set()

    def _end_soon(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)

    async def _beat(self) -> None:
        """Tell the load again and again, and look after the parent process."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            if os.getppid() != self._parent:
                log.warning("parent process is gone")
                self._ended.set()
                return
            if self._thread.healthy(self._config.stall_s):
                self._streams.heartbeat(self._load(), self._thread.taken)

    def _renew(self, gateway: str) -> None:
        """A gateway was heard. Its open stream says nothing: over a cut line it stays open."""
        self._thread.look(lambda worker, now: worker.gateway_seen(gateway, now))

    def _load(self) -> Load:
        away = (o for o in self._exporter.outflows() if o.site != self._config.site)
        return dataclasses.replace(self._thread.load, links=link_loads(away))

    # ------------------------------------------------------------ what the core asks

    def _outputs(self, outputs: Sequence[Output]) -> None:
        """In the engine's thread: streams are followed from this very moment."""
        for output in outputs:
            if isinstance(output, OpenStream):
                self._exporter.watch(output)
        self._exporter.refresh()
        if outputs:
            self._loop.call_soon_threadsafe(self._carry_out, outputs)

    def _carry_out(self, outputs: Sequence[Output]) -> None:
        self._streams.deliver(output for output in outputs if isinstance(output, Up))
        for output in outputs:
            if isinstance(output, OpenStream):
                self._exporter.open(output)
            elif isinstance(output, CloseStream):
                self._exporter.close(output.stream)
            elif isinstance(output, DropImport):
                self._kv.cancel(output.stream, LEG_ENDED)
            elif isinstance(output, LoadBlocks):
                self._storage.load(output)
            elif isinstance(output, SaveBlocks):
                self._storage.save(output)

    def _route(self, address: str, site: str) -> Route:
        """How KV for a worker of `site` travels."""
        line = self._config.lines.get(site)
        if line is None:
            return Route(address=address, hostname=site_hostname(site))
        return Route(
            address=address,
            hostname=site_hostname(site),
            rate_bytes_per_s=line.rate_bytes_per_s,
            rtt_s=line.rtt_s,
            paced=line.paced,
        )

    def _blocks_loaded(self, seq: SeqId) -> None:
        self._thread.submit(lambda worker, now: worker.blocks_loaded(seq, now))

    def _export_done(self, stream: StreamId) -> None:
        self._thread.submit(lambda worker, now: worker.export_completed(stream, now))

    def _export_failed(self, stream: StreamId, reason: str) -> None:
        self._thread.submit(lambda worker, now: worker.export_failed(stream, reason, now))
