"""The listening end of KV streams over TCP: the thin asyncio part around `Receiver`."""

import asyncio
import dataclasses
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic

from transport.base import Sink, StreamId
from transport.codecs.table import decode_slice
from transport.stream.frames import Data, Frame, FrameError, Goodbye, Ping, Pong
from transport.stream.framing import Preamble, check_body
from transport.stream.receiver import ASK_AGAIN_S, RESUME_S, WINDOW_BYTES, Receiver, Verdict
from transport.tcp.wire import (
    BROKEN,
    READ_BUFFER_BYTES,
    SILENCE_S,
    HandshakeRefused,
    Wire,
    until_first_ends,
    welcome,
)

_DECODES_PER_CONNECTION = 4  # bodies in memory per connection; more wait in the socket
_THREADS = 2
_FAREWELL_TURNS = 20

log = logging.getLogger(__name__)


class KVServer:
    """Takes streams from any number of senders and hands what arrives to `sink`.

    `sink.put` is called in a thread of this server's, everything else in the event loop's.
    See `WINDOW_BYTES` and `RESUME_S` for `window_bytes` and `resume_s`.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        name: str,
        secret: str,
        host: str = "127.0.0.1",
        port: int = 0,
        resume_s: float = RESUME_S,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self._sink = sink
        self._name = name
        self._secret = secret.encode()
        self._host = host
        self._asked_port = port
        self._receiver = Receiver(sink, window_bytes=window_bytes, resume_s=resume_s)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="kv-decode")
        self._listener: asyncio.Server | None = None
        self._connections: dict[_Connection, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def port(self) -> int:
        """The port bound by `start`."""
        if self._listener is None:
            raise RuntimeError("the KV server has not been started")
        return self._listener.sockets[0].getsockname()[1]

    async def start(self) -> None:
        """Listen. Raises OSError when the port is in use."""
        self._loop = asyncio.get_running_loop()
        self._listener = await asyncio.start_server(
            self._connected, self._host, self._asked_port, limit=READ_BUFFER_BYTES
        )

    async def close(self) -> None:
        """Break every stream and close every connection."""
        if self._listener is None or self._closed:
            return
        self._closed = True
        self._listener.close()
        self._receiver.close(f"{self._name} is closing")
        self.settle()
        for _ in range(_FAREWELL_TURNS):  # let the senders hear of it, if they listen
            if not self._connections.keys() & set(self._receiver.ready()):
                break
            await asyncio.sleep(0.01)
        tasks = list(self._connections.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def cancel(self, stream: StreamId, reason: str) -> None:
        """Refuse the stream from now on; its sender is told, the sink is not called again.

        A `put` that is running in a thread may still end after this.
        """
        self._receiver.cancel(stream, reason)
        self.settle()

    def settle(self) -> None:
        """After each event: wake the writers that have something, and set the one timer."""
        for conn in self._receiver.ready():
            if conn in self._connections:
                conn.wake.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._receiver.next_deadline()
        if self._receiver.asking():
            soon = monotonic() + ASK_AGAIN_S
            deadline = soon if deadline is None else min(soon, deadline)
        if deadline is not None and not self._closed:
            self._timer = self._loop.call_later(max(0.0, deadline - monotonic()), self._on_timer)

    def _on_timer(self) -> None:
        now = monotonic()
        try:
            self._receiver.ask_again(now)
            self._receiver.expire(now)
        finally:  # a mistake of the sink's must not stop the clock
            self.settle()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conn = _Connection(self, Wire(reader, writer))
        self._connections[conn] = self._loop.create_task(self._serve(conn))

    async def _serve(self, conn: "_Connection") -> None:
        try:
            peer = await welcome(conn.wire, self._name, self._secret)
            why = await until_first_ends(conn.read(self._receiver), conn.write(self._receiver))
            if isinstance(why, FrameError):
                log.warning("KV connection from %s dropped: %s", peer, why)
                await conn.wire.write(Goodbye(str(why)))
            elif why is not None and not isinstance(why, BROKEN):
                log.error("KV connection from %s failed", peer, exc_info=why)
        except HandshakeRefused as error:
            log.warning("KV handshake refused: %s", error)
            await conn.wire.close()
        except BROKEN as error:
            log.info("KV connection ended: %s", error)
        finally:
            conn.wire.abort()
            del self._connections[conn]
            self._receiver.disconnected(conn, monotonic())
            self.settle()

    def decode(self, conn: "_Connection", preamble: Preamble, data: Data, body: bytes) -> None:
        """Check, decode and put one piece in a thread; the outcome comes back to this loop."""

        def work() -> None:
            check_body(preamble, body)
            self._sink.put(data.stream, decode_slice(dataclasses.replace(data, body=body)))

        def back(done: Future[None]) -> None:
            # The loop may be gone by the time a last piece has been put.
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._decoded, conn, data, len(body), done)

        self._pool.submit(work).add_done_callback(back)

    def _decoded(self, conn: "_Connection", data: Data, nbytes: int, done: Future[None]) -> None:
        conn.slots.release()
        if done.cancelled():
            self._receiver.dropped(data)
            self.settle()
            return
        error = done.exception()
        if not self._receiver.put(data, nbytes, error, monotonic()):
            log.warning("KV piece %s of %s: %s", data.key, data.stream, error)
            conn.wire.abort()
        elif error is not None and not isinstance(error, ValueError):
            log.error("the sink failed on %s", data.stream, exc_info=error)
        self.settle()


class _Connection:
    """One accepted connection: its pipe, and what its two loops share."""

    def __init__(self, server: KVServer, wire: Wire) -> None:
        self.wire = wire
        self.wake = asyncio.Event()
        self.slots = asyncio.Semaphore(_DECODES_PER_CONNECTION)
        self._server = server
        self._pongs: list[Frame] = []

    async def read(self, receiver: Receiver) -> None:
        while True:
            preamble, frame = await self.wire.read_head()
            if isinstance(frame, Data):
                if receiver.admit(self, frame, monotonic()) is Verdict.TAKE:
                    await self._take(receiver, preamble, frame)
                else:
                    await self.wire.skip_body(preamble)
            elif isinstance(frame, Ping):
                self._pongs.append(Pong(frame.stamp))
                self.wake.set()
            elif isinstance(frame, Goodbye):
                return
            else:
                receiver.handle(self, frame, monotonic())
            self._server.settle()

    async def _take(self, receiver: Receiver, preamble: Preamble, data: Data) -> None:
        try:
            async with asyncio.timeout(SILENCE_S):
                await self.slots.acquire()
            body = await self.wire.read_body(preamble)
        except BaseException:
            receiver.dropped(data)
            raise
        self._server.decode(self, preamble, data, body)

    async def write(self, receiver: Receiver) -> None:
        while True:
            pongs, self._pongs = self._pongs, []
            frames = pongs + receiver.take(self)
            if frames:
                await self.wire.write(*frames)
            else:
                self.wake.clear()
                await self.wake.wait()
