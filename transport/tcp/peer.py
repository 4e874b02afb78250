"""The connections to one peer: sockets and timers around `Sender`."""

import asyncio
import logging
import secrets
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

from transport.base import LinkEstimate, StreamId
from transport.stream.frames import (
    Ack,
    Data,
    Frame,
    Goodbye,
    Hello,
    Pong,
    Proof,
    Terms,
    WrongVersion,
)
from transport.stream.framing import encode
from transport.stream.handshake import Dialler, HandshakeRefused
from transport.stream.pace import Pacer
from transport.stream.reader import Arrived
from transport.stream.sender import Sender
from transport.tcp import sockets
from transport.tcp.wire import BROKEN, HANDSHAKE_S, Wire
from transport.tls import OneConnection

_PIECE_S = 0.1  # one piece should not hold a paced line for longer
_MIN_PIECE_BYTES = 64 << 10
# Each connection has one under way beyond its share: together well below bandwidth x delay, yet
# each worth the processor time it costs.
_UNPACED_PIECE_S = 0.005
_UNPACED_PIECE_BYTES = 256 << 10
_MAX_PIECE_BYTES = 1 << 20
_PACE = 0.97  # of the line's rate, so that the queue stays here and not in the line
_CHUNK_S = 0.005
_MIN_CHUNK_BYTES = 4 << 10
_MAX_CHUNK_BYTES = 64 << 10
_FAREWELL_TURNS = 20

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a sending process says of itself, and how it knows its peers."""

    name: str
    secret: bytes
    terms: Terms
    tls: ssl.SSLContext | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How to reach one peer, "host:port".

    `hostname` is the name its certificate must carry. `rate_bytes_per_s` and `rtt_s` are what the
    line is said to have: buffers are sized to their product, and when `paced` all that goes there
    stays just below the rate.
    """

    address: str
    hostname: str | None = None
    rate_bytes_per_s: float | None = None
    rtt_s: float | None = None
    paced: bool = False

    def __post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"address {self.address!r}: must be host:port")


class Peer:
    """`heard` is told which streams moved, after each event."""

    def __init__(
        self,
        identity: Identity,
        route: Route,
        connections: int,
        resume_s: float,
        heard: Callable[[StreamId], None],
    ) -> None:
        self.identity = identity
        self.route = route
        self.sender = Sender(connections=connections, resume_s=resume_s)
        self.pacer = Pacer()
        self.session = secrets.token_bytes(16)
        if route.paced and route.rate_bytes_per_s is not None:
            self.pacer.rate_bytes_per_s = _PACE * route.rate_bytes_per_s
        self._heard = heard
        self._connections: dict[_Connection, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.loop = asyncio.get_running_loop()
        self._closed = False

    def piece_bytes(self) -> int:
        """How large a piece may be before coding."""
        rate = self.pacer.rate_bytes_per_s
        if rate is not None:
            return _clamp(rate * _PIECE_S, _MIN_PIECE_BYTES, _MAX_PIECE_BYTES)
        rate = self.goodput_bytes_per_s
        if rate is None:
            return _MAX_PIECE_BYTES
        return _clamp(rate * _UNPACED_PIECE_S, _UNPACED_PIECE_BYTES, _MAX_PIECE_BYTES)

    def chunk_bytes(self) -> int | None:
        """How much is written between two looks at the pacer; None: all of it."""
        rate = self.pacer.rate_bytes_per_s
        if rate is None:
            return None
        return _clamp(rate * _CHUNK_S, _MIN_CHUNK_BYTES, _MAX_CHUNK_BYTES)

    def buffer(self) -> int | None:
        """What a connection's socket should hold each way; None: the kernel decides."""
        rate, rtt_s = self.route.rate_bytes_per_s, self.route.rtt_s
        if rate is None or rtt_s is None:
            return None
        return sockets.buffer_bytes(rate, rtt_s, self.sender.dials.connections)

    @property
    def goodput_bytes_per_s(self) -> float | None:
        """Of coded bytes: as measured, else as the route was described; None: not known."""
        measured = self.sender.goodput_bytes_per_s
        return self.route.rate_bytes_per_s if measured is None else measured

    def estimate(self) -> LinkEstimate:
        """What is known of the path."""
        counted = [t for conn in self._connections if (t := conn.wire.traffic()) is not None]
        sent = sum(t.sent_bytes for t in counted)
        repeated = sum(t.repeated_bytes for t in counted)
        return self.sender.estimate(repeated / sent if sent else None)

    def settle(self) -> None:
        """After each event: dial, wake the writers, tell who moved, set the one timer.

        After a piece or its acknowledgement `moved` is enough: they only put deadlines off, and a
        timer that rings too early looks again.
        """
        now = monotonic()
        if not self._closed:
            for _ in range(self.sender.dials.due(now)):
                conn = _Connection(self)
                self._connections[conn] = self.loop.create_task(self._serve(conn))
        self.moved()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.sender.next_deadline()
        if due is not None and not self._closed:
            self._timer = self.loop.call_later(max(0.0, due - now), self._on_timer)

    def moved(self) -> None:
        """Wake the writers that have something to do, and tell which streams moved."""
        pieces = self.sender.queued_pieces
        idle = [conn for conn in self._connections if conn.idle]
        for conn in sorted(idle, key=lambda conn: conn.written_bytes):
            if self.sender.has_control(conn):
                conn.wake.set()
            elif pieces:
                pieces -= 1
                conn.wake.set()
        self.tell()

    def tell(self) -> None:
        """Tell which streams moved."""
        for stream in self.sender.changed():
            self._heard(stream)

    async def close(self) -> None:
        """Break every stream and close every connection."""
        self.sender.fail_all("the sender is closed")
        self.settle()
        self._closed = True
        for _ in range(_FAREWELL_TURNS):  # let the peer hear of it, if it listens
            if not any(conn.has_control for conn in self._connections):
                break
            await asyncio.sleep(0.01)
        tasks = list(self._connections.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()

    def _on_timer(self) -> None:
        now = monotonic()
        self.sender.expire(now)
        for conn in self.sender.silent(now):
            assert isinstance(conn, _Connection)
            conn.wire.fail(TimeoutError("nothing was heard"))
        self.settle()

    async def _serve(self, conn: "_Connection") -> None:
        """One connection from dialling to its end."""
        try:
            await conn.run()
        except asyncio.CancelledError:
            self._ended(conn, "the sender is closed")
            raise
        except (HandshakeRefused, ssl.SSLError) as error:
            reason = f"{self.route.address}: {error}"
            if self.sender.streams:  # of connections dialled together the first one tells
                log.warning("KV connection refused: %s", reason)
            self.sender.fail_all(reason)
            self._ended(conn, reason)
        except BROKEN as error:
            self._ended(conn, f"{self.route.address}: {type(error).__name__}: {error}")
        except Exception as error:  # a mistake here must not leave anyone waiting
            log.exception("the KV connection to %s failed", self.route.address)
            self.sender.fail_all(f"{type(error).__name__}: {error}")
            self._ended(conn, str(error))

    def _ended(self, conn: "_Connection", reason: str) -> None:
        del self._connections[conn]
        now = monotonic()
        if conn in self.sender.connections:
            self.sender.disconnected(conn, reason, now)
        else:
            self.sender.undialled(reason, now)
        self.settle()


class _Connection:
    """One connection to the peer."""

    def __init__(self, peer: Peer) -> None:
        self.wake = asyncio.Event()
        self.idle = False  # nothing to write, waiting for `wake`
        self.written_bytes = 0
        self._peer = peer
        identity = peer.identity
        hello = Hello(identity.name, secrets.token_bytes(16), peer.session)
        self._handshake = Dialler(hello, identity.secret, identity.terms)
        self._asked_at: float | None = None
        self._rtt_s: float | None = None
        self._greeted: asyncio.Future[int] = peer.loop.create_future()
        # Whoever waited may be gone by then; asyncio would call the failure forgotten.
        self._greeted.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._ended: asyncio.Future[Exception] = peer.loop.create_future()
        self._control: list[Frame] = []
        self.wire = Wire(
            lambda data, nbytes: False, self._made, self._arrived, self._lost, peer.buffer()
        )

    @property
    def has_control(self) -> bool:
        """Whether something else than pieces is still to be written."""
        return bool(self._control)

    async def run(self) -> None:
        """Dial, greet and write until the connection ends. Raises what ended it."""
        peer = self._peer
        try:
            window = await self._dial()
            peer.sender.connected(self, window, self._rtt_s, monotonic())
            peer.settle()
            writing = asyncio.ensure_future(self._write())
            try:
                both: set[asyncio.Future[Any]] = {writing, self._ended}
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)
            if self._ended.done():
                raise self._ended.result()
            writing.result()
        finally:
            self.wire.fail(ConnectionAbortedError("closed here"))

    async def _dial(self) -> int:
        """Connect and greet; the window in the peer's terms. Raises what is in the way."""
        peer = self._peer
        host, _, port = peer.route.address.rpartition(":")
        tls = None if peer.identity.tls is None else OneConnection(peer.identity.tls)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await peer.loop.create_connection(
                    lambda: self.wire,
                    host,
                    int(port),
                    ssl=tls,
                    server_hostname=None if tls is None else peer.route.hostname,
                )
                return await self._greeted
        except BROKEN as error:
            if tls is not None and tls.refused is not None:
                raise tls.refused from error
            raise

    # ------------------------------------------------------------ what arrives

    def _made(self) -> None:
        self.wire.write(self._handshake.mine)

    def _arrived(self, arrived: Arrived) -> None:
        frame = arrived.frame
        if not self._greeted.done():
            self._greet(frame)
        elif isinstance(frame, Goodbye):
            self.wire.fail(ConnectionResetError(frame.reason))
        else:
            self._peer.sender.handle(self, frame, monotonic())
            if isinstance(frame, Ack | Pong):
                self._peer.moved()
            else:
                self._peer.settle()

    def _greet(self, frame: Frame) -> None:
        handshake = self._handshake
        if isinstance(frame, Proof) and self._asked_at is not None:
            self._rtt_s = monotonic() - self._asked_at
        try:
            answers = handshake.handle(frame)
        except HandshakeRefused as error:
            self._greeted.set_exception(error)
            self.wire.close(error, *([error.told] if error.told else []))
            return
        self.wire.write(*answers)
        if any(isinstance(answer, Proof) for answer in answers):
            self._asked_at = monotonic()
        if handshake.terms is not None:
            self.wire.greeted()
            self._greeted.set_result(handshake.terms.window)

    def _lost(self, why: Exception | None) -> None:
        error = why or ConnectionResetError("the peer closed the connection")
        if not self._greeted.done():
            older = isinstance(error, WrongVersion)  # it will be so the next time too
            self._greeted.set_exception(HandshakeRefused(str(error)) if older else error)
        if not self._ended.done():
            self._ended.set_result(error)

    # ------------------------------------------------------------ what is written

    async def _write(self) -> None:
        sender = self._peer.sender
        while True:
            self._control += sender.control(self)
            if self._control:
                self.wire.write(*self._control)
                self._control.clear()
            data = sender.next_data(self, monotonic())
            if data is not None:
                self.written_bytes += len(data.body)
                self._peer.tell()  # there is room to code more
                await self._write_piece(data)
                continue
            self.wake.clear()
            self.idle = True
            await self.wake.wait()
            self.idle = False

    async def _write_piece(self, data: Data) -> None:
        """One frame, paced if need be; a frame once begun is always written to its end."""
        size = self._peer.chunk_bytes()
        if size is None:
            await self.wire.write_piece(data)
            return
        head, body = encode(data)
        await self.wire.write_raw(head)
        view = memoryview(body)
        for at in range(0, len(view), size):
            chunk = view[at : at + size]
            delay_s = self._peer.pacer.delay_s(len(chunk), monotonic())
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            await self.wire.write_raw(chunk)


def _clamp(value: float, low: int, high: int) -> int:
    return int(max(low, min(high, value)))
