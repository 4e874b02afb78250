"""The sending end of KV streams over TCP: a handle for each stream."""

import asyncio
import ssl
from collections.abc import Callable, Iterator
from time import monotonic

from transport.base import LinkEstimate, Offer, Slice, StreamId
from transport.codecs.choose import check_policy
from transport.stream.frames import Offering, Terms
from transport.stream.outgoing import Phase
from transport.stream.sender import CANCELLED, RESUME_S, StreamBroken
from transport.tcp.coder import THREADS, Coder, check
from transport.tcp.peer import Identity, Peer, Route

CONNECTIONS = 4
_MAX_PIECE_TOKENS = 4096  # each may have a position of its own in the frame's head


class KVClient:
    """Sends streams to any number of peers; streams to one peer share its warm connections.

    `model` is the fingerprint's canonical text, and must be the receivers'; `layout` they are
    told.
    """

    def __init__(
        self,
        *,
        name: str,
        secret: str,
        model: str,
        layout: str,
        tls: ssl.SSLContext | None = None,
        connections: int = CONNECTIONS,
        resume_s: float = RESUME_S,
    ) -> None:
        terms = Terms(model, layout, 0)  # a sender takes no pieces, so it gives no credit
        self._identity = Identity(name=name, secret=secret.encode(), terms=terms, tls=tls)
        self._connections = connections
        self._resume_s = resume_s
        self._peers: dict[str, Peer] = {}
        self._closed = False
        self.coder = Coder()
        self._streams: dict[StreamId, KVStream] = {}

    async def open(
        self,
        route: Route,
        offer: Offer,
        policy: str,
        *,
        token_bytes: int,
        weight: float = 1.0,
        early: bool = False,
    ) -> "KVStream":
        """Offer a stream; wait until it is accepted, but not with `early`.

        `policy` names a codec, or a choice for each piece (`transport.codecs.choose`).
        `token_bytes` is the raw KV of one token over all layers and parts. With `early` pieces
        go out behind the offer: a round trip less, wasted if the receiver has them. Raises
        StreamBroken with the receiver's reason, and ValueError for an unknown policy, an offer
        that fits no frame, or a stream that is open already.
        """
        check_policy(policy)
        check(Offering(offer, 0))
        if self._closed:
            raise StreamBroken("the sender is closed")
        peer = self._peers.get(route.address)
        if peer is None:
            peer = Peer(self._identity, route, self._connections, self._resume_s, self._heard)
            self._peers[route.address] = peer
        stream = KVStream(
            self, peer, offer, policy, token_bytes=token_bytes, weight=weight, early=early
        )
        self._streams[offer.stream] = stream
        peer.settle()
        if not early:
            try:
                await stream.accepted()
            except asyncio.CancelledError:
                stream.cancel("the sender gave up")
                raise
        return stream

    def estimate(self, address: str) -> LinkEstimate | None:
        """What is known of the path to `address`; None before anything was sent there."""
        peer = self._peers.get(address)
        return None if peer is None else peer.estimate()

    async def close(self) -> None:
        """Break every stream, close every connection."""
        self._closed = True
        for peer in self._peers.values():
            await peer.close()
        self.coder.close()

    def _heard(self, stream: StreamId) -> None:
        handle = self._streams.get(stream)
        if handle is not None:
            handle.changed.set()
            if handle.ended:
                del self._streams[stream]


class KVStream:
    """One stream being sent. Every verb raises StreamBroken once the stream is broken."""

    def __init__(
        self,
        client: KVClient,
        peer: Peer,
        offer: Offer,
        policy: str,
        *,
        token_bytes: int,
        weight: float,
        early: bool,
    ) -> None:
        self.changed = asyncio.Event()
        self._client = client
        self._peer = peer
        self._policy = policy
        self._turn = asyncio.Lock()
        self._coding = asyncio.Semaphore(THREADS)
        self._coded: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._out = peer.sender.open(
            offer, monotonic(), token_bytes=token_bytes, weight=weight, early=early
        )

    @property
    def ended(self) -> bool:
        return self._out.ended

    @property
    def have(self) -> int:
        """Leading tokens the receiver had before anything was sent; those are not sent."""
        return self._out.have or 0

    @property
    def sent_bytes(self) -> tuple[int, int]:
        """Coded bytes written, and how many of them had been written before."""
        return self._out.sent_bytes, self._out.resent_bytes

    async def accepted(self) -> None:
        """Wait for the receiver's answer."""
        await self._until(lambda: self._out.have is not None or self._out.ended)

    async def send(self, piece: Slice) -> None:
        """Take the piece for coding and sending; waits while there is no room for more.

        `piece` must not change afterwards. What goes wrong in coding is raised by a later verb;
        ValueError for a piece that contradicts itself.
        """
        for part in _split(piece, self.have, self._peer.piece_bytes()):
            async with self._turn:
                await self._until(self._has_room)
                await self._coding.acquire()
                task = asyncio.create_task(self._code(part))
                self._coded.add(task)
                task.add_done_callback(self._was_coded)

    async def finish(self) -> None:
        """Return when the receiver has everything it was offered."""
        async with self._turn:
            while self._coded:
                await asyncio.wait(self._coded)
            self._raise_failed()
            self._peer.sender.finish(self._out, monotonic())
            self._peer.settle()
            await self._until(lambda: self._out.phase is Phase.DONE)

    def cancel(self, reason: str = CANCELLED) -> None:
        """Give the stream up; the receiver is told."""
        self._peer.sender.cancel(self._out, reason)
        self._peer.settle()

    # ------------------------------------------------------------ inside

    def _has_room(self) -> bool:
        return self._out.ended or self._peer.sender.has_room(self._out, monotonic())

    async def _code(self, piece: Slice) -> None:
        data = await self._client.coder.code(
            self._out.stream, piece, self._policy, self._peer.goodput_bytes_per_s
        )
        self._peer.sender.push(data)
        self._peer.moved()

    def _was_coded(self, task: asyncio.Task[None]) -> None:
        self._coding.release()
        self._coded.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()
        self.changed.set()

    def _raise_failed(self) -> None:
        if self._out.phase is Phase.BROKEN:
            raise StreamBroken(self._out.reason)
        if self._failure is not None:
            raise self._failure

    async def _until(self, good: Callable[[], bool]) -> None:
        while True:
            self._raise_failed()
            if good():
                return
            self.changed.clear()
            await self.changed.wait()


def _split(piece: Slice, have: int, limit_bytes: int) -> Iterator[Slice]:
    """The part of `piece` from token `have` on, in pieces of at most `limit_bytes` or a token."""
    stop = piece.key.stop
    step = max(1, min(_MAX_PIECE_TOKENS, limit_bytes // max(1, piece.data[:1].nbytes)))
    for start in range(max(piece.key.start, have), stop, step):
        yield piece.tokens(start, min(start + step, stop))
