"""KV out: follows what the engine computes and streams it, slice by slice, to other workers."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from transport.base import Offer, Slice, SliceKey, StreamId
from transport.tcp import KVClient, Outgoing, StreamBroken
from workers.api.info import Part
from workers.engines.base import Engine, KVSlice, SeqId
from workers.outputs import OpenStream
from workers.service.fingerprint import canonical

# One slice's tokens: small enough that streams share the line fairly, large enough for few frames.
SLICE_TOKENS = 256

log = logging.getLogger(__name__)


class _Progress:
    """How many leading tokens of a sequence have their KV in the pool, layer by layer."""

    def __init__(self, layers: int, computed: int) -> None:
        self.ready = [computed] * layers

    def raise_to(self, computed: int) -> bool:
        behind = min(self.ready) < computed
        if behind:
            self.ready = [max(ready, computed) for ready in self.ready]
        return behind


class Exporter:
    """All streams this worker sends. `watch` and the engine's listener run in its thread."""

    def __init__(
        self,
        engine: Engine,
        client: KVClient,
        readers: ThreadPoolExecutor,
        link_rates: Mapping[str, float],
        on_done: Callable[[StreamId], None],
        on_failed: Callable[[StreamId, str], None],
    ) -> None:
        self._engine = engine
        self._client = client
        self._readers = readers
        self._link_rates = link_rates
        self._on_done = on_done
        self._on_failed = on_failed
        self._layers = engine.info.fingerprint.layers
        self._fingerprint = canonical(engine.info.fingerprint)
        self._loop = asyncio.get_running_loop()
        # Engine's thread writes, the loop reads: whole values are swapped, so no lock is needed.
        self._watched: dict[StreamId, tuple[SeqId, _Progress]] = {}
        self._waking = False
        self._tasks: dict[StreamId, asyncio.Task[None]] = {}
        self._news: dict[StreamId, asyncio.Event] = {}
        self._last_address: str | None = None
        engine.on_kv = self._on_kv

    # ------------------------------------------------------------ the engine's thread

    def watch(self, order: OpenStream) -> None:
        """Follow a sequence from what is computed now; every layer is equally far here."""
        try:
            computed = self._engine.computed(order.seq)
        except KeyError:
            computed = 0  # closed in the same turn: reading it will fail and say so
        self._watched[order.stream] = (order.seq, _Progress(self._layers, computed))

    def refresh(self) -> None:
        """Note what became computed without a step: imported, shared or found in the cache."""
        changed = False
        for seq, progress in list(self._watched.values()):
            try:
                changed |= progress.raise_to(self._engine.computed(seq))
            except KeyError:
                continue
        if changed:
            self._tell()

    def _on_kv(self, seq: SeqId, layer: int, start: int, stop: int) -> None:
        followed = False
        for watched, progress in list(self._watched.values()):
            if watched == seq and start <= progress.ready[layer] < stop:
                progress.ready[layer] = stop
                followed = True
        if followed:
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

    def goodput_bytes_per_s(self) -> float | None:
        """Of the path that was used last; None: nothing was sent yet."""
        if self._last_address is None:
            return None
        return self._client.estimate(self._last_address).goodput_bytes_per_s

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
            reason = "its source is gone" if isinstance(error, KeyError) else str(error)
            log.info("kv stream failed", extra={"reason": reason})
            self._on_failed(order.stream, reason)

    def _forget(self, stream: StreamId) -> None:
        del self._watched[stream], self._news[stream], self._tasks[stream]

    async def _stream(self, order: OpenStream) -> None:
        address, _, site = order.address.partition("@")
        self._last_address = address
        offer = Offer(
            stream=order.stream,
            start=order.start,
            stop=order.stop,
            slices_per_token=self._layers * len(Part),
            fingerprint=self._fingerprint,
            cache_salt=order.cache_salt,
        )
        out = await self._client.open(
            address, offer, order.codec, link_rate_bytes_per_s=self._link_rates.get(site)
        )
        try:
            await self._send_all(order, out)
            await out.finish()
        except BaseException:
            out.cancel()
            raise

    async def _send_all(self, order: OpenStream, out: Outgoing) -> None:
        sent = [max(order.start, out.have)] * self._layers
        news = self._news[order.stream]
        while min(sent) < order.stop:
            news.clear()
            _, progress = self._watched[order.stream]
            for layer, start, stop in pieces(sent, progress.ready, order.stop):
                for part in Part:
                    kv = await self._loop.run_in_executor(
                        self._readers, self._engine.read, order.seq, layer, part, start, stop
                    )
                    await out.send(_as_slice(kv))
                sent[layer] = stop
            if min(sent) < order.stop:
                await news.wait()


def pieces(sent: list[int], ready: list[int], stop: int) -> Iterator[tuple[int, int, int]]:
    """(layer, start, stop) of what is in the pool and not sent: earlier tokens first.

    Within one range of tokens the layers come in order, as prefill computes them.
    """
    while True:
        open_layers = [n for n, at in enumerate(sent) if at < min(ready[n], stop)]
        if not open_layers:
            return
        layer = min(open_layers, key=lambda n: (sent[n], n))
        start = sent[layer]
        yield layer, start, min(ready[layer], stop, start + SLICE_TOKENS)


def _as_slice(kv: KVSlice) -> Slice:
    key = SliceKey(kv.layer, kv.part.value, kv.start, kv.stop)
    return Slice(key=key, positions=kv.positions, data=kv.data)
