"""The reader: the same frames however they are cut, and no memory before it is due."""

import dataclasses
import struct
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.transport.kv_helpers import make_offer
from tests.transport.stream.stream_world import fed, sealed, wire_bytes
from tests.transport.stream.test_frames import DATA, EVERY_KIND, KEY, STREAM
from transport.base import SliceKey
from transport.stream import frames, framing
from transport.stream.frames import MAX_BODY_BYTES, Data, Frame, FrameError, Kind
from transport.stream.framing import PREAMBLE_BYTES
from transport.stream.handshake import HANDSHAKE_KINDS
from transport.stream.reader import FrameReader

SCRATCH = 64 << 10
LONG_ACK = frames.Ack(STREAM, tuple(SliceKey(0, "k", at, at + 1) for at in range(5000)))
BIG = dataclasses.replace(DATA, body=bytes(range(256)) * 800)
EMPTY = dataclasses.replace(DATA, body=b"")
DATA_HEAD = wire_bytes(EMPTY)[PREAMBLE_BYTES:]
slow_is_fine = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def declared(kind: int, head: int, body: int) -> bytes:
    """A preamble and nothing behind it."""
    return struct.pack("!4sBBIIII", framing.MAGIC, framing.VERSION, kind, head, body, 0, 0)


def read(data: bytes, chunk: int | None = None, *, take: bool = True) -> list[Frame]:
    """Every frame, its body as bytes; each body is intact."""
    heard = []
    for arrived in fed(FrameReader(lambda data, nbytes: take), data, chunk):
        arrived.check()
        frame = arrived.frame
        if isinstance(frame, Data) and arrived.body is not None:
            frame = dataclasses.replace(frame, body=bytes(arrived.body))
        heard.append(frame)
    return heard


@given(
    st.lists(st.sampled_from([*EVERY_KIND, LONG_ACK, BIG, EMPTY]), max_size=12),
    st.lists(st.sampled_from([1, 2, 25, 26, 27, 100, 5000, SCRATCH - 1, SCRATCH]), min_size=1),
    st.booleans(),
)
@settings(slow_is_fine, max_examples=60)
def test_the_same_frames_however_they_are_cut(sent: list[Frame], chunks: list[int], take: bool):
    data = b"".join(map(wire_bytes, sent))
    wanted = [dataclasses.replace(f, body=b"") if isinstance(f, Data) else f for f in sent]
    reader = FrameReader(lambda data, nbytes: take)
    heard, at, turn = [], 0, 0
    while at < len(data):
        chunk = data[at : at + max(chunks[turn % len(chunks)], len(data) // 2000)]
        for arrived in fed(reader, chunk):
            heard.append(arrived.frame)
            if isinstance(arrived.frame, Data):
                body = sent[len(heard) - 1].body
                assert (bytes(arrived.body) if take else arrived.body) == (body if take else None)
        at, turn = at + len(chunk), turn + 1
    assert heard == wanted
    assert reader.unread is None


@pytest.mark.parametrize("short", range(-2, PREAMBLE_BYTES + 3))
def test_a_long_head_wherever_the_scratch_ends(short: int):
    """`short`: bytes of the second frame that the first filling of the scratch holds."""
    filler = b""
    while len(filler) < SCRATCH - 8000:
        filler += wire_bytes(frames.Cancel(STREAM, "x" * 4000))
    rest = SCRATCH - short - len(filler)
    one = rest // 2
    for size in (one, rest - one):
        empty = len(wire_bytes(frames.Cancel(STREAM, "")))
        filler += wire_bytes(frames.Cancel(STREAM, "x" * (size - empty)))
    assert len(filler) == SCRATCH - short
    *before, long, last = read(filler + wire_bytes(LONG_ACK) + wire_bytes(frames.Ping(1)))
    assert all(isinstance(frame, frames.Cancel) for frame in before)
    assert (long, last) == (LONG_ACK, frames.Ping(1))


def test_the_longest_offer():
    offer = dataclasses.replace(
        make_offer(), blocks=tuple(n.to_bytes(16, "big") for n in range(200_000))
    )
    assert read(wire_bytes(frames.Offering(offer, 1))) == [frames.Offering(offer, 1)]


def test_a_damaged_body_is_seen_by_who_checks_it_and_the_next_frame_is_read():
    raw = bytearray(wire_bytes(BIG))
    raw[-7] ^= 4
    damaged, after = fed(FrameReader(lambda data, nbytes: True), bytes(raw) + wire_bytes(DATA))
    with pytest.raises(frames.CorruptFrame, match="body does not match"):
        damaged.check()
    after.check()
    assert after.frame == dataclasses.replace(DATA, body=b"")


def test_before_the_handshake_only_its_kinds_are_read():
    for frame in EVERY_KIND:
        reader = FrameReader(lambda data, nbytes: True, HANDSHAKE_KINDS)
        # The head is not waited for.
        raw = wire_bytes(frame)[:PREAMBLE_BYTES]
        if framing.parse_preamble(raw).kind in HANDSHAKE_KINDS:
            assert list(fed(reader, raw)) == []
        else:
            with pytest.raises(frames.UnknownKind, match="before the handshake"):
                list(fed(reader, raw))


def test_what_is_unread_is_known_while_it_is():
    reader = FrameReader(lambda data, nbytes: True)
    raw = wire_bytes(BIG)
    assert list(fed(reader, raw[:-1])) == []
    data, nbytes = reader.unread
    assert (data.key, nbytes) == (KEY, len(BIG.body))
    assert len(list(fed(reader, raw[-1:]))) == 1
    assert reader.unread is None


# ------------------------------------------------------------ memory


@pytest.mark.parametrize("kind", Kind)
def test_sizes_at_the_caps(kind: Kind):
    cap = framing._HEAD_CAPS[kind]
    assert framing.parse_preamble(declared(kind, cap, 0)).head_bytes == cap
    with pytest.raises(frames.FrameTooLarge, match=f"cap {cap}"):
        framing.parse_preamble(declared(kind, cap + 1, 0))
    body = MAX_BODY_BYTES if kind is Kind.DATA else 0
    assert framing.parse_preamble(declared(kind, 0, body)).body_bytes == body
    with pytest.raises(frames.FrameTooLarge, match="body"):
        framing.parse_preamble(declared(kind, 0, body + 1))


@pytest.mark.parametrize("kind", Kind)
def test_a_long_head_that_is_only_promised_takes_no_memory(kind: Kind):
    reader = FrameReader(lambda data, nbytes: True)
    raw = declared(kind, framing._HEAD_CAPS[kind], MAX_BODY_BYTES if kind is Kind.DATA else 0)
    tracemalloc.start()
    try:
        assert list(fed(reader, raw + b"\0" * 30)) == []
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def sizes():
    """What the reader allocates, in bytes, beyond the empty."""
    seen: list[int] = []

    def noting(size: int = 0) -> bytearray:
        seen.append(size)
        return bytearray(size)

    def noting_body(size: int) -> memoryview:
        return memoryview(noting(size))

    patch = pytest.MonkeyPatch()
    patch.setattr("transport.stream.reader.bytearray", noting, raising=False)
    patch.setattr("transport.stream.reader.uncleared", noting_body)
    yield seen
    patch.undo()


@given(st.data())
@settings(slow_is_fine, max_examples=150)
def test_nothing_is_allocated_but_what_was_declared_and_admitted(sizes: list[int], data):
    """Whatever comes: valid pieces of any size, damaged ones, promises of the largest."""
    raw = bytearray()
    for _ in range(data.draw(st.integers(1, 5))):
        match data.draw(st.sampled_from(["piece", "promise", "frame"])):
            case "piece":
                size = data.draw(st.sampled_from([0, 1, 300, 70_000]))
                raw += wire_bytes(dataclasses.replace(DATA, body=b"x" * size))
            case "promise":
                size = data.draw(st.sampled_from([1, 1 << 20, MAX_BODY_BYTES]))
                raw += sealed(Kind.DATA, DATA_HEAD, declared=size)  # what follows is its body
            case "frame":
                raw += wire_bytes(data.draw(st.sampled_from(EVERY_KIND)))
    if data.draw(st.booleans()):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= 8
    admitted: list[int] = []
    answers = data.draw(st.lists(st.booleans(), min_size=1))

    def admit(piece: Data, nbytes: int) -> bool:
        take = answers[len(admitted) % len(answers)]
        admitted.append(nbytes if take else -1)
        return take

    sizes.clear()
    reader = FrameReader(admit)
    try:
        for _ in fed(reader, bytes(raw), data.draw(st.sampled_from([None, 1000, 26]))):
            pass
    except FrameError:
        pass
    assert sizes[:2] == [SCRATCH, 0]
    assert sizes[2:] == [nbytes for nbytes in admitted if nbytes >= 0]
