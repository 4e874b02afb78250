"""Sender and receiver joined by lines that delay, cut, damage and repeat, in virtual time."""

import dataclasses
import struct
import zlib
from collections import deque
from collections.abc import Iterator, Sequence

from tests.transport.kv_helpers import LAYERS, MemorySink, make_slice, token_bytes
from transport.base import Offer, Slice, SliceKey, StreamId
from transport.codecs.table import decode_slice, encode_slice
from transport.stream import framing
from transport.stream.frames import Ack, CorruptFrame, Data, Frame, FrameError
from transport.stream.outgoing import Outgoing
from transport.stream.reader import Arrived, FrameReader
from transport.stream.receiver import Receiver, Verdict
from transport.stream.sender import Sender

WINDOW = 1500  # coded bytes: about three pieces of a test's stream
RESUME_S = 10.0
SESSION = b"s" * 16
LENGTHS = range(6, 14)  # where a preamble has those of head and body
PIECE_BYTES = 2000  # more than any piece is, coded


class Line:
    """One connection: bytes each way, and what either end knows of it."""

    def __init__(self, world: "World", name: int) -> None:
        self.name = name
        self.up = {"sender": True, "receiver": True}
        self.there: deque[bytes] = deque()
        self.back: deque[bytes] = deque()
        self.reader = FrameReader(lambda data, nbytes: world.admit(self, data, nbytes))
        self.hearer = FrameReader(lambda data, nbytes: False)

    def __repr__(self) -> str:
        return f"line {self.name}"


class World:
    """One receiver, one sender, and up to `connections` lines between them."""

    def __init__(
        self,
        offers: Sequence[Offer],
        *,
        have: int | None = 0,
        window: int = WINDOW,
        connections: int = 1,
        early: Sequence[str] = (),
        step: int = 16,
    ) -> None:
        self.now = 0.0
        self.window = window
        self.sink = MemorySink(have)
        self.receiver = Receiver(self.sink, window_bytes=window, resume_s=RESUME_S)
        self.sender = Sender(connections=connections, resume_s=RESUME_S)
        self.lines: list[Line] = []
        self.made = 0
        self.outs: list[Outgoing] = []
        self.todo: dict[StreamId, deque[Slice]] = {}
        self.decoding: list[tuple[Line, Arrived, Data]] = []
        self.sent: list[Data] = []
        self.written: set[tuple[StreamId, SliceKey]] = set()
        self.counted: dict[StreamId, list[int]] = {}  # bytes written, and of those again
        for offer in offers:
            self.open(offer, early=offer.stream.request in early, step=step)

    # ------------------------------------------------------------ the sender's owner

    def open(self, offer: Offer, *, early: bool = False, step: int = 16) -> Outgoing:
        out = self.sender.open(offer, self.now, token_bytes=token_bytes(), early=early)
        self.outs.append(out)
        self.todo[offer.stream] = deque(pieces(offer, step))
        self.counted[offer.stream] = [0, 0]
        return out

    def push(self, at: int = 0) -> None:
        """Code the next piece of a stream if there is room for it; finish after the last."""
        out = self.outs[at % len(self.outs)]
        todo = self.todo[out.stream]
        while todo and todo[0].key.stop <= (out.have or 0):
            todo.popleft()
        if out.ended:
            return
        if not todo:
            self.sender.finish(out, self.now)
        elif self.sender.has_room(out, self.now):
            self.sender.push(encode_slice(out.stream, todo.popleft(), "zstd"))

    # ------------------------------------------------------------ the sender's driver

    def dial(self, at: int = 0) -> None:
        """Make the connections that are due; the handshake is somebody else's test."""
        for _ in range(self.sender.dials.due(self.now)):
            line = Line(self, self.made)
            self.made += 1
            self.lines.append(line)
            self.receiver.connected(line, SESSION)
            self.sender.connected(line, self.window, 0.01, self.now)

    def undial(self, at: int = 0) -> None:
        """What is due does not come about."""
        for _ in range(self.sender.dials.due(self.now)):
            self.sender.undialled("nobody is there", self.now)

    def write(self, at: int = 0, most: int = 1) -> None:
        """Control frames and `most` pieces go on a line."""
        line = self._line(at, "sender")
        if line is None:
            return
        line.there.extend(wire_bytes(frame) for frame in self.sender.control(line))
        for _ in range(most):
            data = self.sender.next_data(line, self.now)
            if data is None:
                return
            self.sent.append(data)
            count = self.counted[data.stream]
            count[0] += len(data.body)
            if (data.stream, data.key) in self.written:
                count[1] += len(data.body)
            self.written.add((data.stream, data.key))
            line.there.append(wire_bytes(data))

    def send_on(self, at: int = 0) -> None:
        """A piece of one stream is coded and one goes on a line."""
        self.push(at // 4)
        self.write(at)

    def hear(self, at: int = 0) -> None:
        """The sender reads what comes next on a line: a frame, or a part of one."""
        line = self._line(at, "sender")
        if line is not None and line.back:
            self._heard(line, self._part(line.back, at))

    def _heard(self, line: Line, raw: bytes) -> None:
        try:
            for arrived in fed(line.hearer, raw):
                self.sender.handle(line, arrived.frame, self.now)
        except FrameError as error:
            self.lose(line, "sender", str(error))

    def late(self, at: int = 0) -> None:
        """The clock reaches whatever is due next, but not what ends a stream."""
        due = self.sender.dials.next_deadline()
        if due is not None:
            self.now = max(self.now, due)
            self.sender.expire(self.now)

    # ------------------------------------------------------------ the receiver's driver

    def admit(self, line: Line, data: Data, nbytes: int) -> bool:
        return self.receiver.admit(line, data, nbytes, self.now) is Verdict.TAKE

    def arrive(self, at: int = 0) -> None:
        """The receiver reads what comes next on a line: a frame, or a part of one."""
        line = self._line(at, "receiver")
        if line is not None and line.there:
            self._arrived(line, self._part(line.there, at))

    def _arrived(self, line: Line, raw: bytes) -> None:
        try:
            for arrived in fed(line.reader, raw):
                frame = arrived.frame
                if not isinstance(frame, Data):
                    self.receiver.handle(line, frame, self.now)
                elif arrived.body is not None:
                    self.decoding.append((line, arrived, frame))
        except FrameError as error:
            self.lose(line, "receiver", str(error))

    def decoded(self, at: int = 0) -> None:
        """A thread of the receiver's is done with a piece, in any order."""
        if not self.decoding:
            return
        line, arrived, data = self.decoding.pop(at % len(self.decoding))
        nbytes = arrived.preamble.body_bytes
        have = self.receiver.have(data.stream)
        try:
            arrived.check()
        except CorruptFrame as error:
            self.receiver.put(line, data, nbytes, error, self.now)
            return
        whole = decode_slice(dataclasses.replace(data, body=arrived.body))
        if data.stream in self.receiver.streams:
            self.sink.put(data.stream, wanted(whole, have))
        self.receiver.put(line, data, nbytes, None, self.now)

    def answer(self, at: int = 0) -> None:
        for line in self.receiver.ready():
            assert isinstance(line, Line)
            line.back.extend(wire_bytes(frame) for frame in self.receiver.take(line))

    def start(self, at: int = 0) -> None:
        """The receiving leg has started, if it had not."""
        if self.sink.have is None:
            self.sink.have = 0
        self.receiver.ask_again(self.now)

    # ------------------------------------------------------------ accidents

    def cut(self, at: int = 0) -> None:
        """One end loses a line; the other reads what was under way until `notice`."""
        end = "sender" if at % 2 else "receiver"
        line = self._line(at // 2, end)
        if line is not None:
            self.lose(line, end, "cut")

    def notice(self, at: int = 0) -> None:
        """The other end of a lost line hears of it; what it has not read is gone."""
        half = [line for line in self.lines if not all(line.up.values())]
        if half:
            line = half[at % len(half)]
            self.lose(line, "sender" if line.up["sender"] else "receiver", "cut")

    def flip(self, at: int = 0) -> None:
        """One bit of the frame that comes next on some line, but not of its lengths.

        A head or a body that seems longer than it is is waited for, until the silence is noticed.
        """
        if self.lines:
            line = self.lines[at % len(self.lines)]
            way = line.there if at % 3 else line.back
            if way and way[0].startswith(framing.MAGIC):
                raw = bytearray(way[0])
                where = at * 7 % len(raw)
                if where not in LENGTHS:
                    raw[where] ^= 1 << (at % 8)
                    way[0] = bytes(raw)

    def repeat(self, at: int = 0) -> None:
        """The last piece or acknowledgement on some line comes twice."""
        if self.lines:
            line = self.lines[at % len(self.lines)]
            way = line.there if at % 2 else line.back
            if len(way) > 1 and kind_of(way[-1]) in (Data, Ack):
                way.append(way[-1])

    # ------------------------------------------------------------ the end

    def step(self, times: int = 1) -> None:
        """Whatever is under way arrives and is answered; nothing is pushed, no piece written."""
        for _ in range(times):
            self.dial()
            for at in range(len(self.lines)):
                self.write(at, most=0)
            self.drain()
            self.answer()
            self.drain_back()

    def send(self, count: int = 1, at: int = 0) -> None:
        """Push and write, all on one line."""
        for _ in range(count):
            self.push(at)
            self.write()

    def drain(self) -> None:
        """The receiver reads all that is under way."""
        for line in list(self.lines):
            while line.up["receiver"] and line.there:
                self._arrived(line, line.there.popleft())

    def drain_back(self) -> None:
        """The sender reads all that is under way."""
        for line in list(self.lines):
            while line.up["sender"] and line.back:
                self._heard(line, line.back.popleft())

    def decode(self) -> None:
        """Every piece is stored."""
        while self.decoding:
            self.decoded()

    def settle(self) -> None:
        """Without further accidents everything ends, and before any patience does."""
        self.start()
        for _ in range(400):
            while any(not all(line.up.values()) for line in self.lines):
                self.notice()
            self.late()
            self.dial()
            for at in range(len(self.outs)):
                self.push(at)
            for at in range(len(self.lines)):
                self.write(at)
            self.drain()
            self.decode()
            self.receiver.ask_again(self.now)
            self.answer()
            self.drain_back()
            self.check()
            # All that was under way has come and was answered, where the line still stands.
            flights = [flight for out in self.outs for flight in out.flying.values()]
            assert not [f for f in flights if f.conn.up["receiver"]], flights
            if all(out.ended for out in self.outs) and not any(line.there for line in self.lines):
                return
        raise AssertionError([(out.phase, out.reason, self.now) for out in self.outs])

    def check(self) -> None:
        """What holds at every moment."""
        flying = sum(len(o.unacked[k].body) for o in self.outs for k in o.flying)
        assert self.sender._flying_bytes == flying
        assert flying <= self.window or sum(len(o.flying) for o in self.outs) == 1
        for out in self.outs:
            places = [*out.queue, *out.flying, *out.uncertain]
            assert sorted(places) == sorted(out.unacked)
            assert out.queued_bytes == sum(len(out.unacked[key].body) for key in out.queue)
            assert [out.sent_bytes, out.resent_bytes] == self.counted[out.stream]
            assert all(flight.conn in self.sender.connections for flight in out.flying.values())
            assert out.ended == (out.stream not in self.sender.streams)
        held = sum(arrived.preamble.body_bytes for _, arrived, _ in self.decoding)
        held += sum(line.reader.unread[1] for line in self.lines if line.reader.unread)
        assert self.receiver.held_bytes == held
        assert held <= 2 * self.window + PIECE_BYTES

    # ------------------------------------------------------------ small steps

    def _line(self, at: int, end: str) -> Line | None:
        lines = [line for line in self.lines if line.up[end]]
        return lines[at % len(lines)] if lines else None

    def _part(self, way: deque[bytes], at: int) -> bytes:
        """Mostly a whole frame; sometimes a part, and the rest stays first."""
        raw = way.popleft()
        cut = len(raw) if at % 3 else max(1, at * 31 % len(raw))
        if cut < len(raw):
            way.appendleft(raw[cut:])
        return raw[:cut]

    def lose(self, line: Line, end: str, why: str = "cut") -> None:
        """One end sees that a connection is gone."""
        line.up[end] = False
        if end == "sender":
            line.back.clear()
            self.sender.disconnected(line, why, self.now)
        else:
            line.there.clear()
            if line.reader.unread is not None:
                self.receiver.dropped(line, *line.reader.unread)
                line.reader = FrameReader(lambda data, nbytes: False)
            self.receiver.disconnected(line, self.now)
        if not any(line.up.values()):
            self.lines.remove(line)


def pieces(offer: Offer, step: int = 16) -> Iterator[Slice]:
    for start in range(offer.start, offer.stop, step):
        for layer in range(LAYERS):
            for part in "kv":
                yield make_slice(layer, part, start, min(start + step, offer.stop))


def wanted(piece: Slice, have: int) -> Slice:
    """The part of `piece` from token `have` on."""
    layer, part, start, stop = piece.key
    if have <= start:
        return piece
    skip = have - start
    key = SliceKey(layer, part, have, stop)
    return Slice(key=key, positions=piece.positions[skip:], data=piece.data[skip:])


def wire_bytes(frame: Frame) -> bytes:
    return b"".join(bytes(part) for part in framing.encode(frame))


def sealed(
    kind: int,
    head: bytes,
    body: bytes = b"",
    *,
    good_body: bool = True,
    declared: int | None = None,
) -> bytes:
    """A frame with right checksums around any head: what a mistaken peer could send.

    `declared`: the length of body that it promises, if that is another.
    """
    length = len(body) if declared is None else declared
    body_crc = zlib.crc32(body) ^ (not good_body)
    fields = (framing.MAGIC, framing.VERSION, kind, len(head), length, body_crc, 0)
    summed = struct.pack("!4sBBIIII", *fields)[:-4]
    return summed + struct.pack("!I", zlib.crc32(head, zlib.crc32(summed))) + head + body


def fed(reader: FrameReader, data: bytes, chunk: int | None = None) -> Iterator[Arrived]:
    """Put `data` where the reader wants it, at most `chunk` bytes at a time."""
    at = 0
    while at < len(data):
        room = reader.buffer()
        took = min(len(room), len(data) - at, chunk or len(data))
        room[:took] = data[at : at + took]
        at += took
        yield from reader.received(took)


def kind_of(raw: bytes) -> type[Frame] | None:
    """What a whole frame is; None: it is no whole frame."""
    try:
        (arrived,) = fed(FrameReader(lambda data, nbytes: True), raw)
    except (FrameError, ValueError):
        return None
    return type(arrived.frame)
