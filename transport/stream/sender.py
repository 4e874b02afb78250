"""The sending end of all KV streams to one peer, without I/O.

Frames in, frames out, `now` as an argument. Pieces of all streams are striped over the
connections: whichever can write takes the next piece of the stream that ranks first.
"""

from collections.abc import Callable, Iterable

from transport.base import LinkEstimate, Offer, SliceKey, StreamId
from transport.stream.connections import Connections
from transport.stream.dial import Dials
from transport.stream.frames import (
    Accept,
    Ack,
    Again,
    Cancel,
    Data,
    Done,
    Finish,
    Frame,
    Offering,
    Refuse,
)
from transport.stream.outgoing import Conn, Flight, Outgoing, Owner, Phase
from transport.stream.pace import DeliveryRate
from transport.stream.ranges import Ranges
from transport.stream.schedule import ageing_bytes_per_s, rank

MAX_DAMAGED = 64  # pieces that came damaged, without an acknowledgement
MAX_BREAKS = 5  # broken connections in a row, for each there may be, without an acknowledgement
STALL_S = 60.0  # something written, nothing acknowledged, connections alive
RESUME_S = 10.0  # how long a sender looks for a connection on which its stream is accepted
# Coded and not yet written: enough to keep the line busy while more is coded, for one stream and
# for all. Above it only the stream that ranks first goes on.
STREAM_AHEAD_BYTES = 4 << 20
AHEAD_BYTES = 16 << 20
LEAST_SHARE_BYTES = 5 << 18  # may fly on one of several connections, whatever was measured
# Of bandwidth x delay. Less leaves the line idle, since pieces are acknowledged whole; twice as
# much overflows a buffer of one round trip, and a drop at the end costs a timeout.
_SHARE_GAIN = 1.5
CANCELLED = "cancelled by the sender"


class StreamBroken(Exception):
    """The stream will not complete; the text says why."""


class Sender:
    """Holds every unacknowledged piece, so that a broken connection loses nothing.

    The driver dials as often as `dials.due` says, tells of every connection (`connected`,
    `disconnected`) and of what arrives (`handle`). When one can write it takes `control(conn)`
    first and then `next_data(conn, now)`. It calls `expire` at `next_deadline()`, and closes the
    connections that `silent` names. After each event `changed()` tells which streams moved.
    """

    def __init__(self, *, connections: int, resume_s: float) -> None:
        self.streams: dict[StreamId, Outgoing] = {}
        self.dials = Dials(connections)
        self._resume_s = resume_s
        self._connections = Connections()
        self._window = 0
        self._flying_bytes = 0
        self._flying_on: dict[Conn, int] = {}
        self._opened = 0
        self._changed: dict[StreamId, None] = {}
        self._waiting: dict[StreamId, None] = {}  # for room that other streams take up
        self._goodput = DeliveryRate()
        self._coded = self._raw = 1  # bytes written so far, and what they were before coding
        self._last_break = ""

    # ------------------------------------------------------------ streams

    def open(
        self,
        offer: Offer,
        now: float,
        *,
        token_bytes: int,
        weight: float = 1.0,
        early: bool = False,
    ) -> Outgoing:
        """Offer a stream; `token_bytes` is the raw KV of one token over all layers and parts.

        With `early` pieces may be pushed and sent before the receiver has answered: a round trip
        is saved, and wasted if it turns out to have them. Raises ValueError when it is open.
        """
        if offer.stream in self.streams:
            raise ValueError(f"{offer.stream} is being sent already")
        if not self.streams:  # nobody listened for silence while nothing was under way
            self._connections.listen(now)
        out = Outgoing(
            offer=offer,
            order=self._opened,
            opened_at=now,
            token_bytes=token_bytes,
            weight=weight,
            early=early,
        )
        self._opened += 1
        self.streams[offer.stream] = out
        self._ask(out, now)
        self.dials.want(now)
        return out

    def has_room(self, out: Outgoing, now: float) -> bool:
        """Whether another piece of the stream should be coded now."""
        if out.ended or (out.have is None and not out.early):
            return False
        if out.queued_bytes >= STREAM_AHEAD_BYTES:
            return False
        queued = sum(other.queued_bytes for other in self.streams.values())
        if queued < AHEAD_BYTES:
            return True
        idle = (other for other in self.streams.values() if not other.queue)
        if not out.queue and out is self._first(idle, now):
            return True
        self._waiting[out.stream] = None
        return False

    def push(self, data: Data) -> None:
        """Queue one coded piece; one that the receiver has, or of an ended stream, is dropped."""
        out = self.streams.get(data.stream)
        if out is None or data.key in out.unacked or out.covered(data.key):
            return
        out.unacked[data.key] = data
        out.enqueue(data.key)

    def finish(self, out: Outgoing, now: float) -> None:
        """Nothing more will be pushed; `phase` becomes DONE when the receiver says so."""
        out.finishing = True
        self._finish_if_acked(out, now)

    def cancel(self, out: Outgoing, reason: str) -> None:
        """Give up; the receiver is told."""
        if not out.ended:
            self._end(out, Phase.BROKEN, reason)
            if out.attempt:
                self._connections.cancel(Cancel(out.stream, reason))

    def fail_all(self, reason: str) -> None:
        """No connection will do."""
        for out in list(self.streams.values()):
            self.cancel(out, reason)

    def changed(self) -> list[StreamId]:
        """Streams whose state moved since this was asked last, ended ones among them.

        With them come those that were told there was no room because of others.
        """
        if self._changed and self._waiting:
            self._changed.update(self._waiting)
            self._waiting.clear()
        moved, self._changed = list(self._changed), {}
        return moved

    @property
    def goodput_bytes_per_s(self) -> float | None:
        """Coded bytes that arrive, while there is enough to send; None: not measured yet."""
        return self._goodput.bytes_per_s

    def estimate(self, loss: float | None) -> LinkEstimate:
        """What is known of the path; `loss` is what the sockets say."""
        return LinkEstimate(
            goodput_bytes_per_s=self._goodput.bytes_per_s,
            rtt_s=self._connections.round_trip.rtt_s,
            loss=loss,
            queue_bytes=self._flying_bytes + sum(o.queued_bytes for o in self.streams.values()),
        )

    # ------------------------------------------------------------ connections

    @property
    def connections(self) -> list[Conn]:
        return list(self._connections)

    def connected(self, conn: Conn, window: int, rtt_s: float | None, now: float) -> None:
        """A connection is up; `window` is the credit in the receiver's terms."""
        self._connections.add(conn, now)
        self._window = window
        self.dials.up(now)
        if rtt_s is not None:
            self._connections.round_trip.add(rtt_s)
        for out in self.streams.values():
            if not out.awaiting:
                continue
            if not out.asked_on:
                self._ask(out, now)
            elif out.early and out.have is None:
                self._post_offer(out, conn)

    def disconnected(self, conn: Conn, reason: str, now: float) -> None:
        """A connection broke; what flew on it may be lost."""
        if conn not in self._connections:
            return
        self._connections.remove(conn)
        self.dials.down(now, again=bool(self.streams))
        for out in list(self.streams.values()):
            lost = [key for key, flight in out.flying.items() if flight.conn == conn]
            for key in lost:
                self._land(out, key)
            self._goodput.lost(len(lost))
            out.uncertain.update(lost)
            asked = conn in out.asked_on
            out.asked_on.discard(conn)
            if lost or asked or out.finish_sent or not self._connections:
                out.finish_sent = False
                out.breaks += 1
                self._watch(out, now)
                if out.breaks > MAX_BREAKS * self.dials.connections:
                    what = f"connection broken {out.breaks} times without progress"
                    self.cancel(out, f"{what}: {reason}")
                elif asked or not out.awaiting:  # the answer may have been lost with it
                    self._ask(out, now)
        self._last_break = reason

    def undialled(self, reason: str, now: float) -> None:
        """A connection did not come about."""
        self._last_break = reason
        self.dials.failed(now, again=bool(self.streams))

    def handle(self, conn: Conn, frame: Frame, now: float) -> None:
        """Take one frame; kinds that are not a sender's are ignored."""
        if conn not in self._connections:
            return
        self._connections.heard(conn, frame, now)
        if isinstance(frame, Accept | Refuse | Cancel | Ack | Again | Done):
            out = self.streams.get(frame.stream)
            if out is not None:
                _ROWS[type(frame)](self, out, frame, now)
                self._changed[out.stream] = None

    @property
    def queued_pieces(self) -> int:
        """Pieces that are coded and not yet written."""
        return sum(len(out.queue) for out in self.streams.values())

    def has_control(self, conn: Conn) -> bool:
        """Whether `control` would give a frame."""
        return self._connections.has_control(conn)

    def control(self, conn: Conn) -> list[Frame]:
        """What to write on `conn` before any piece."""
        return self._connections.control(conn)

    def has_data(self, conn: Conn) -> bool:
        """Whether `next_data` would give a piece."""
        return self._next(conn, 0.0) is not None

    def next_data(self, conn: Conn, now: float) -> Data | None:
        """The piece to write on `conn`; it stays here until it is acknowledged."""
        out = self._next(conn, now)
        if out is None:
            return None
        data = out.take()
        key = data.key
        starved = not any(other.queue for other in self.streams.values())
        out.flying[key] = Flight(conn, self._goodput.sent(now, starved=starved))
        self._flying_bytes += len(data.body)
        self._flying_on[conn] = self._flying_on.get(conn, 0) + len(data.body)
        self._coded += len(data.body)
        self._raw += data.raw_bytes
        out.sent_bytes += len(data.body)
        if key in out.written:
            out.resent_bytes += len(data.body)
        else:
            out.written.add(key)
            out.sent_raw += data.raw_bytes
        self._watch(out, now)
        self._changed[out.stream] = None
        return data

    # ------------------------------------------------------------ time

    def next_deadline(self) -> float | None:
        """When to call `expire`; None: nothing to wait for."""
        times = [self.dials.next_deadline()]
        for out in self.streams.values():
            times += [out.give_up_at, out.stall_at]
        if self.streams:
            times += self._connections.deadlines()
        return min((t for t in times if t is not None), default=None)

    def expire(self, now: float) -> None:
        """Do what is due."""
        for out in list(self.streams.values()):
            if out.stall_at is not None and now >= out.stall_at:
                self.cancel(out, f"nothing acknowledged in {STALL_S:g} s")
            elif out.give_up_at is not None and now >= out.give_up_at:
                why = f": {self._last_break}" if self._last_break else ""
                self.cancel(out, f"not accepted within {self._resume_s:g} s{why}")
        if self.streams:
            self._connections.ping(now)

    def silent(self, now: float) -> list[Conn]:
        """Connections to close: something is under way and nothing was heard for long."""
        return self._connections.silent(now) if self.streams else []

    # ------------------------------------------------------------ what arrives

    def _accepted(self, out: Outgoing, frame: Accept, now: float) -> None:
        if not out.awaiting or frame.attempt != out.attempt:
            return
        received: dict[Owner, Ranges] = {}
        for layer, part, start, stop in frame.received:
            received.setdefault((layer, part), Ranges()).add(start, stop)
        none = Ranges()
        have = out.have if out.have is not None else frame.have
        kept = (
            stop <= have or received.get(owner, none).covers(max(start, have), stop)
            for owner, start, stop in out.promised
        )
        if not all(kept):
            self.cancel(out, "the receiver has lost what it had acknowledged")
            return
        out.awaiting, out.give_up_at = False, None
        out.asked_on.clear()
        if out.have is None:
            out.have, out.phase = frame.have, Phase.OPEN
            for key in [k for k in out.unacked if out.covered(k)]:
                self._settle(out, key, now)
        for key in list(out.unacked):
            if received.get((key.layer, key.part), none).covers(key.start, key.stop):
                self._settle(out, key, now)
        for key in sorted(out.uncertain, key=lambda k: (k.start, k.layer, k.part), reverse=True):
            out.enqueue(key, first=True)
        out.uncertain.clear()
        self._finish_if_acked(out, now)

    def _refused(self, out: Outgoing, frame: Refuse | Cancel, now: float) -> None:
        self._end(out, Phase.BROKEN, frame.reason)

    def _acknowledged(self, out: Outgoing, frame: Ack, now: float) -> None:
        for key in frame.keys:
            self._settle(out, key, now)
        out.breaks = out.damaged = 0
        self._watch(out, now)
        self._finish_if_acked(out, now)

    def _again(self, out: Outgoing, frame: Again, now: float) -> None:
        for key in frame.keys:
            if key in out.flying:
                self._land(out, key)
                self._goodput.lost(1)
                out.enqueue(key, first=True)
        out.damaged += 1
        self._watch(out, now)
        if out.damaged > MAX_DAMAGED:
            self.cancel(out, f"{out.damaged} pieces came damaged without progress")

    def _completed(self, out: Outgoing, frame: Done, now: float) -> None:
        for key in list(out.unacked):
            self._settle(out, key, now)
        self._end(out, Phase.DONE, None)

    # ------------------------------------------------------------ small steps

    def _next(self, conn: Conn, now: float) -> Outgoing | None:
        if conn not in self._connections:
            return None
        flying = self._flying_on.get(conn, 0)
        if flying and flying >= self._share_bytes():
            return None
        able = (o for o in self.streams.values() if o.may_fly_on(conn))
        out = self._first((o for o in able if o.have is not None or self._affords(o)), now)
        return out if out is not None and self._affords(out) else None

    def _share_bytes(self) -> float:
        """What may fly on one of several connections: it is lost when that one breaks.

        Over all a little more than bandwidth x delay, and enough for a rate that still grows.
        """
        connections = len(self._connections)
        if connections < 2:
            return self._window
        rate, rtt_s = self._goodput.bytes_per_s, self._connections.round_trip.rtt_s
        if rate is None or rtt_s is None:
            return min(LEAST_SHARE_BYTES, self._window / connections)
        return max(LEAST_SHARE_BYTES, _SHARE_GAIN * rate * rtt_s / connections)

    def _affords(self, out: Outgoing) -> bool:
        """Whether the credit allows a stream its next piece.

        Early ones may take half of it: their leg may not start for long, and others go on.
        """
        nbytes = len(out.unacked[out.queue[0]].body)
        credit = self._window // 2 if out.have is None else self._window
        return not self._flying_bytes or self._flying_bytes + nbytes <= credit

    def _first(self, streams: Iterable[Outgoing], now: float) -> Outgoing | None:
        """The one that ranks first; of equal ones, what was opened first."""
        coded = self._goodput.bytes_per_s
        # Streams are ranked by their raw bytes, so the line's rate is taken in the same.
        ageing = ageing_bytes_per_s(None if coded is None else coded * self._raw / self._coded)
        return min(
            streams,
            key=lambda o: (
                rank(o.remaining_bytes, now - o.opened_at, o.weight, ageing),
                o.order,
            ),
            default=None,
        )

    def _ask(self, out: Outgoing, now: float) -> None:
        """Offer, or offer again."""
        out.awaiting = True
        out.asked_on.clear()
        out.promised = [(o, a, b) for o, ranges in out.acked.items() for a, b in ranges]
        if out.give_up_at is None:
            out.give_up_at = now + self._resume_s
        if not self._connections:
            return
        out.attempt += 1
        everywhere = out.early and out.have is None
        for conn in self._connections if everywhere else [self._connections.least_busy()]:
            self._post_offer(out, conn)

    def _post_offer(self, out: Outgoing, conn: Conn) -> None:
        out.asked_on.add(conn)
        self._connections.post(Offering(out.offer, out.attempt), conn)

    def _settle(self, out: Outgoing, key: SliceKey, now: float) -> None:
        flight = out.flying.get(key)
        if flight is not None:
            self._land(out, key)
        data = out.settle(key)
        if data is not None and flight is not None:
            self._goodput.acked(flight.sent, len(data.body), now)

    def _land(self, out: Outgoing, key: SliceKey) -> None:
        nbytes, conn = len(out.unacked[key].body), out.flying.pop(key).conn
        self._flying_bytes -= nbytes
        self._flying_on[conn] -= nbytes
        if not self._flying_on[conn]:
            del self._flying_on[conn]

    def _finish_if_acked(self, out: Outgoing, now: float) -> None:
        ready = out.finishing and out.phase is Phase.OPEN and not out.awaiting
        if ready and not out.unacked and not out.finish_sent:
            out.finish_sent = self._connections.post(Finish(out.stream)) is not None
            self._watch(out, now)

    def _watch(self, out: Outgoing, now: float) -> None:
        waiting = bool(out.flying) or out.finish_sent
        out.stall_at = now + STALL_S if waiting else None

    def _end(self, out: Outgoing, phase: Phase, reason: str | None) -> None:
        if out.ended:
            return
        for key in list(out.flying):
            self._land(out, key)
            self._goodput.lost(1)
        out.phase, out.reason = phase, reason
        out.give_up_at = out.stall_at = None
        out.clear()
        self.streams.pop(out.stream, None)
        self._waiting.pop(out.stream, None)
        self._changed[out.stream] = None


_ROWS: dict[type, Callable[..., None]] = {
    Accept: Sender._accepted,
    Refuse: Sender._refused,
    Cancel: Sender._refused,
    Ack: Sender._acknowledged,
    Again: Sender._again,
    Done: Sender._completed,
}
