"""A KV client and server over real sockets, with a line between them that can be made to fail."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from tests.transport.kv_helpers import MemorySink, make_offer, make_slice
from transport.tcp.client import KVClient, Outgoing
from transport.tcp.server import KVServer

LAYERS, HEADS, SIZE = 4, 4, 64
SHAPE = {"heads": HEADS, "size": SIZE}
SECRET = "a deployment's secret"


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

    def __init__(self, sink: MemorySink, *, proxied: bool = False, **options: Any) -> None:
        client = {k: options.pop(k) for k in ("connections", "resume_s") if k in options}
        self.sink = sink
        self.server = KVServer(sink, name="main-0", secret=SECRET, **options)
        self.client = KVClient(name="prefill-0", secret=SECRET, **client)
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

    async def open(self, request: str = "r", stop: int = 512, **options: Any) -> Outgoing:
        offer = make_offer(request, stop=stop, layers=LAYERS)
        return await self.client.open(self.address, offer, "zstd", **options)

    def check(self, outgoing: Outgoing) -> None:
        self.sink.check(outgoing.machine.offer, layers=LAYERS, **SHAPE)
        assert outgoing.stream in self.sink.completions


class Proxy:
    """Forwards bytes; `break_all` resets every connection, `flip` damages one byte."""

    def __init__(self) -> None:
        self.forwarded = 0  # bytes from client to server
        self.flip = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, target: int) -> None:
        self._target = target
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._relay(reader, writer))
        self._tasks.add(task)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, far_writer}
        try:
            await asyncio.gather(
                self._pump(reader, far_writer, up=True),
                self._pump(far_reader, writer, up=False),
            )
        except OSError:
            return
        finally:
            writer.transport.abort()
            far_writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool
    ) -> None:
        while data := await reader.read(16 << 10):
            if up:
                self.forwarded += len(data)
                if self.flip and len(data) > 2000:
                    self.flip = False
                    data = data[:1000] + bytes([data[1000] ^ 1]) + data[1001:]
            writer.write(data)
            await writer.drain()
        writer.transport.abort()

    def break_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def close(self) -> None:
        self._server.close()
        self.break_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def send_all(outgoing: Outgoing, stop: int = 512) -> None:
    for layer in range(LAYERS):
        for part in "kv":
            await outgoing.send(make_slice(layer, part, 0, stop, **SHAPE))
    await outgoing.finish()


async def until(good: Callable[[], object], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not good():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)
