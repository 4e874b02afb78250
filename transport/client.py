"""The sending end of KV streams over TCP: warm connections per peer around `Sender`."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import monotonic

from transport.base import LinkEstimate, Offer, Slice, SliceKey, StreamId
from transport.codecs import CODECS, encode_slice
from transport.frames import (
    Accept,
    Ack,
    Cancel,
    Data,
    Done,
    Frame,
    FrameError,
    Goodbye,
    Offering,
    Ping,
    Pong,
    Refuse,
)
from transport.framing import encode
from transport.pace import DeliveryRate, Pacer, RoundTrip, Sent
from transport.sender import Phase, Sender, StreamBroken
from transport.wire import (
    BROKEN,
    HANDSHAKE_S,
    PING_EVERY_S,
    READ_BUFFER_BYTES,
    HandshakeRefused,
    Wire,
    greet,
    until_first_ends,
)

_PIECE_S = 0.1  # one piece should not hold a paced line for longer
_MIN_PIECE_BYTES = 64 << 10
_MAX_PIECE_BYTES = 1 << 20
_MAX_PIECE_TOKENS = 4096  # each may have a position of its own in the frame's head
_PACE = 0.97  # of the line's rate, so that the queue stays here and not in the line
_CHUNK_S = 0.005
_MIN_CHUNK_BYTES = 4 << 10
_MAX_CHUNK_BYTES = 64 << 10
_BACKOFF_S = (0.05, 0.1, 0.2, 0.5, 1.0)
_THREADS = 2
_FAREWELL_TURNS = 20

log = logging.getLogger(__name__)


class KVClient:
    """Sends streams to any number of peers; streams to one peer share its few connections."""

    def __init__(
        self, *, name: str, secret: str, connections: int = 2, resume_s: float = 10.0
    ) -> None:
        self.name = name
        self.secret = secret.encode()
        self.resume_s = resume_s
        self.pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="kv-encode")
        self._connections = connections
        self._peers: dict[str, _Peer] = {}
        self._closed = False

    async def open(
        self,
        address: str,
        offer: Offer,
        codec: str,
        *,
        link_rate_bytes_per_s: float | None = None,
    ) -> "Outgoing":
        """Offer a stream to the server at "host:port" and wait until it is accepted.

        With `link_rate_bytes_per_s` all streams to `address` together stay just below it.
        Raises StreamBroken with the receiver's reason, and ValueError for an unknown codec, an
        offer that fits no frame, or a stream that is open already.
        """
        if codec not in CODECS:
            raise ValueError(f"codec {codec!r}: known are {', '.join(CODECS)}")
        _check(Offering(offer))
        if self._closed:
            raise StreamBroken("the sender is closed")
        if address not in self._peers:
            self._peers[address] = _Peer(self, address, self._connections)
        peer = self._peers[address]
        if link_rate_bytes_per_s is not None:
            peer.pacer.rate_bytes_per_s = _PACE * link_rate_bytes_per_s
        outgoing = Outgoing(self, peer.channel_for(offer.stream), offer, codec)
        try:
            await outgoing.accepted()
        except asyncio.CancelledError:
            outgoing.cancel("the sender gave up")
            raise
        return outgoing

    def estimate(self, address: str) -> LinkEstimate:
        """What is known of the path to `address`; all None before anything was sent there."""
        peer = self._peers.get(address)
        if peer is None:
            return LinkEstimate(goodput_bytes_per_s=None, rtt_s=None, queue_bytes=0)
        return LinkEstimate(
            goodput_bytes_per_s=peer.goodput.bytes_per_s,
            rtt_s=peer.round_trip.rtt_s,
            queue_bytes=peer.queue_bytes,
        )

    async def close(self) -> None:
        """Break every stream, close every connection."""
        self._closed = True
        for peer in self._peers.values():
            await peer.close()
        self.pool.shutdown(wait=False, cancel_futures=True)


class Outgoing:
    """One stream being sent. Every verb raises StreamBroken once the stream is broken."""

    def __init__(self, client: KVClient, channel: "_Channel", offer: Offer, codec: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._channel = channel
        self._codec = codec
        self._changed = asyncio.Event()
        self._turn = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._sent: dict[SliceKey, tuple[Sent, Data]] = {}
        self.machine = Sender(offer, monotonic(), resume_s=client.resume_s)
        channel.add(self)
        self.settle()

    @property
    def stream(self) -> StreamId:
        return self.machine.offer.stream

    @property
    def have(self) -> int:
        """Leading tokens the receiver had before anything was sent; those are not sent."""
        return self.machine.have or 0

    async def accepted(self) -> None:
        await self._until(lambda: self.machine.have is not None or self.machine.ended)

    async def send(self, piece: Slice) -> None:
        """Code the piece and queue it; waits while the receiver's window is full.

        Raises ValueError for a piece that contradicts itself.
        """
        for part in _split(piece, self.have, self._channel.peer.piece_bytes()):
            async with self._turn:
                await self._until(lambda: self.machine.has_room or self.machine.ended)
                data = await self._loop.run_in_executor(
                    self._client.pool, _coded, self.stream, part, self._codec
                )
                self.machine.push(data)
                self._channel.wake.set()

    async def finish(self) -> None:
        """Return when the receiver has everything it was offered."""
        async with self._turn:
            self.post(self.machine.finish(monotonic()))
            await self._until(lambda: self.machine.phase is Phase.DONE)

    def cancel(self, reason: str = "cancelled by the sender") -> None:
        """Give the stream up; the receiver is told."""
        self.post(self.machine.cancel(reason))

    def post(self, frames: list[Frame]) -> None:
        """Frames the machine gave out, before any data; then see what has changed."""
        self._channel.control.extend(frames)
        self._channel.wake.set()
        self.settle()

    def settle(self) -> None:
        """After each event: wake waiters, set the timer, leave the channel when ended."""
        self._changed.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.machine.ended:
            self._channel.remove(self)
            return
        deadline = self.machine.next_deadline()
        if deadline is not None:
            self._timer = self._loop.call_later(max(0.0, deadline - monotonic()), self._on_timer)

    def next_data(self) -> Data | None:
        """The piece to write next."""
        now = monotonic()
        data = self.machine.next_data(now)
        if data is not None:
            peer = self._channel.peer
            self._sent[data.key] = peer.goodput.sent(now, starved=not peer.has_data), data
        return data

    def arrived(self, frame: Frame) -> None:
        """A frame of this stream, from the receiver."""
        now = monotonic()
        if isinstance(frame, Ack | Done):
            for key in frame.keys if isinstance(frame, Ack) else tuple(self._sent):
                if key in self._sent:
                    sent, data = self._sent.pop(key)
                    self._channel.peer.goodput.acked(sent, len(data.body), now)
        self.post(self.machine.handle(frame, now))

    def connected(self) -> None:
        """The channel has a connection."""
        self.post(self.machine.connected())

    def disconnected(self, reason: str) -> None:
        """The channel lost its connection."""
        self._sent.clear()
        self.machine.disconnected(reason, monotonic())
        self.settle()

    def fail(self, reason: str) -> None:
        """No connection will do."""
        self.machine.fail(reason)
        self.settle()

    def _on_timer(self) -> None:
        self.post(self.machine.expire(monotonic()))

    async def _until(self, good: Callable[[], bool]) -> None:
        while True:
            if self.machine.phase is Phase.BROKEN:
                raise StreamBroken(self.machine.reason)
            if good():
                return
            self._changed.clear()
            await self._changed.wait()


class _Channel:
    """One slot for a connection to a peer: dials when it has streams, and again when it breaks."""

    def __init__(self, peer: "_Peer", client: KVClient) -> None:
        self.peer = peer
        self.control: deque[Frame] = deque()
        self.wake = asyncio.Event()
        self.streams: dict[StreamId, Outgoing] = {}
        self._client = client
        self._turns: deque[Outgoing] = deque()  # round robin, one piece each
        self._up = False
        self._task: asyncio.Task[None] | None = None

    def add(self, outgoing: Outgoing) -> None:
        self.streams[outgoing.stream] = outgoing
        self._turns.append(outgoing)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        if self._up:
            self.control.extend(outgoing.machine.connected())
            self.wake.set()

    def remove(self, outgoing: Outgoing) -> None:
        if self.streams.pop(outgoing.stream, None) is not None:
            self._turns.remove(outgoing)

    def has_data(self) -> bool:
        return any(stream.machine.has_data for stream in self._turns)

    async def close(self) -> None:
        for outgoing in list(self.streams.values()):
            outgoing.cancel("the sender is closed")
        for _ in range(_FAREWELL_TURNS):  # let the peer hear of it, if it listens
            if not self._up or not self.control:
                break
            await asyncio.sleep(0.01)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        tries = 0
        while True:
            try:
                why = await self._connection()
                tries = 0
            except HandshakeRefused as error:
                self._fail_all(f"{self.peer.address}: {error}")
                return
            except BROKEN as error:
                why = f"{type(error).__name__}: {error}"
            except Exception as error:  # a mistake here must not leave anyone waiting
                log.exception("the KV channel to %s failed", self.peer.address)
                self._fail_all(f"{type(error).__name__}: {error}")
                return
            for outgoing in list(self.streams.values()):
                outgoing.disconnected(f"{self.peer.address}: {why}")
            if not self.streams:
                return
            await asyncio.sleep(_BACKOFF_S[min(tries, len(_BACKOFF_S) - 1)])
            tries += 1

    def _fail_all(self, reason: str) -> None:
        for outgoing in list(self.streams.values()):
            outgoing.fail(reason)

    async def _connection(self) -> str:
        """Dial, greet and serve one connection; returns why it ended."""
        host, _, port = self.peer.address.rpartition(":")
        async with asyncio.timeout(HANDSHAKE_S):
            reader, writer = await asyncio.open_connection(host, int(port), limit=READ_BUFFER_BYTES)
        wire = Wire(reader, writer)
        try:
            _, rtt_s = await greet(wire, self._client.name, self._client.secret)
            self.peer.round_trip.add(rtt_s)
            self.control.clear()
            self._up = True
            for outgoing in list(self.streams.values()):
                outgoing.connected()
            why = await until_first_ends(self._read(wire), self._write(wire))
            if why is not None and not isinstance(why, BROKEN):
                raise why
            return str(why) or type(why).__name__
        finally:
            self._up = False
            wire.abort()

    async def _read(self, wire: Wire) -> None:
        while True:
            preamble, frame = await wire.read_head()
            match frame:
                case Accept() | Refuse() | Ack() | Done() | Cancel():
                    outgoing = self.streams.get(frame.stream)
                    if outgoing is not None:
                        outgoing.arrived(frame)
                case Pong():
                    self.peer.round_trip.add(monotonic() - frame.stamp / 1e9)
                case Goodbye():
                    raise ConnectionResetError(frame.reason)
                case _:
                    await wire.skip_body(preamble)

    async def _write(self, wire: Wire) -> None:
        ping_at = monotonic()
        while True:
            now = monotonic()
            if now >= ping_at:
                self.control.append(Ping(int(now * 1e9)))
                ping_at = now + PING_EVERY_S
            if self.control:
                await wire.write(self.control.popleft())
                continue
            data = self._next_data()
            if data is not None:
                await self._write_data(wire, data)
                continue
            self.wake.clear()
            try:
                async with asyncio.timeout(ping_at - now):
                    await self.wake.wait()
            except TimeoutError:
                continue

    def _next_data(self) -> Data | None:
        for _ in range(len(self._turns)):
            outgoing = self._turns[0]
            self._turns.rotate(-1)
            data = outgoing.next_data()
            if data is not None:
                return data
        return None

    async def _write_data(self, wire: Wire, data: Data) -> None:
        """One frame in paced chunks; a frame once begun is always written to its end."""
        head, body = encode(data)
        await wire.write_raw(head)
        view = memoryview(body)
        size = self.peer.chunk_bytes()
        for at in range(0, len(view), size):
            chunk = view[at : at + size]
            delay_s = self.peer.pacer.delay_s(len(chunk), monotonic())
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            await wire.write_raw(chunk)


class _Peer:
    """One address: its channels, and what is known of the path to it."""

    def __init__(self, client: KVClient, address: str, connections: int) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"address {address!r}: must be host:port")
        self.address = address
        self.pacer = Pacer()
        self.goodput = DeliveryRate()
        self.round_trip = RoundTrip()
        self._channels = [_Channel(self, client) for _ in range(connections)]

    def channel_for(self, stream: StreamId) -> _Channel:
        """The channel with the fewest streams. Raises ValueError when the stream is open."""
        if any(stream in channel.streams for channel in self._channels):
            raise ValueError(f"{stream} is being sent to {self.address} already")
        return min(self._channels, key=lambda channel: len(channel.streams))

    @property
    def has_data(self) -> bool:
        return any(channel.has_data() for channel in self._channels)

    @property
    def queue_bytes(self) -> int:
        return sum(
            outgoing.machine.unacked_bytes
            for channel in self._channels
            for outgoing in channel.streams.values()
        )

    def piece_bytes(self) -> int:
        """How large a piece may be before coding."""
        rate = self.pacer.rate_bytes_per_s
        if rate is None:
            return _MAX_PIECE_BYTES
        return _clamp(rate * _PIECE_S, _MIN_PIECE_BYTES, _MAX_PIECE_BYTES)

    def chunk_bytes(self) -> int:
        """How much is written between two looks at the pacer."""
        rate = self.pacer.rate_bytes_per_s
        if rate is None:
            return _MAX_CHUNK_BYTES
        return _clamp(rate * _CHUNK_S, _MIN_CHUNK_BYTES, _MAX_CHUNK_BYTES)

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()


def _clamp(value: float, low: int, high: int) -> int:
    return int(max(low, min(high, value)))


def _split(piece: Slice, have: int, limit_bytes: int) -> Iterator[Slice]:
    """The part of `piece` from token `have` on, in pieces of at most `limit_bytes` or a token."""
    layer, part, first, stop = piece.key
    step = max(1, min(_MAX_PIECE_TOKENS, limit_bytes // max(1, piece.data[:1].nbytes)))
    for start in range(max(first, have), stop, step):
        end = min(start + step, stop)
        here = slice(start - first, end - first)
        yield Slice(
            key=SliceKey(layer, part, start, end),
            positions=piece.positions[here],
            data=piece.data[here],
        )


def _coded(stream: StreamId, piece: Slice, codec: str) -> Data:
    data = encode_slice(stream, piece, codec)
    _check(replace(data, body=b""))
    return data


def _check(frame: Frame) -> None:
    """A frame that cannot be written is its caller's mistake, and no connection should break."""
    try:
        encode(frame)
    except FrameError as error:
        raise ValueError(str(error)) from error
