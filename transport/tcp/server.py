"""The listening end of KV streams over TCP: sockets and threads around `Receiver`."""

import asyncio
import dataclasses
import logging
import secrets
import ssl
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic

from transport.base import Sink, StreamId
from transport.codecs.table import decode_slice
from transport.stream.connections import SILENCE_S
from transport.stream.frames import Data, Frame, FrameError, Goodbye, Terms
from transport.stream.handshake import HandshakeRefused, Listener
from transport.stream.reader import Arrived
from transport.stream.receiver import ASK_AGAIN_S, RESUME_S, WINDOW_BYTES, Receiver, Verdict
from transport.tcp import sockets
from transport.tcp.wire import HANDSHAKE_S, Wire

_THREADS = 2
_FAREWELL_TURNS = 20

log = logging.getLogger(__name__)


class KVServer:
    """Takes streams from any number of senders and hands what arrives to `sink`.

    `model` (the fingerprint's canonical text) must be the senders'; `layout` they are told. With
    `tls` only peers whose certificate it knows come as far as the handshake. `sink.put` is called
    in a thread of this server's, everything else in the event loop's. `buffer` is what a
    connection's socket should hold each way, None: the kernel decides. See `WINDOW_BYTES` and
    `RESUME_S` for `window_bytes` and `resume_s`.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        name: str,
        secret: str,
        model: str,
        layout: str,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        buffer: int | None = None,
        resume_s: float = RESUME_S,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self.name = name
        self.secret = secret.encode()
        self.terms = Terms(model, layout, window_bytes)
        self.receiver = Receiver(sink, window_bytes=window_bytes, resume_s=resume_s)
        self._sink = sink
        self._host = host
        self._asked_port = port
        self._tls = tls
        self._buffer = buffer
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="kv-decode")
        self._listener: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._saying = False
        self._refused: tuple[bytes, str] | None = None

    @property
    def port(self) -> int:
        """The port bound by `start`."""
        if self._listener is None:
            raise RuntimeError("the KV server has not been started")
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        """Listen. Raises OSError when the port is in use."""
        self._loop = asyncio.get_running_loop()
        self._listener = await self._loop.create_server(
            lambda: _Connection(self).wire,
            self._host,
            self._asked_port,
            ssl=self._tls,
            ssl_handshake_timeout=HANDSHAKE_S if self._tls is not None else None,
        )
        if self._buffer is not None:  # before anyone connects: windows are scaled then
            for listening in self._listener.sockets:
                sockets.hold(listening, self._buffer)

    async def close(self) -> None:
        """Break every stream and close every connection."""
        if self._listener is None or self._closed:
            return
        self._closed = True
        self._listener.close()
        self.receiver.close(f"{self.name} is closing")
        self.settle()
        closing = ConnectionResetError(f"{self.name} is closing")
        for conn in list(self._connections):
            conn.wire.close(closing)
        for _ in range(_FAREWELL_TURNS):  # let the senders hear of it, if they listen
            if not self._connections:
                break
            await asyncio.sleep(0.01)
        for conn in list(self._connections):
            conn.wire.fail(closing)
        if self._timer is not None:
            self._timer.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def cancel(self, stream: StreamId, reason: str) -> None:
        """Refuse the stream from now on; its sender is told, the sink is not called again.

        A `put` that is running in a thread may still end after this.
        """
        self.receiver.cancel(stream, reason)
        self.settle()

    def settle(self) -> None:
        """After each event: write what there is to say, and set the one timer.

        After a piece `say` is enough: pieces only put deadlines off, and a timer that rings too
        early looks again.
        """
        self.say()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        times = [self.receiver.next_deadline()]
        times += [conn.deadline() for conn in self._connections]
        if self.receiver.asking():
            times.append(monotonic() + ASK_AGAIN_S)
        due = min((t for t in times if t is not None), default=None)
        if due is not None and not self._closed:
            self._timer = self._loop.call_later(max(0.0, due - monotonic()), self._on_timer)

    def say(self) -> None:
        """Write what there is to say."""
        self._saying = False
        for conn in self.receiver.ready():
            assert isinstance(conn, _Connection)
            if conn.wire.has_room:  # else it stays in the receiver, and acknowledgements gather
                conn.wire.write(*self.receiver.take(conn))

    def _on_timer(self) -> None:
        now = monotonic()
        try:
            for conn in list(self._connections):
                conn.expire(now)
            self.receiver.ask_again(now)
            self.receiver.expire(now)
        finally:  # a mistake of the sink's must not stop the clock
            self.settle()

    def joined(self, conn: "_Connection") -> None:
        """A connection was accepted; nobody has said hello."""
        self._connections.add(conn)
        self.settle()

    def left(self, conn: "_Connection") -> None:
        """A connection is gone."""
        self._connections.discard(conn)
        self.receiver.disconnected(conn, monotonic())
        self.settle()

    def refused(self, peer: str, session: bytes, why: str) -> None:
        """Tell of it, but once for connections that a peer dialled together."""
        if (session, why) != self._refused:
            self._refused = session, why
            log.warning("KV connection from %s refused: %s", peer, why)

    def decode(self, conn: "_Connection", arrived: Arrived, data: Data) -> None:
        """Check, decode and put one piece in a thread; the outcome comes back to this loop."""
        nbytes = arrived.preamble.body_bytes
        have = self.receiver.have(data.stream)

        def work() -> None:
            arrived.check()
            piece = decode_slice(dataclasses.replace(data, body=arrived.body or b""))
            start, stop = piece.key.start, piece.key.stop
            self._sink.put(data.stream, piece.tokens(max(start, have), stop))

        def back(done: Future[None]) -> None:
            # The loop may be gone by the time a last piece has been put.
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._decoded, conn, data, nbytes, done)

        self._pool.submit(work).add_done_callback(back)

    def _decoded(self, conn: "_Connection", data: Data, nbytes: int, done: Future[None]) -> None:
        if done.cancelled():
            self.receiver.dropped(conn, data, nbytes)
        else:
            error = done.exception()
            if error is not None:
                level = (
                    logging.WARNING if isinstance(error, ValueError | FrameError) else logging.ERROR
                )
                log.log(level, "KV piece %s of %s: %s", data.key, data.stream, error)
            self.receiver.put(conn, data, nbytes, error, monotonic())
        if not self._saying:  # pieces that were stored together are acknowledged together
            self._saying = True
            self._loop.call_soon(self.say)


class _Connection:
    """One accepted connection: first its handshake, then its sender's frames."""

    def __init__(self, server: KVServer) -> None:
        self._server = server
        self._handshake: Listener | None = Listener(
            server.name, secrets.token_bytes(16), server.secret, server.terms
        )
        self.wire = Wire(self._admit, lambda: server.joined(self), self._arrived, self._lost)
        self.wire.on_room = server.settle
        self._peer = "a stranger"
        self._heard_at = monotonic()

    def deadline(self) -> float | None:
        """When to call `expire`; None: it may be silent."""
        if self._handshake is not None:
            return self._heard_at + HANDSHAKE_S
        if self._server.receiver.serves(self):
            return self._heard_at + SILENCE_S
        return None

    def expire(self, now: float) -> None:
        """Close it when it was silent too long."""
        deadline = self.deadline()
        if deadline is not None and now >= deadline:
            self.wire.fail(TimeoutError(f"nothing was heard from {self._peer}"))

    def _admit(self, data: Data, nbytes: int) -> bool:
        self._heard_at = monotonic()
        return self._server.receiver.admit(self, data, nbytes, self._heard_at) is Verdict.TAKE

    def _arrived(self, arrived: Arrived) -> None:
        frame = arrived.frame
        if self._handshake is not None:
            self._greet(self._handshake, frame)
            return
        self._heard_at = monotonic()
        if isinstance(frame, Data):
            if arrived.body is not None:
                self._server.decode(self, arrived, frame)
            else:
                self._server.say()
            return
        if isinstance(frame, Goodbye):
            self.wire.fail(ConnectionResetError(frame.reason))
        else:
            self._server.receiver.handle(self, frame, self._heard_at)
        self._server.settle()

    def _greet(self, handshake: Listener, frame: Frame) -> None:
        try:
            self.wire.write(*handshake.handle(frame))
        except HandshakeRefused as error:
            self.wire.close(error, *([error.told] if error.told else []))
            return
        self._peer = handshake.peer
        if handshake.terms is not None:
            log.info("KV from %s, its layout %s", self._peer, handshake.terms.layout)
            self._handshake = None
            self._heard_at = monotonic()
            self.wire.greeted()
            self._server.receiver.connected(self, handshake.session)

    def _lost(self, why: Exception | None) -> None:
        unread = self.wire.unread
        if unread is not None:
            self._server.receiver.dropped(self, *unread)
        if isinstance(why, HandshakeRefused):
            session = b"" if self._handshake is None else self._handshake.session
            self._server.refused(self._peer, session, str(why))
        elif isinstance(why, FrameError):
            log.warning("KV connection from %s dropped: %s", self._peer, why)
        else:
            log.info("KV connection from %s ended: %s", self._peer, why)
        self._server.left(self)
