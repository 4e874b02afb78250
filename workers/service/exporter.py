"""KV out: follows what the engine computes and streams it, slice by slice, to other workers."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from transport.base import LinkEstimate, StreamId
from transport.stream.sender import StreamBroken
from transport.tcp.client import KVClient, KVStream
from transport.tcp.peer import Route
from workers.engines.base import Engine, SeqId
from workers.outputs import OpenStream
from workers.streams.exports import Exports, Unsent, as_slice, why_failed
from workers.streams.links import Outflow

log = logging.getLogger(__name__)

UNKNOWN = LinkEstimate(goodput_bytes_per_s=None, rtt_s=None, loss=None, queue_bytes=0)


@dataclass(slots=True, eq=False)
class _Sending:
    """One stream. `uncoded_bytes` of raw KV are still to be given to `out`, once it is open."""

    uncoded_bytes: int
    out: KVStream | None = None


@dataclass(slots=True, eq=False)
class _Peer:
    """What is sent to one address, and the bytes of streams that have ended."""

    site: str
    sending: list[_Sending] = field(default_factory=list)
    sent_bytes: int = 0
    resent_bytes: int = 0

    def ended(self, sending: _Sending) -> None:
        self.sending.remove(sending)
        if sending.out is not None:
            sent, resent = sending.out.sent_bytes
            self.sent_bytes += sent
            self.resent_bytes += resent

    def outflow(self, estimate: LinkEstimate | None) -> Outflow:
        counted = [s.out.sent_bytes for s in self.sending if s.out is not None]
        return Outflow(
            site=self.site,
            estimate=estimate or UNKNOWN,
            uncoded_bytes=sum(max(0, s.uncoded_bytes) for s in self.sending),
            sent_bytes=self.sent_bytes + sum(sent for sent, _ in counted),
            resent_bytes=self.resent_bytes + sum(resent for _, resent in counted),
        )


class Exporter:
    """All streams this worker sends. `watch` and the engine's listener run in its thread.

    `routes` tells how to reach an address at a site ("" is this one).
    """

    def __init__(
        self,
        engine: Engine,
        client: KVClient,
        readers: ThreadPoolExecutor,
        routes: Callable[[str, str], Route],
        on_done: Callable[[StreamId], None],
        on_failed: Callable[[StreamId, str], None],
    ) -> None:
        self._engine = engine
        self._client = client
        self._readers = readers
        self._routes = routes
        self._on_done = on_done
        self._on_failed = on_failed
        self._layers = engine.info.fingerprint.layers
        self._exports = Exports(engine)
        self._loop = asyncio.get_running_loop()
        self._waking = False
        self._tasks: dict[StreamId, asyncio.Task[None]] = {}
        self._news: dict[StreamId, asyncio.Event] = {}
        self._peers: dict[str, _Peer] = {}  # by address
        engine.on_kv = self._on_kv

    # ------------------------------------------------------------ the engine's thread

    def watch(self, order: OpenStream) -> None:
        """Follow a sequence from what is computed now."""
        self._exports.follow(order)

    def refresh(self) -> None:
        """Note what became computed without a step: imported, shared or found in the cache."""
        if self._exports.refresh():
            self._tell()

    def _on_kv(self, seq: SeqId, layer: int, start: int, stop: int) -> None:
        if self._exports.computed(seq, layer, start, stop):
            self._tell()

    def _tell(self) -> None:
        if not self._waking:  # many layers, one wake-up
            self._waking = True
            self._loop.call_soon_threadsafe(self._wake_all)

    # ------------------------------------------------------------ the loop

    def _wake_all(self) -> None:
        self._waking = False
        for news in self._news.values():
            news.set()

    def open(self, order: OpenStream) -> None:
        self._news[order.stream] = asyncio.Event()
        task = asyncio.create_task(self._export(order))
        self._tasks[order.stream] = task
        # Not in the task itself: one that is cancelled before it begins runs no `finally`.
        task.add_done_callback(lambda _: self._forget(order.stream))

    def close(self, stream: StreamId) -> None:
        """End a stream; the receiver hears that it was cancelled."""
        task = self._tasks.get(stream)
        if task is not None:
            task.cancel()

    def outflows(self) -> list[Outflow]:
        """What goes, or went, to each peer."""
        return [
            peer.outflow(self._client.estimate(address)) for address, peer in self._peers.items()
        ]

    async def shutdown(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _export(self, order: OpenStream) -> None:
        try:
            await self._stream(order)
            self._on_done(order.stream)
        except (StreamBroken, ValueError, KeyError, OSError) as error:
            reason = why_failed(error)
            log.info("kv stream failed", extra={"reason": reason})
            self._on_failed(order.stream, reason)

    def _forget(self, stream: StreamId) -> None:
        self._exports.forget(stream)
        del self._news[stream], self._tasks[stream]

    async def _stream(self, order: OpenStream) -> None:
        address, _, site = order.address.partition("@")
        token_bytes = self._engine.info.kv_bytes_per_token
        sending = _Sending((order.stop - order.start) * token_bytes)
        peer = self._peers.setdefault(address, _Peer(site))
        peer.sending.append(sending)
        try:
            sending.out = out = await self._client.open(
                self._routes(address, site),
                self._exports.offer(order),
                order.codec,
                token_bytes=token_bytes,
                weight=order.weight,
            )
            try:
                await self._send_all(order, out, sending)
                await out.finish()
            except BaseException:
                out.cancel()
                raise
        finally:
            peer.ended(sending)

    async def _send_all(self, order: OpenStream, out: KVStream, sending: "_Sending") -> None:
        first = max(order.start, out.have)
        unsent = Unsent(self._layers, first, order.stop)
        sending.uncoded_bytes -= (first - order.start) * self._engine.info.kv_bytes_per_token
        news = self._news[order.stream]
        while not unsent.empty:
            news.clear()
            while (piece := unsent.take(self._exports.ready(order.stream))) is not None:
                kv = await self._loop.run_in_executor(
                    self._readers, self._engine.read, order.seq, *piece
                )
                await out.send(as_slice(kv))
                sending.uncoded_bytes -= kv.data.nbytes
            if not unsent.empty:
                await news.wait()
