"""A KV client and server over real sockets, with a line between them that can be made to fail."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.transport.kv_helpers import (
    LAYOUT,
    MODEL,
    MemorySink,
    make_offer,
    make_slice,
    token_bytes,
)
from transport.stream.frames import FrameError, Kind
from transport.stream.framing import PREAMBLE_BYTES, parse_preamble
from transport.stream.sender import StreamBroken
from transport.tcp.client import KVClient, KVStream
from transport.tcp.peer import Route
from transport.tcp.server import KVServer

LAYERS, HEADS, SIZE = 4, 4, 64
SHAPE = {"heads": HEADS, "size": SIZE}
SECRET = "a deployment's secret"
TOKEN_BYTES = token_bytes(LAYERS, HEADS, SIZE)


def make_server(sink: MemorySink, **options: Any) -> KVServer:
    said = {"name": "main-0", "secret": SECRET, "model": MODEL, "layout": LAYOUT}
    return KVServer(sink, **(said | options))


def make_client(**options: Any) -> KVClient:
    said = {"name": "prefill-0", "secret": SECRET, "model": MODEL, "layout": LAYOUT}
    return KVClient(**(said | options))


def run(test: Callable[[], Coroutine[Any, Any, None]], loop_factory: Any = None) -> None:
    """Run within a deadline; afterwards no task, no socket and no thread is left."""

    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test()
        for _ in range(50):  # a closed transport needs a turn or two of the loop
            threads = [t for t in threading.enumerate() if t.name.startswith("kv-")]
            if len(asyncio.all_tasks()) == 1 and open_sockets() <= before and not threads:
                return
            await asyncio.sleep(0.02)
        raise AssertionError((asyncio.all_tasks(), before, open_sockets(), threads))

    async def count() -> int:
        return open_sockets()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        before = runner.run(count())
        runner.run(bounded())


def open_sockets() -> int:
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            continue  # the listing's own descriptor
    return sum(link.startswith("socket:") for link in links)


class Pair:
    """A server and a client, and in between, if asked, a proxy that can be made to fail."""

    def __init__(
        self,
        sink: MemorySink,
        *,
        proxied: bool = False,
        client: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.sink = sink
        self.server = make_server(sink, **options)
        self.client = make_client(**(client or {}))
        self.proxy = Proxy() if proxied else None

    async def __aenter__(self) -> "Pair":
        await self.server.start()
        if self.proxy is not None:
            await self.proxy.start(self.server.port)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.client.close()
        await self.server.close()
        if self.proxy is not None:
            await self.proxy.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port if self.proxy is None else self.proxy.port}"

    def route(self, **options: Any) -> Route:
        return Route(address=self.address, **options)

    async def open(
        self,
        request: str = "r",
        stop: int = 512,
        *,
        rate: float | None = None,
        codec: str = "zstd",
        **options: Any,
    ) -> KVStream:
        """`rate`: of the route, in bytes per second; the first stream's counts."""
        offer = make_offer(request, stop=stop, layers=LAYERS)
        route = self.route(rate_bytes_per_s=rate, paced=True)
        return await self.client.open(route, offer, codec, token_bytes=TOKEN_BYTES, **options)

    def check(self, stream: KVStream) -> None:
        self.sink.check(stream._out.offer, layers=LAYERS, **SHAPE)
        assert stream._out.stream in self.sink.completions

    @property
    def peer(self) -> Any:
        """The client's end of all its connections."""
        return self.client._peers[self.address]


class Proxy:
    """Forwards bytes; can reset connections, and damage the bodies of pieces on their way up."""

    def __init__(self) -> None:
        self.forwarded = 0  # bytes from client to server
        self.accepted = 0  # connections, ever
        self.pieces = 0  # data frames from client to server
        self.damaged = 0
        self.thaw = asyncio.Event()  # cleared: what comes is kept, and nothing is forwarded
        self.thaw.set()
        self.damage_every: int | None = None  # that many pieces, one is damaged
        self.writers: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, target: int) -> None:
        self._target = target
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.get_running_loop().create_task(self._relay(reader, writer))
        self._tasks.add(task)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        both = writer, far_writer
        self.writers.append(both)
        try:
            await asyncio.gather(
                self._pump(reader, far_writer, Framed(self)),
                self._pump(far_reader, writer, None),
            )
        except OSError:
            return
        finally:
            for end in both:
                end.transport.abort()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        framed: "Framed | None",
    ) -> None:
        while data := await reader.read(16 << 10):
            if framed is not None:
                self.forwarded += len(data)
                data = framed.pass_on(data)
            await self.thaw.wait()
            writer.write(data)
            await writer.drain()
        writer.transport.abort()

    def break_one(self) -> None:
        """Reset the oldest connection that is left."""
        for end in self.writers.pop(0):
            end.transport.abort()

    def break_all(self) -> None:
        while self.writers:
            self.break_one()

    async def close(self) -> None:
        self._server.close()
        self.break_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Framed:
    """Knows where the bodies are in the bytes of one connection."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._start = b""  # of a preamble
        self._skip = 0  # bytes of the frame that are still to come
        self._flip_at = 0  # when so many are left, one is damaged

    def pass_on(self, data: bytes) -> bytes:
        out, at = bytearray(data), 0
        while at < len(data):
            if self._skip:
                took = min(self._skip, len(data) - at)
                if 0 < self._flip_at <= self._skip and self._skip - took < self._flip_at:
                    out[at + self._skip - self._flip_at] ^= 1
                    self._proxy.damaged += 1
                self._skip -= took
                at += took
                continue
            took = min(PREAMBLE_BYTES - len(self._start), len(data) - at)
            self._start += data[at : at + took]
            at += took
            if len(self._start) == PREAMBLE_BYTES:
                self._begin()
        return bytes(out)

    def _begin(self) -> None:
        try:
            preamble = parse_preamble(self._start)
        except FrameError:  # TLS, or a stranger
            self._skip = 1 << 60
            return
        self._start, self._flip_at = b"", 0
        self._skip = preamble.head_bytes + preamble.body_bytes
        if preamble.kind is Kind.DATA:
            self._proxy.pieces += 1
            every = self._proxy.damage_every
            if every is not None and self._proxy.pieces % every == 0:
                self._flip_at = preamble.body_bytes // 2


async def send_all(outgoing: KVStream, stop: int = 512) -> None:
    for layer in range(LAYERS):
        for part in "kv":
            await outgoing.send(make_slice(layer, part, 0, stop, **SHAPE))
    await outgoing.finish()


async def until(good: Callable[[], object], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not good():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


async def refused(pair: Pair, **client: str) -> str:
    """What another client's stream breaks with."""
    stranger = make_client(name="stranger", **client)
    try:
        with pytest.raises(StreamBroken) as caught:
            await stranger.open(pair.route(), make_offer(), "raw", token_bytes=1)
    finally:
        await stranger.close()
    assert not pair.sink.offers
    return str(caught.value)
