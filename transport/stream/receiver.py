"""The receiving half of all KV streams of one server, without I/O."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import StrEnum

from transport.base import Offer, OfferRefused, Sink, SliceKey, StreamId, StreamStats
from transport.stream.frames import (
    Accept,
    Ack,
    Cancel,
    CorruptFrame,
    Data,
    Done,
    Finish,
    Frame,
    Offering,
    Range,
    Refuse,
)
from transport.stream.ranges import Ranges

MAX_ENDED = 4096  # ended streams remembered, so that a late frame or offer is answered rightly
WINDOW_BYTES = 16 << 20  # what one stream may have coded and unacknowledged
RESUME_S = 15.0  # how long a stream without a connection waits to be offered again
ASK_AGAIN_S = 0.02  # how often a sink that answered "not yet" is asked again
_ACKS_PER_FRAME = 4096

Conn = Hashable


class Verdict(StrEnum):
    """What to do with the body of a data frame, decided on its head alone."""

    TAKE = "take"
    SKIP = "skip"


@dataclass(slots=True)
class _Incoming:
    offer: Offer
    conn: Conn | None
    have: int | None = None  # None: the sink has not answered yet
    missing: int = 0  # tokens summed over layers and parts
    received: dict[tuple[int, str], Ranges] = field(default_factory=dict)
    pending: dict[SliceKey, Data] = field(default_factory=dict)  # read, not yet stored
    acks: list[SliceKey] = field(default_factory=list)
    answer_due: bool = False
    give_up_at: float | None = None
    bytes_raw: int = 0
    bytes_wire: int = 0
    first_at: float | None = None

    @property
    def ranges(self) -> tuple[Range, ...]:
        return tuple(
            (layer, part, start, stop)
            for (layer, part), ranges in self.received.items()
            for start, stop in ranges
        )


class Receiver:
    """Frames in; out come calls to the sink and frames to `take` for each connection.

    A piece whose head was admitted must come back once, by `put`, or by `dropped` when its body
    was never read.
    """

    def __init__(self, sink: Sink, *, window_bytes: int, resume_s: float) -> None:
        self._sink = sink
        self._window = window_bytes
        self._resume_s = resume_s
        self._streams: dict[StreamId, _Incoming] = {}
        self._ended: dict[StreamId, str | None] = {}  # None: completed, else why it broke
        self._out: dict[Conn, list[Frame]] = {}

    @property
    def streams(self) -> tuple[StreamId, ...]:
        return tuple(self._streams)

    def ready(self) -> list[Conn]:
        """Connections for which `take` has something."""
        acks = {s.conn: None for s in self._streams.values() if s.acks and s.conn is not None}
        return list(acks | dict.fromkeys(self._out))

    def serves(self, conn: Conn) -> bool:
        """Whether some stream comes on `conn` now."""
        return any(s.conn == conn for s in self._streams.values())

    def take(self, conn: Conn) -> list[Frame]:
        """Everything to write on `conn` now; acknowledgements are batched by waiting here."""
        frames: list[Frame] = []
        for stream, incoming in self._streams.items():
            if incoming.conn == conn and incoming.acks:
                keys, incoming.acks = incoming.acks, []
                for at in range(0, len(keys), _ACKS_PER_FRAME):
                    frames.append(Ack(stream, tuple(keys[at : at + _ACKS_PER_FRAME])))
        return frames + self._out.pop(conn, [])

    def handle(self, conn: Conn, frame: Frame, now: float) -> None:
        """Take one frame without a body; kinds that are not a receiver's are ignored."""
        row = _ROWS.get(type(frame))
        if row is not None:
            row(self, conn, frame, now)

    def admit(self, conn: Conn, data: Data, now: float) -> Verdict:
        """Decide on a piece by its head, before its body is read."""
        incoming = self._streams.get(data.stream)
        if incoming is None:
            if self._ended.get(data.stream, "") is not None:
                self._send(conn, Refuse(data.stream, self._why_unknown(data.stream)))
            return Verdict.SKIP
        key = data.key
        if incoming.conn != conn or incoming.have is None or key in incoming.pending:
            return Verdict.SKIP  # from before a reconnect, or a repeat
        wrong = self._foreign(incoming, data)
        if wrong is not None:
            self._break(data.stream, wrong)
            return Verdict.SKIP
        ranges = incoming.received.get((key.layer, key.part))
        if ranges is not None and ranges.covers(key.start, key.stop):
            incoming.acks.append(key)
            return Verdict.SKIP
        if incoming.first_at is None:
            incoming.first_at = now
        incoming.pending[key] = data
        return Verdict.TAKE

    def put(self, data: Data, body_bytes: int, error: BaseException | None, now: float) -> bool:
        """Decoding and storing an admitted piece ended, with `error` or well.

        False: the connection it came on is of no more use; the sender comes back and sends what
        is missing.
        """
        if isinstance(error, CorruptFrame):
            self.dropped(data)
            return False
        if error is None:
            self._stored(data, body_bytes, now)
        else:
            self._failed(data, f"{type(error).__name__}: {error}")
        return True

    def dropped(self, data: Data) -> None:
        """The piece's body did not arrive, or not intact; it will come again."""
        incoming = self._unpend(data)
        if incoming is not None:
            self._answer_if_settled(incoming)

    def disconnected(self, conn: Conn, now: float) -> None:
        """`conn` broke; its streams wait for a new offer."""
        self._out.pop(conn, None)
        for incoming in self._streams.values():
            if incoming.conn == conn:
                incoming.conn = None
                incoming.give_up_at = now + self._resume_s

    def cancel(self, stream: StreamId, reason: str) -> None:
        """This side gives the stream up; the sink is not told, its owner asked for it."""
        incoming = self._streams.pop(stream, None)
        if stream not in self._ended:
            self._remember(stream, reason)
        if incoming is not None and incoming.conn is not None:
            self._send(incoming.conn, Cancel(stream, reason))

    def close(self, reason: str) -> None:
        """Break every stream."""
        for stream in self.streams:
            self._break(stream, reason)

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

    # ---------------------------------------------------------- what arrives

    def _offered(self, conn: Conn, frame: Offering, now: float) -> None:
        offer = frame.offer
        stream = offer.stream
        if stream in self._ended:
            reason = self._ended[stream]
            self._send(conn, Done(stream) if reason is None else Refuse(stream, reason))
            return
        incoming = self._streams.get(stream)
        if incoming is None:
            incoming = _Incoming(offer, conn, give_up_at=now + self._resume_s)
            self._streams[stream] = incoming
            self._ask(incoming, now)
            return
        if incoming.offer != offer:
            self._send(conn, Refuse(stream, "offered before with other terms"))
            return
        incoming.conn = conn
        if incoming.have is not None:
            incoming.give_up_at = None
            incoming.answer_due = True
            self._answer_if_settled(incoming)

    def _ask(self, incoming: _Incoming, now: float) -> None:
        offer = incoming.offer
        try:
            have = self._sink.offered(offer)
        except OfferRefused as error:
            self._end_unasked(incoming, str(error))
            return
        if have is None:
            return
        incoming.have = have
        incoming.give_up_at = None if incoming.conn is not None else now + self._resume_s
        incoming.missing = max(0, offer.stop - max(offer.start, have)) * offer.slices_per_token
        incoming.answer_due = True
        self._answer_if_settled(incoming)
        self._complete_if_whole(incoming, now)

    def _finished(self, conn: Conn, frame: Finish, now: float) -> None:
        stream = frame.stream
        incoming = self._streams.get(stream)
        if incoming is not None:
            self._break(stream, f"finished with {incoming.missing} slice tokens missing")
        elif self._ended.get(stream, "") is None:
            self._send(conn, Done(stream))
        else:
            self._send(conn, Refuse(stream, self._why_unknown(stream)))

    def _cancelled(self, conn: Conn, frame: Cancel | Refuse, now: float) -> None:
        incoming = self._streams.get(frame.stream)
        if incoming is not None and incoming.conn == conn:
            self._break(frame.stream, frame.reason, tell=False)

    # ---------------------------------------------------------- small steps

    def _stored(self, data: Data, body_bytes: int, now: float) -> None:
        incoming = self._unpend(data)
        if incoming is None:
            return
        key = data.key
        ranges = incoming.received.setdefault((key.layer, key.part), Ranges())
        incoming.missing -= ranges.add(key.start, key.stop)
        incoming.bytes_raw += data.raw_bytes
        incoming.bytes_wire += body_bytes
        incoming.acks.append(key)
        self._answer_if_settled(incoming)
        self._complete_if_whole(incoming, now)

    def _failed(self, data: Data, reason: str) -> None:
        """No repeat would help."""
        if self._unpend(data) is not None:
            self._break(data.stream, reason)

    def _foreign(self, incoming: _Incoming, data: Data) -> str | None:
        """Why a piece cannot belong to its stream; None: it can."""
        key, offer = data.key, incoming.offer
        if key.start < offer.start or key.stop > offer.stop:
            return f"tokens {key.start}-{key.stop} outside {offer.start}-{offer.stop}"
        owners = incoming.received.keys() | {(k.layer, k.part) for k in incoming.pending}
        if (key.layer, key.part) not in owners and len(owners) >= offer.slices_per_token:
            return f"more than {offer.slices_per_token} slices per token"
        return None

    def _answer_if_settled(self, incoming: _Incoming) -> None:
        """Answer an offer once nothing read earlier is still on its way to the sink."""
        if not incoming.answer_due or incoming.pending:
            return
        if incoming.conn is None or incoming.have is None:
            return
        incoming.answer_due = False
        incoming.acks.clear()  # the answer names the ranges
        self._send(
            incoming.conn,
            Accept(incoming.offer.stream, incoming.have, self._window, incoming.ranges),
        )

    def _complete_if_whole(self, incoming: _Incoming, now: float) -> None:
        if incoming.missing > 0:
            return
        stream = incoming.offer.stream
        del self._streams[stream]
        self._remember(stream, None)
        if incoming.conn is not None:
            self._send(incoming.conn, Done(stream))
        started = now if incoming.first_at is None else incoming.first_at
        stats = StreamStats(
            bytes_raw=incoming.bytes_raw,
            bytes_wire=incoming.bytes_wire,
            transfer_s=now - started,
        )
        self._sink.completed(stream, stats)

    def _end_unasked(self, incoming: _Incoming, reason: str) -> None:
        """Refuse an offer that the sink never took: it is not told, and may be offered again."""
        stream = incoming.offer.stream
        del self._streams[stream]
        if incoming.conn is not None:
            self._send(incoming.conn, Refuse(stream, reason))

    def _break(self, stream: StreamId, reason: str, *, tell: bool = True) -> None:
        incoming = self._streams.pop(stream)
        self._remember(stream, reason)
        if tell and incoming.conn is not None:
            self._send(incoming.conn, Cancel(stream, reason))
        if incoming.have is not None:
            self._sink.broken(stream, reason)

    def _unpend(self, data: Data) -> _Incoming | None:
        incoming = self._streams.get(data.stream)
        if incoming is None or incoming.pending.get(data.key) is not data:
            return None
        del incoming.pending[data.key]
        return incoming

    def _why_unknown(self, stream: StreamId) -> str:
        return self._ended.get(stream) or "the receiver does not know this stream"

    def _remember(self, stream: StreamId, reason: str | None) -> None:
        self._ended[stream] = reason
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]

    def _send(self, conn: Conn, frame: Frame) -> None:
        self._out.setdefault(conn, []).append(frame)


_ROWS: dict[type, Callable[..., None]] = {
    Offering: Receiver._offered,
    Finish: Receiver._finished,
    Cancel: Receiver._cancelled,
    Refuse: Receiver._cancelled,
}
