"""The sending end of KV streams over TCP: warm connections per peer around `Sender`."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import monotonic

from transport.base import LinkEstimate, Offer, Slice, SliceKey, StreamId
from transport.codecs.table import CODECS, encode_slice
from transport.stream.frames import (
    Ack,
    Data,
    Done,
    Frame,
    FrameError,
    Offering,
)
from transport.stream.framing import encode
from transport.stream.pace import Sent
from transport.stream.sender import CANCELLED, RESUME_S, Phase, Sender, StreamBroken
from transport.tcp.channel import Channel, Peer

_MAX_PIECE_TOKENS = 4096  # each may have a position of its own in the frame's head
_THREADS = 2


class KVClient:
    """Sends streams to any number of peers; streams to one peer share its few connections."""

    def __init__(
        self, *, name: str, secret: str, connections: int = 2, resume_s: float = RESUME_S
    ) -> None:
        self._name = name
        self._secret = secret.encode()
        self.resume_s = resume_s
        self.pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="kv-encode")
        self._connections = connections
        self._peers: dict[str, Peer] = {}
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
            self._peers[address] = Peer(address, self._name, self._secret, self._connections)
        peer = self._peers[address]
        if link_rate_bytes_per_s is not None:
            peer.pace(link_rate_bytes_per_s)
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

    def __init__(self, client: KVClient, channel: Channel, offer: Offer, codec: str) -> None:
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

    def cancel(self, reason: str = CANCELLED) -> None:
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
            self._forget_sent()
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
        self._forget_sent()
        self.machine.disconnected(reason, monotonic())
        self.settle()

    def fail(self, reason: str) -> None:
        """No connection will do."""
        self.machine.fail(reason)
        self.settle()

    def _forget_sent(self) -> None:
        self._channel.peer.goodput.lost(len(self._sent))
        self._sent.clear()

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
