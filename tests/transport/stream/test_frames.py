"""Frames: there and back, and nothing but FrameError for anything else."""

import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transport.kv_helpers import make_offer
from tests.transport.stream.stream_world import sealed, wire_bytes
from transport.base import SliceKey, StreamId
from transport.stream import frames, framing
from transport.stream.frames import Frame, FrameError
from transport.stream.framing import PREAMBLE_BYTES

STREAM = StreamId("chat-7é", 3, 4)
KEY = SliceKey(29, "v", 16, 20)
DATA = frames.Data(
    stream=STREAM,
    key=KEY,
    heads=(0, 3),
    head_size=64,
    itemsize=2,
    positions=((16, 2), (40, 2)),
    codec="zstd",
    codec_version=1,
    body=b"coded bytes",
)
EVERY_KIND: list[Frame] = [
    frames.Hello("prefill-0", b"n" * 16, b"s" * 16),
    frames.Proof(b"d" * 32),
    frames.Terms('{"tensors":"t0"}', "token-major", 1 << 40),
    frames.Goodbye("because"),
    frames.Offering(make_offer(), 3),
    frames.Accept(STREAM, 3, 16, ((0, "k", 16, 20), (1, "latent", 16, 17))),
    frames.Refuse(STREAM, "no"),
    DATA,
    frames.Ack(STREAM, (KEY, SliceKey(0, "k", 0, 1))),
    frames.Again(STREAM, (KEY,)),
    frames.Finish(STREAM),
    frames.Done(STREAM),
    frames.Cancel(STREAM, "enough"),
    frames.Ping(1 << 50),
    frames.Pong(0),
]


def decode(data: bytes) -> Frame:
    """What a reader does: every length is asked for only after it has been checked."""
    preamble = framing.parse_preamble(data[:PREAMBLE_BYTES])
    split = PREAMBLE_BYTES + preamble.head_bytes
    frame = framing.parse_head(preamble, data[PREAMBLE_BYTES:split])
    body = data[split : split + preamble.body_bytes]
    framing.check_body(preamble, body)
    if isinstance(frame, frames.Data):
        assert frame.body == b""
        return frames.Data(
            **{f: getattr(frame, f) for f in frame.__slots__ if f != "body"}, body=body
        )
    return frame


@pytest.mark.parametrize("frame", EVERY_KIND, ids=lambda f: type(f).__name__)
def test_round_trip(frame: Frame):
    assert decode(wire_bytes(frame)) == frame


def test_every_kind_is_tested():
    kinds = {framing.parse_preamble(wire_bytes(f)[:PREAMBLE_BYTES]).kind for f in EVERY_KIND}
    assert kinds == set(frames.Kind)


@pytest.mark.parametrize("frame", EVERY_KIND, ids=lambda f: type(f).__name__)
def test_truncated_anywhere(frame: Frame):
    data = wire_bytes(frame)
    for length in range(len(data)):
        with pytest.raises(FrameError):
            decode(data[:length])


@pytest.mark.parametrize("frame", EVERY_KIND, ids=lambda f: type(f).__name__)
def test_one_bit_wrong_anywhere(frame: Frame):
    data = wire_bytes(frame)
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 1 << (at % 8)
        with pytest.raises(FrameError):
            decode(bytes(broken))


@given(st.binary(max_size=400))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_refused(data: bytes):
    with pytest.raises(FrameError):
        decode(data)


@given(st.sampled_from(frames.Kind), st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_head_behind_good_checksums(kind: frames.Kind, head: bytes):
    try:
        frame = decode(sealed(kind, head))
    except FrameError:
        return
    assert decode(wire_bytes(frame)) == frame


@given(st.sampled_from(EVERY_KIND), st.data())
@settings(max_examples=200, deadline=None)
def test_altered_heads_behind_good_checksums(frame: Frame, data):
    good = wire_bytes(frame)
    preamble = framing.parse_preamble(good[:PREAMBLE_BYTES])
    head = bytearray(good[PREAMBLE_BYTES : PREAMBLE_BYTES + preamble.head_bytes])
    for at in data.draw(st.lists(st.integers(0, len(head) - 1), min_size=1, max_size=4)):
        head[at] = data.draw(st.integers(0, 255))
    try:
        other = decode(sealed(preamble.kind, bytes(head)))
    except FrameError:
        return
    assert decode(wire_bytes(other)) == other


def test_lengths_are_refused_before_they_are_allocated():
    def preamble(kind: frames.Kind, head: int, body: int) -> bytes:
        return struct.pack("!4sBBIIII", framing.MAGIC, framing.VERSION, kind, head, body, 0, 0)

    tracemalloc.start()
    try:
        for kind in frames.Kind:
            for head, body in ((1 << 31, 0), (10, 1 << 31)):
                with pytest.raises(frames.FrameTooLarge):
                    framing.parse_preamble(preamble(kind, head, body))
        # A table that declares four thousand million entries, in a head of a few bytes.
        head = framing._stream(STREAM) + struct.pack("!I", 2**32 - 1)
        with pytest.raises(frames.TruncatedFrame, match="declares 4294967295 entries"):
            decode(sealed(frames.Kind.ACK, head))
        # A piece whose shape asks for terabytes.
        fields = (0, b"k", 0, 1 << 28, 0, 65535, 1 << 31, 4, 1, 0)
        huge = framing._stream(STREAM) + framing._DATA.pack(*fields) + framing._text("raw", 32)
        run = struct.pack("!IiI", 1, 0, 1 << 28)
        with pytest.raises(frames.MalformedFrame):
            decode(sealed(frames.Kind.DATA, huge + run))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_named_errors():
    good = wire_bytes(frames.Ping(1))
    with pytest.raises(frames.NotAFrame):
        decode(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    with pytest.raises(frames.WrongVersion, match="version 9 there"):
        decode(good[:4] + b"\x09" + good[5:])
    with pytest.raises(frames.UnknownKind):
        decode(good[:5] + b"\xee" + good[6:])
    with pytest.raises(frames.CorruptFrame):
        decode(good[:-1] + b"\xff")
    with pytest.raises(frames.CorruptFrame):
        decode(wire_bytes(DATA)[:-1] + b"!")


def test_what_cannot_be_sent_is_refused_here():
    with pytest.raises(frames.FrameTooLarge):
        framing.encode(frames.Finish(StreamId("x" * 300, 0, 1)))
    assert len(wire_bytes(frames.Cancel(STREAM, "é" * 9000))) < 5000


@given(st.lists(st.integers(0, 2**31 - 2), max_size=60))
def test_position_runs(values: list[int]):
    positions = np.array(values, np.int32)
    runs = frames.runs_of(positions)
    assert frames.expand_runs(runs).tolist() == values
    assert frames.runs_of(np.arange(5, 900)) == ((5, 895),)
