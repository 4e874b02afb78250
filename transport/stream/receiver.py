"""The receiving end of all KV streams of one server, without I/O."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from transport.base import OfferRefused, Sink, SliceKey, StreamId, StreamStats
from transport.stream.frames import (
    Accept,
    Ack,
    Again,
    Cancel,
    CorruptFrame,
    Data,
    Done,
    Finish,
    Frame,
    Offering,
    OverCredit,
    Ping,
    Pong,
    Refuse,
)
from transport.stream.incoming import Conn, Incoming, Pending

MAX_ENDED = 4096  # ended streams remembered, so that a late frame or offer is answered rightly
WINDOW_BYTES = 64 << 20  # credit of one sender: 10 Gbps over a round trip of 50 ms
RESUME_S = 15.0  # how long a stream without a connection waits to be offered again
ASK_AGAIN_S = 0.02  # how often a sink that answered "not yet" is asked again
_ACKS_PER_FRAME = 4096
_MAX_SKIPPED = 4096


class Verdict(StrEnum):
    """What to do with the body of a data frame, decided on its head alone."""

    TAKE = "take"
    SKIP = "skip"


@dataclass(slots=True)
class _Connection:
    """One connection."""

    session: bytes
    out: list[Frame] = field(default_factory=list)
    acks: dict[StreamId, list[SliceKey]] = field(default_factory=dict)


@dataclass(slots=True)
class _Held:
    """What a connection brought that is not yet stored; it may outlive the connection."""

    session: bytes
    nbytes: int = 0


class Receiver:
    """Frames in; out come calls to the sink and frames to `take` for each connection.

    A piece whose head was admitted must come back once: by `put`, or by `dropped` when its body
    was never read. A piece is acknowledged on the connection that brought it, so that an
    acknowledgement that is lost belongs to a piece whose sender asks.
    """

    def __init__(self, sink: Sink, *, window_bytes: int, resume_s: float) -> None:
        self._sink = sink
        self.window_bytes = window_bytes
        self._resume_s = resume_s
        self._streams: dict[StreamId, Incoming] = {}
        self._ended: dict[StreamId, str | None] = {}  # None: completed, else why it broke
        self._connections: dict[Conn, _Connection] = {}
        self._held: dict[Conn, _Held] = {}

    @property
    def streams(self) -> tuple[StreamId, ...]:
        return tuple(self._streams)

    @property
    def held_bytes(self) -> int:
        """Coded bytes that were admitted and are not yet stored."""
        return sum(held.nbytes for held in self._held.values())

    def have(self, stream: StreamId) -> int:
        """Leading tokens that were here before; of a piece, those are not to be put again."""
        incoming = self._streams.get(stream)
        return incoming.first if incoming is not None else 0

    # ------------------------------------------------------------ connections

    def connected(self, conn: Conn, session: bytes) -> None:
        """A sender that has proved itself is there."""
        self._connections[conn] = _Connection(session)

    def disconnected(self, conn: Conn, now: float) -> None:
        """`conn` broke; streams whose sender has no other wait for a new offer."""
        connection = self._connections.pop(conn, None)
        if connection is None:
            return
        if conn in self._held and not self._held[conn].nbytes:
            del self._held[conn]
        alone = not self._of(connection.session)
        for incoming in list(self._streams.values()):
            if incoming.session != connection.session:
                continue
            if incoming.asked is not None and incoming.asked[0] == conn:
                incoming.asked = None
            if alone:
                incoming.give_up_at = now + self._resume_s
            self._answer_if_settled(incoming)

    def serves(self, conn: Conn) -> bool:
        """Whether some stream may come on `conn` now."""
        connection = self._connections.get(conn)
        return connection is not None and any(
            s.session == connection.session for s in self._streams.values()
        )

    def ready(self) -> list[Conn]:
        """Connections for which `take` has something."""
        return [
            conn
            for conn, connection in self._connections.items()
            if connection.out or connection.acks
        ]

    def take(self, conn: Conn) -> list[Frame]:
        """Everything to write on `conn` now; acknowledgements are batched by waiting here."""
        connection = self._connections.get(conn)
        if connection is None:
            return []
        frames: list[Frame] = []
        for stream, keys in connection.acks.items():
            for at in range(0, len(keys), _ACKS_PER_FRAME):
                frames.append(Ack(stream, tuple(keys[at : at + _ACKS_PER_FRAME])))
        frames += connection.out
        connection.acks, connection.out = {}, []
        return frames

    # ------------------------------------------------------------ what arrives

    def handle(self, conn: Conn, frame: Frame, now: float) -> None:
        """Take one frame without a body; kinds that are not a receiver's are ignored."""
        row = _ROWS.get(type(frame))
        if row is not None and conn in self._connections:
            row(self, conn, frame, now)

    def admit(self, conn: Conn, data: Data, body_bytes: int, now: float) -> Verdict:
        """Decide on a piece by its head, before its body is read.

        Raises OverCredit when the sender has gone far beyond its credit. Twice is borne: what it
        cancelled may still be on its way.
        """
        connection = self._connections.get(conn)
        if connection is None:
            return Verdict.SKIP
        incoming = self._streams.get(data.stream)
        if incoming is None:
            connection.out.append(self._last_word(data.stream))
            return Verdict.SKIP
        key = data.key
        if incoming.session != connection.session:
            return Verdict.SKIP  # from before a restart of the sender
        if key in incoming.pending:
            incoming.pending[key].repeated(conn)
            return Verdict.SKIP
        wrong = incoming.foreign(key)
        if wrong is None and len(incoming.skipped) > _MAX_SKIPPED:
            wrong = "too much was sent before the offer was accepted"
        if wrong is not None:
            self._break(data.stream, wrong)
            return Verdict.SKIP
        if incoming.have is None:
            incoming.skipped[key] = conn
            return Verdict.SKIP
        if incoming.has(key):
            connection.acks.setdefault(data.stream, []).append(key)
            return Verdict.SKIP
        self._hold(conn, connection.session, body_bytes)
        if incoming.first_at is None:
            incoming.first_at = now
        incoming.pending[key] = Pending(data, [conn])
        return Verdict.TAKE

    def put(
        self,
        conn: Conn,
        data: Data,
        body_bytes: int,
        error: BaseException | None,
        now: float,
    ) -> None:
        """Checking, decoding and storing an admitted piece ended, with `error` or well.

        A damaged piece is asked for again; no other error would go away by that.
        """
        self._free(conn, body_bytes)
        incoming, brought = self._unpend(data)
        if incoming is None:
            return
        if error is None:
            incoming.store(data, body_bytes)
            for connection in self._connections_of(brought):
                connection.acks.setdefault(data.stream, []).append(data.key)
            self._answer_if_settled(incoming)
            self._complete_if_whole(incoming, now)
        elif isinstance(error, CorruptFrame):
            self._say_again(data, brought)
            self._answer_if_settled(incoming)
        else:
            self._break(data.stream, f"{type(error).__name__}: {error}")

    def dropped(self, conn: Conn, data: Data, body_bytes: int) -> None:
        """The piece's body did not arrive; it will come again."""
        self._free(conn, body_bytes)
        incoming, brought = self._unpend(data)
        if incoming is not None:
            self._say_again(data, brought[1:])
            self._answer_if_settled(incoming)

    def cancel(self, stream: StreamId, reason: str) -> None:
        """This side gives the stream up; the sink is not told, its owner asked for it."""
        incoming = self._streams.pop(stream, None)
        if stream not in self._ended:
            self._remember(stream, reason)
        if incoming is not None:
            self._tell(incoming, Cancel(stream, reason))

    def close(self, reason: str) -> None:
        """Break every stream."""
        for stream in self.streams:
            self._break(stream, reason)

    # ------------------------------------------------------------ time

    def next_deadline(self) -> float | None:
        """When to call `expire`; None: nothing to wait for."""
        times = [s.give_up_at for s in self._streams.values() if s.give_up_at is not None]
        return min(times, default=None)

    def asking(self) -> bool:
        """Whether some sink answered "not yet": call `ask_again` every ASK_AGAIN_S."""
        return any(s.have is None for s in self._streams.values())

    def ask_again(self, now: float) -> None:
        for incoming in [s for s in self._streams.values() if s.have is None]:
            self._ask(incoming, now)

    def expire(self, now: float) -> None:
        """Break every stream whose deadline has passed."""
        for stream, incoming in list(self._streams.items()):
            if incoming.give_up_at is not None and incoming.give_up_at <= now:
                if incoming.have is None:
                    self._end_unasked(incoming, "the receiving leg has not started")
                else:
                    self._break(stream, f"not resumed within {self._resume_s:g} s")

    # ------------------------------------------------------------ rows

    def _offered(self, conn: Conn, frame: Offering, now: float) -> None:
        offer, connection = frame.offer, self._connections[conn]
        stream = offer.stream
        if stream in self._ended:
            connection.out.append(self._last_word(stream))
            return
        incoming = self._streams.get(stream)
        if incoming is None:
            incoming = Incoming(
                offer=offer, session=connection.session, give_up_at=now + self._resume_s
            )
            self._streams[stream] = incoming
        elif incoming.offer != offer:
            connection.out.append(Refuse(stream, "offered before with other terms"))
            return
        elif incoming.session == connection.session and frame.attempt <= incoming.attempt:
            return  # the same attempt on another connection
        incoming.session, incoming.attempt = connection.session, frame.attempt
        incoming.asked = conn, frame.attempt
        if incoming.have is None:
            self._ask(incoming, now)
        else:
            incoming.give_up_at = None
            self._answer_if_settled(incoming)

    def _finished(self, conn: Conn, frame: Finish, now: float) -> None:
        stream, connection = frame.stream, self._connections[conn]
        incoming = self._streams.get(stream)
        if incoming is not None:
            self._break(stream, f"finished with {incoming.missing} slice tokens missing")
        else:
            connection.out.append(self._last_word(stream))

    def _cancelled(self, conn: Conn, frame: Cancel | Refuse, now: float) -> None:
        incoming = self._streams.get(frame.stream)
        if incoming is not None and incoming.session == self._connections[conn].session:
            self._break(frame.stream, frame.reason, tell=False)

    def _pinged(self, conn: Conn, frame: Ping, now: float) -> None:
        self._connections[conn].out.append(Pong(frame.stamp))

    # ------------------------------------------------------------ small steps

    def _ask(self, incoming: Incoming, now: float) -> None:
        offer = incoming.offer
        try:
            have = self._sink.offered(offer)
        except OfferRefused as error:
            self._end_unasked(incoming, str(error))
            return
        if have is None:
            return
        incoming.have = have
        incoming.give_up_at = None if self._of(incoming.session) else now + self._resume_s
        incoming.missing = max(0, offer.stop - incoming.first) * offer.slices_per_token
        self._answer_if_settled(incoming)
        self._complete_if_whole(incoming, now)

    def _answer_if_settled(self, incoming: Incoming) -> None:
        """Answer an offer once nothing that a broken connection brought is still being stored."""
        if incoming.asked is None or incoming.have is None:
            return
        conn, attempt = incoming.asked
        if any(held.brought[0] not in self._connections for held in incoming.pending.values()):
            return
        incoming.asked = None
        stream = incoming.offer.stream
        accept = Accept(stream, attempt, incoming.have, incoming.ranges)
        self._connections[conn].out.append(accept)
        skipped: dict[Conn, list[SliceKey]] = {}
        for key, brought in incoming.skipped.items():
            skipped.setdefault(brought, []).append(key)
        incoming.skipped.clear()
        for brought, keys in skipped.items():
            for connection in self._connections_of([brought]):
                connection.out.append(Again(stream, tuple(keys)))

    def _complete_if_whole(self, incoming: Incoming, now: float) -> None:
        if incoming.missing > 0:
            return
        stream = incoming.offer.stream
        del self._streams[stream]
        self._remember(stream, None)
        self._tell(incoming, Done(stream))
        started = now if incoming.first_at is None else incoming.first_at
        stats = StreamStats(
            bytes_raw=incoming.bytes_raw,
            bytes_wire=incoming.bytes_wire,
            transfer_s=now - started,
        )
        self._sink.completed(stream, stats)

    def _end_unasked(self, incoming: Incoming, reason: str) -> None:
        """Refuse an offer that the sink never took: it is not told, and may be offered again."""
        stream = incoming.offer.stream
        del self._streams[stream]
        if incoming.asked is not None:  # else its sender asks once more
            self._connections[incoming.asked[0]].out.append(Refuse(stream, reason))

    def _break(self, stream: StreamId, reason: str, *, tell: bool = True) -> None:
        incoming = self._streams.pop(stream)
        self._remember(stream, reason)
        if tell:
            self._tell(incoming, Cancel(stream, reason))
        if incoming.have is not None:
            self._sink.broken(stream, reason)

    def _of(self, session: bytes) -> list[_Connection]:
        return [c for c in self._connections.values() if c.session == session]

    def _tell(self, incoming: Incoming, frame: Frame) -> None:
        """On every connection of its sender's: some may be dead and not yet known to be."""
        for connection in self._of(incoming.session):
            connection.out.append(frame)

    def _say_again(self, data: Data, brought: list[Conn]) -> None:
        for connection in self._connections_of(brought):
            connection.out.append(Again(data.stream, (data.key,)))

    def _connections_of(self, conns: list[Conn]) -> list[_Connection]:
        return [self._connections[conn] for conn in conns if conn in self._connections]

    def _hold(self, conn: Conn, session: bytes, nbytes: int) -> None:
        held = [h for h in self._held.values() if h.session == session]
        before = sum(h.nbytes for h in held)
        if before and before + nbytes > 2 * self.window_bytes:  # one piece is always taken
            total = before + nbytes
            raise OverCredit(f"{total} bytes were sent on a credit of {self.window_bytes}")
        self._held.setdefault(conn, _Held(session)).nbytes += nbytes

    def _free(self, conn: Conn, nbytes: int) -> None:
        held = self._held.get(conn)
        if held is None:  # what was left of it had no bytes
            return
        held.nbytes -= nbytes
        if held.nbytes <= 0 and conn not in self._connections:
            del self._held[conn]

    def _unpend(self, data: Data) -> tuple[Incoming | None, list[Conn]]:
        """The stream that waits for this piece, and the connections that brought it."""
        incoming = self._streams.get(data.stream)
        if incoming is not None:
            held = incoming.pending.get(data.key)
            if held is not None and held.data is data:
                del incoming.pending[data.key]
                return incoming, held.brought
        return None, []

    def _last_word(self, stream: StreamId) -> Done | Refuse:
        """What to say to the sender of a stream that is not open here."""
        reason = self._ended.get(stream, "the receiver does not know this stream")
        return Done(stream) if reason is None else Refuse(stream, reason)

    def _remember(self, stream: StreamId, reason: str | None) -> None:
        self._ended[stream] = reason
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]


_ROWS: dict[type, Callable[..., None]] = {
    Offering: Receiver._offered,
    Finish: Receiver._finished,
    Cancel: Receiver._cancelled,
    Refuse: Receiver._cancelled,
    Ping: Receiver._pinged,
}
