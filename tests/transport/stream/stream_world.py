"""Sender and receiver joined by a wire that drops, corrupts and cuts, in virtual time."""

import dataclasses
from collections import deque
from collections.abc import Iterator

from tests.transport.kv_helpers import LAYERS, MemorySink, make_slice
from transport.base import Offer, Slice
from transport.codecs.table import decode_slice, encode_slice
from transport.stream import frames, framing
from transport.stream.frames import Data, Frame
from transport.stream.framing import PREAMBLE_BYTES
from transport.stream.receiver import Receiver, Verdict
from transport.stream.sender import Sender

WINDOW = 1500  # coded bytes: about three pieces of a test's stream
RESUME_S = 10.0


class World:
    """One receiver, some senders on one connection, and frames as bytes in between."""

    def __init__(self, offers: list[Offer], *, have: int = 0, window: int = WINDOW) -> None:
        self.now = 0.0
        self.window = window
        self.sink = MemorySink(have)
        self.receiver = Receiver(self.sink, window_bytes=window, resume_s=RESUME_S)
        self.senders = [Sender(offer, self.now, resume_s=RESUME_S) for offer in offers]
        self.todo = {id(s): deque(pieces(s.offer)) for s in self.senders}
        self.conn = 0
        self.up = False
        self.gone: deque[int] = deque()  # connections the receiver has not seen break yet
        self.there: deque[bytes] = deque()
        self.back: deque[bytes] = deque()
        self.decoding: list[tuple[Data, bytes]] = []
        self.sent: list[Data] = []

    def connect(self) -> None:
        if not self.up:
            self.up = True
            self.conn += 1
            for sender in self.senders:
                self.post(sender.connected())

    def accepted(self) -> Sender:
        """Connect, and have the one sender's offer answered."""
        self.connect()
        self.step()
        (sender,) = self.senders
        return sender

    def step(self, times: int = 1) -> None:
        """The handshake of an offer, and whatever else is under way."""
        for _ in range(times):
            self.arrive()
            self.decoded(0)
            self.answer()
            self.hear()

    def cut(self) -> None:
        """The sender sees it at once, the receiver when `notice` is called."""
        if self.up:
            self.up = False
            self.gone.append(self.conn)
            self.there.clear()
            self.back.clear()
            for sender in self.senders:
                sender.disconnected("cut", self.now)

    def notice(self) -> None:
        if self.gone:
            self.receiver.disconnected(self.gone.popleft(), self.now)

    def post(self, out: list[Frame]) -> None:
        if self.up:
            self.there.extend(b"".join(map(bytes, framing.encode(frame))) for frame in out)

    def push(self, sender: Sender) -> None:
        """Code the next piece if the window has room; finish after the last."""
        todo = self.todo[id(sender)]
        while todo and todo[0].key.stop <= (sender.have or 0):
            todo.popleft()
        if not todo:
            self.post(sender.finish(self.now))
        elif sender.has_room and not sender.ended:
            sender.push(encode_slice(sender.offer.stream, todo.popleft(), "zstd"))
            assert sender.unacked_bytes < self.window + 1000

    def write(self, sender: Sender) -> None:
        data = sender.next_data(self.now) if self.up else None
        if data is not None:
            # Only what is missing travels: never a piece that the sink already has.
            key = data.key
            assert (data.stream, key.layer, key.part, key.start) not in self.sink.counts
            self.sent.append(data)
            self.post([data])

    def send(self, sender: Sender, pieces: int = 1) -> None:
        for _ in range(pieces):
            self.push(sender)
            self.write(sender)

    def arrive(self) -> None:
        """The receiver reads one frame."""
        if not self.there:
            return
        raw = self.there.popleft()
        try:
            preamble = framing.parse_preamble(raw[:PREAMBLE_BYTES])
            split = PREAMBLE_BYTES + preamble.head_bytes
            frame = framing.parse_head(preamble, raw[PREAMBLE_BYTES:split])
        except frames.FrameError:
            self.cut()
            return
        if not isinstance(frame, Data):
            self.receiver.handle(self.conn, frame, self.now)
        elif self.receiver.admit(self.conn, frame, self.now) is Verdict.TAKE:
            try:
                framing.check_body(preamble, raw[split:])
            except frames.FrameError as error:
                if not self.receiver.put(frame, len(raw) - split, error, self.now):
                    self.cut()
                return
            self.decoding.append((frame, raw[split:]))

    def decoded(self, at: int) -> None:
        """A thread of the receiver's is done with a piece, in any order."""
        if self.decoding:
            frame, body = self.decoding.pop(at % len(self.decoding))
            self.sink.put(frame.stream, decode_slice(dataclasses.replace(frame, body=body)))
            assert self.receiver.put(frame, len(body), None, self.now)

    def answer(self) -> None:
        for conn in self.receiver.ready():
            out = self.receiver.take(conn)
            if conn == self.conn and self.up:
                self.back.extend(b"".join(map(bytes, framing.encode(frame))) for frame in out)

    def hear(self) -> None:
        """The sender reads one frame."""
        if not self.back:
            return
        raw = self.back.popleft()
        try:
            preamble = framing.parse_preamble(raw[:PREAMBLE_BYTES])
            frame = framing.parse_head(preamble, raw[PREAMBLE_BYTES:])
        except frames.FrameError:
            self.cut()
            return
        for sender in self.senders:
            if sender.offer.stream == frame.stream:
                self.post(sender.handle(frame, self.now))

    def corrupt(self, at: int) -> None:
        """One bit of the frame that arrives next."""
        line = self.there if at % 2 else self.back
        if line:
            raw = bytearray(line[0])
            raw[at * 7 % len(raw)] ^= 1 << (at % 8)
            line[0] = bytes(raw)

    def settle(self) -> None:
        """Without further accidents everything ends."""
        for _ in range(400):
            self.connect()
            for sender in self.senders:
                self.send(sender)
            self.arrive()
            self.notice()
            self.decoded(0)
            self.answer()
            self.hear()
            if all(s.ended for s in self.senders) and not self.there:
                return
        raise AssertionError([s.phase for s in self.senders])


def pieces(offer: Offer, step: int = 16) -> Iterator[Slice]:
    for start in range(offer.start, offer.stop, step):
        for layer in range(LAYERS):
            for part in "kv":
                yield make_slice(layer, part, start, min(start + step, offer.stop))
