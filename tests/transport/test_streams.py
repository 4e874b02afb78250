"""Sender and receiver joined by a wire that drops, corrupts and cuts, in virtual time."""

import dataclasses
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transport.kv_helpers import LAYERS, MemorySink, make_offer, make_slice
from transport import frames, framing
from transport.base import Offer, SliceKey, StreamId
from transport.codecs import decode_slice, encode_slice
from transport.frames import Data, Frame
from transport.framing import PREAMBLE_BYTES
from transport.receiver import Receiver, Verdict
from transport.sender import MAX_BREAKS, STALL_S, Phase, Sender, StreamBroken

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
            except frames.FrameError:
                self.receiver.dropped(frame)
                self.cut()
                return
            self.decoding.append((frame, raw[split:]))

    def decoded(self, at: int) -> None:
        """A thread of the receiver's is done with a piece, in any order."""
        if self.decoding:
            frame, body = self.decoding.pop(at % len(self.decoding))
            self.sink.put(frame.stream, decode_slice(dataclasses.replace(frame, body=body)))
            self.receiver.stored(frame, len(body), self.now)

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
                self.push(sender)
                self.write(sender)
            self.arrive()
            self.notice()
            self.decoded(0)
            self.answer()
            self.hear()
            if all(s.ended for s in self.senders) and not self.there:
                return
        raise AssertionError([s.phase for s in self.senders])


def pieces(offer: Offer, step: int = 16):
    for start in range(offer.start, offer.stop, step):
        for layer in range(LAYERS):
            for part in "kv":
                yield make_slice(layer, part, start, min(start + step, offer.stop))


ACTIONS = ["push", "write", "arrive", "decoded", "answer", "hear", "cut", "notice", "corrupt"]


@given(
    st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 50)), max_size=120),
    st.sampled_from([0, 16, 32]),
)
@settings(max_examples=80, deadline=None)
def test_every_slice_arrives_once_and_intact(actions, have):
    world = World([make_offer("a"), make_offer("b", stop=40)], have=have)
    accidents = 0
    for action, at in actions:
        world.connect()
        sender = world.senders[at % 2]
        match action:
            case "push":
                world.push(sender)
            case "write":
                world.write(sender)
            case "decoded":
                world.decoded(at)
            case "cut" | "corrupt":
                accidents += 1
                if accidents <= MAX_BREAKS and action == "cut":
                    world.cut()
                elif accidents <= MAX_BREAKS:
                    world.corrupt(at)
            case _:
                getattr(world, action)()
    world.settle()
    for sender in world.senders:
        assert sender.phase is Phase.DONE, sender.reason
        world.sink.check(sender.offer)
        assert sender.offer.stream in world.sink.completions
    assert not world.receiver.streams
    assert not world.sink.breaks
    assert all(s.next_deadline() is None for s in world.senders)
    assert world.receiver.next_deadline() is None


@pytest.fixture
def world() -> World:
    return World([make_offer()], window=1 << 20)


def step(world: World, times: int = 1) -> None:
    """The handshake of an offer, and whatever else is under way."""
    for _ in range(times):
        world.arrive()
        world.decoded(0)
        world.answer()
        world.hear()


def test_only_what_is_missing_is_sent_after_a_cut(world: World):
    (sender,) = world.senders
    world.connect()
    step(world)
    for _ in range(10):
        world.push(sender)
        world.write(sender)
    for _ in range(6):
        world.arrive()
        world.decoded(0)
    world.cut()  # six are stored and not one acknowledgement came back
    world.settle()
    assert sender.phase is Phase.DONE
    world.sink.check(sender.offer)
    assert len(world.sent) == 24 + 4


def test_the_answer_waits_for_what_is_still_being_decoded(world: World):
    (sender,) = world.senders
    world.connect()
    step(world)
    world.push(sender)
    world.write(sender)
    world.arrive()
    assert len(world.decoding) == 1
    world.cut()
    world.connect()
    world.arrive()
    world.answer()
    assert not world.back
    world.decoded(0)
    world.answer()
    world.hear()
    assert sender.phase is Phase.OPEN
    assert sender.unacked_bytes == 0


def test_a_refusal_names_both_values(world: World):
    offer = dataclasses.replace(make_offer("odd"), fingerprint='{"tensors":"t9"}')
    sender = Sender(offer, 0.0, resume_s=RESUME_S)
    world.senders = [sender]
    world.connect()
    step(world)
    assert sender.phase is Phase.BROKEN
    assert '"t0"' in sender.reason
    assert '"t9"' in sender.reason
    assert not world.sink.breaks
    assert not world.receiver.streams
    with pytest.raises(StreamBroken):
        sender.push(encode_slice(offer.stream, make_slice(0, "k", 0, 16), "raw"))


def test_a_piece_of_an_unknown_stream_is_refused_by_its_head(world: World):
    stray = encode_slice(StreamId("stray", 0, 1), make_slice(0, "k", 0, 16), "raw")
    assert world.receiver.admit("c", dataclasses.replace(stray, body=b""), 0.0) is Verdict.SKIP
    (answer,) = world.receiver.take("c")
    assert answer == frames.Refuse(stray.stream, "the receiver does not know this stream")
    assert not world.receiver.streams


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (SliceKey(0, "k", 60, 76), "tokens 60-76 outside 0-64"),
        (SliceKey(9, "k", 0, 16), "more than 6 slices per token"),
    ],
)
def test_a_piece_outside_the_offer_breaks_the_stream(world: World, key: SliceKey, why: str):
    world.connect()
    step(world)
    (sender,) = world.senders
    for _ in range(6):
        world.push(sender)
        world.write(sender)
    step(world, 6)
    data = encode_slice(sender.offer.stream, make_slice(0, "k", 0, 16), "raw")
    world.receiver.admit(world.conn, dataclasses.replace(data, key=key), 0.0)
    step(world)
    assert why in sender.reason
    assert why in world.sink.breaks[sender.offer.stream]


def test_a_repeat_is_acknowledged_and_not_put_twice(world: World):
    world.connect()
    step(world)
    (sender,) = world.senders
    world.push(sender)
    world.write(sender)
    step(world)
    (data,) = world.sent
    assert world.receiver.admit(world.conn, data, 0.0) is Verdict.SKIP
    assert frames.Ack(data.stream, (data.key,)) in world.receiver.take(world.conn)


def test_what_an_old_connection_still_brings_is_left_alone(world: World):
    world.connect()
    step(world)
    (sender,) = world.senders
    world.push(sender)
    world.write(sender)
    (data,) = world.sent
    assert world.receiver.admit(world.conn, data, 0.0) is Verdict.TAKE
    assert world.receiver.admit(world.conn, data, 0.0) is Verdict.SKIP  # it is being decoded
    world.receiver.dropped(data)
    world.receiver.handle("new", frames.Offering(sender.offer), 0.0)
    assert world.receiver.admit(world.conn, data, 0.0) is Verdict.SKIP
    assert world.receiver.admit("new", data, 0.0) is Verdict.TAKE


def test_a_piece_before_the_answer_is_not_taken(world: World):
    world.sink.have = None
    world.connect()
    step(world)
    data = encode_slice(world.senders[0].offer.stream, make_slice(0, "k", 0, 16), "raw")
    assert world.receiver.admit(world.conn, data, 0.0) is Verdict.SKIP
    assert world.receiver.take(world.conn) == []


def test_finishing_early_is_told_apart_from_done(world: World):
    world.connect()
    step(world)
    (sender,) = world.senders
    world.push(sender)
    world.write(sender)
    step(world)
    world.post(sender.finish(0.0))
    step(world)
    assert "finished with 368 slice tokens missing" in sender.reason
    assert sender.offer.stream in world.sink.breaks


def test_a_receiver_that_forgot_is_found_out(world: World):
    world.connect()
    step(world)
    (sender,) = world.senders
    world.push(sender)
    world.write(sender)
    step(world)
    world.cut()
    world.receiver = Receiver(world.sink, window_bytes=WINDOW, resume_s=RESUME_S)
    world.connect()
    step(world, 2)
    assert sender.reason == "the receiver has lost what it had acknowledged"
    assert sender.offer.stream in world.sink.breaks


def test_a_full_hit_is_done_without_a_piece():
    world = World([make_offer()], have=64)
    world.settle()
    assert world.senders[0].phase is Phase.DONE
    assert not world.sent
    (stats,) = world.sink.completions.values()
    assert (stats.bytes_raw, stats.bytes_wire, stats.transfer_s) == (0, 0, 0.0)


def test_a_lost_done_is_said_again(world: World):
    (sender,) = world.senders
    world.connect()
    step(world)
    while world.todo[id(sender)]:
        world.push(sender)
        world.write(sender)
        world.arrive()
        world.decoded(0)
    assert not world.receiver.streams  # complete there, and the sender has heard of nothing
    world.cut()
    world.settle()
    assert sender.phase is Phase.DONE
    assert len(world.sent) == 24


def test_cancel_reaches_the_other_end(world: World):
    world.connect()
    step(world)
    (sender,) = world.senders
    world.push(sender)
    world.post(sender.cancel("the client left"))
    step(world)
    assert world.sink.breaks == {sender.offer.stream: "the client left"}
    assert sender.unacked_bytes == 0
    assert not world.receiver.streams


def test_cancel_by_the_receiver_holds_for_late_offers(world: World):
    world.connect()
    step(world)
    (sender,) = world.senders
    world.receiver.cancel(sender.offer.stream, "leg stopped")
    step(world)
    assert (sender.phase, sender.reason) == (Phase.BROKEN, "leg stopped")
    world.receiver.handle("late", frames.Offering(sender.offer), 0.0)
    assert world.receiver.take("late") == [frames.Refuse(sender.offer.stream, "leg stopped")]
    assert not world.sink.breaks  # its owner asked for it


def test_an_offer_before_its_leg_waits_and_then_is_answered(world: World):
    world.sink.have = None
    world.connect()
    step(world)
    (sender,) = world.senders
    assert sender.phase is Phase.OFFERED
    assert world.receiver.asking()
    world.sink.have = 16
    world.receiver.ask_again(0.02)
    step(world)
    assert (sender.phase, sender.have) == (Phase.OPEN, 16)
    assert not world.receiver.asking()
    assert world.receiver.next_deadline() is None


def test_an_offer_whose_leg_never_starts_is_refused(world: World):
    world.sink.have = None
    world.connect()
    step(world)
    world.receiver.expire(RESUME_S)
    step(world)
    assert world.senders[0].reason == "the receiving leg has not started"
    assert not world.sink.breaks


def test_both_ends_give_up_when_the_connection_stays_away(world: World):
    world.connect()
    step(world)
    (sender,) = world.senders
    world.now = 5.0
    world.cut()
    world.notice()
    assert sender.next_deadline() == 15.0
    assert sender.expire(14.9) == []
    assert sender.phase is Phase.WAITING
    sender.expire(15.0)
    assert sender.reason == "not accepted within 10 s: cut"
    assert world.receiver.next_deadline() == 15.0
    world.receiver.expire(15.0)
    assert world.sink.breaks == {sender.offer.stream: "not resumed within 10 s"}


def test_breaking_without_progress_ends(world: World):
    (sender,) = world.senders
    for _ in range(MAX_BREAKS + 1):
        assert not sender.ended
        world.connect()
        step(world)
        world.cut()
        world.notice()
    assert "broken 6 times without progress" in sender.reason


def test_a_receiver_that_stops_acknowledging_is_given_up(world: World):
    world.connect()
    step(world)
    (sender,) = world.senders
    world.push(sender)
    world.write(sender)
    assert sender.next_deadline() == STALL_S
    assert sender.expire(STALL_S) == [
        frames.Cancel(sender.offer.stream, "nothing acknowledged in 60 s")
    ]


def test_the_window_holds_the_sender_back():
    world = World([make_offer()])
    (sender,) = world.senders
    world.connect()
    step(world)
    left = len(world.todo[id(sender)])
    for _ in range(30):
        world.push(sender)
        world.write(sender)
    assert len(world.todo[id(sender)]) > left - 6
    assert not sender.has_room
