"""Warm connections to one peer, shared by all the streams that go there."""

import asyncio
import logging
from collections import deque
from time import monotonic
from typing import Protocol

from transport.base import StreamId
from transport.stream.frames import (
    Accept,
    Ack,
    Cancel,
    Data,
    Done,
    Frame,
    Goodbye,
    Ping,
    Pong,
    Refuse,
)
from transport.stream.framing import encode
from transport.stream.pace import DeliveryRate, Pacer, RoundTrip
from transport.stream.sender import Sender, Turns, redial_s
from transport.tcp.wire import (
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
_PACE = 0.97  # of the line's rate, so that the queue stays here and not in the line
_CHUNK_S = 0.005
_MIN_CHUNK_BYTES = 4 << 10
_MAX_CHUNK_BYTES = 64 << 10
_FAREWELL_TURNS = 20

log = logging.getLogger(__name__)


class Stream(Protocol):
    """What a channel asks of the streams on it."""

    machine: Sender

    @property
    def stream(self) -> StreamId: ...
    def next_data(self) -> Data | None: ...
    def arrived(self, frame: Frame) -> None: ...
    def connected(self) -> None: ...
    def disconnected(self, reason: str) -> None: ...
    def fail(self, reason: str) -> None: ...
    def cancel(self, reason: str) -> None: ...


class Channel:
    """One slot for a connection to a peer: dials when it has streams, and again when it breaks."""

    def __init__(self, peer: "Peer", name: str, secret: bytes) -> None:
        self.peer = peer
        self.control: deque[Frame] = deque()
        self.wake = asyncio.Event()
        self.streams: dict[StreamId, Stream] = {}
        self._name = name
        self._secret = secret
        self._turns: Turns[Stream] = Turns()
        self._up = False
        self._task: asyncio.Task[None] | None = None

    def add(self, outgoing: Stream) -> None:
        self.streams[outgoing.stream] = outgoing
        self._turns.add(outgoing)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        if self._up:
            self.control.extend(outgoing.machine.connected())
            self.wake.set()

    def remove(self, outgoing: Stream) -> None:
        if self.streams.pop(outgoing.stream, None) is not None:
            self._turns.remove(outgoing)

    @property
    def has_data(self) -> bool:
        return self._turns.has_data

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
            await asyncio.sleep(redial_s(tries))
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
            _, rtt_s = await greet(wire, self._name, self._secret)
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
            data = self._turns.next_data(lambda outgoing: outgoing.next_data())
            if data is not None:
                await self._write_data(wire, data)
                continue
            self.wake.clear()
            try:
                async with asyncio.timeout(ping_at - now):
                    await self.wake.wait()
            except TimeoutError:
                continue

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


class Peer:
    """One address: its channels, and what is known of the path to it."""

    def __init__(self, address: str, name: str, secret: bytes, connections: int) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"address {address!r}: must be host:port")
        self.address = address
        self.pacer = Pacer()
        self.goodput = DeliveryRate()
        self.round_trip = RoundTrip()
        self._channels = [Channel(self, name, secret) for _ in range(connections)]

    def pace(self, rate_bytes_per_s: float) -> None:
        """Keep all writes together just below the rate of the line."""
        self.pacer.rate_bytes_per_s = _PACE * rate_bytes_per_s

    def channel_for(self, stream: StreamId) -> Channel:
        """The channel with the fewest streams. Raises ValueError when the stream is open."""
        if any(stream in channel.streams for channel in self._channels):
            raise ValueError(f"{stream} is being sent to {self.address} already")
        return min(self._channels, key=lambda channel: len(channel.streams))

    @property
    def has_data(self) -> bool:
        return any(channel.has_data for channel in self._channels)

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
