"""Bytes that no peer of ours would send, by the million: nothing but named errors comes of them.

    python -m tests.transport.stream.fuzz --inputs 1000000

Inputs come in rounds. A round is one machine (a receiver, a sender, either end of a handshake) and
`PER_ROUND` inputs, so that a later one meets the state an earlier one left; it depends on nothing
but its seed and number, by which a failure is named and tried again.
"""

import argparse
import dataclasses
import random
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

import numpy as np

from tests.transport.stream.stream_world import fed, sealed, wire_bytes
from transport.base import Offer, Slice, SliceKey, StreamId, StreamStats
from transport.codecs.table import decode_slice, encode_slice
from transport.stream import frames, framing
from transport.stream.frames import MAX_BODY_BYTES, Data, FrameError
from transport.stream.framing import PREAMBLE_BYTES
from transport.stream.handshake import HANDSHAKE_KINDS, Dialler, HandshakeRefused, Listener
from transport.stream.reader import Arrived, FrameReader
from transport.stream.receiver import Receiver, Verdict
from transport.stream.sender import Sender

PER_ROUND = 50
WINDOW = 1 << 16
RESUME_S = 5.0
ROUND_S = 20  # a round takes some milliseconds; one that takes so long hangs
MOST_FRAMES = 10_000  # that one input may make a machine say

STREAMS = [StreamId(name, 0, 1) for name in ("a", "b", "c")]
KEYS = [SliceKey(layer, part, at, at + 4) for layer in (0, 1) for part in "kv" for at in (0, 4)]


def offer_of(stream: StreamId) -> Offer:
    return Offer(
        stream=stream,
        start=0,
        stop=8,
        slices_per_token=4,
        cache_salt="",
        blocks=(b"0" * 16,),
    )


def _piece(stream: StreamId, key: SliceKey) -> Data:
    tokens = key.stop - key.start
    data = np.arange(tokens * 8, dtype=np.uint16).reshape(tokens, 2, 4)
    positions = np.arange(key.start, key.stop, dtype=np.int32)
    return encode_slice(stream, Slice(key=key, positions=positions, data=data), "raw")


PIECES = {(stream, key): _piece(stream, key) for stream in STREAMS for key in KEYS}
HELLO = frames.Hello("peer", b"n" * 16, b"s" * 16)
TERMS = frames.Terms("model", "layout", WINDOW)
_ANY = [HELLO, frames.Proof(b"d" * 32), TERMS, frames.Goodbye("bye"), frames.Ping(7)]
TO_RECEIVER = [
    *(frames.Offering(offer_of(stream), n) for stream in STREAMS for n in (1, 2)),
    *PIECES.values(),
    *(frames.Finish(stream) for stream in STREAMS),
    frames.Cancel(STREAMS[0], "enough"),
    frames.Refuse(STREAMS[1], "no"),
    *_ANY,
]
TO_SENDER = [
    *(frames.Accept(stream, n, have) for stream in STREAMS for n in (1, 2) for have in (0, 4)),
    *(frames.Accept(stream, 3, 0, ((0, "k", 0, 8), (1, "v", 4, 8))) for stream in STREAMS),
    *(frames.Ack(stream, (key,)) for stream in STREAMS for key in KEYS),
    *(frames.Again(stream, tuple(KEYS[:2])) for stream in STREAMS),
    *(frames.Done(stream) for stream in STREAMS),
    frames.Refuse(STREAMS[0], "no"),
    frames.Cancel(STREAMS[1], "enough"),
    frames.Pong(7),
    PIECES[STREAMS[0], KEYS[0]],
    *_ANY,
]


class Found(Exception):
    """What the fuzzing is for; the text says how to see it again."""


# ------------------------------------------------------------------ the machines


class ToReceiver:
    """After the handshake: two connections, and a thread that decodes when it likes."""

    corpus = tuple(wire_bytes(frame) for frame in TO_RECEIVER)

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._have = rng.choice([0, 0, 3, 8, None])
        self.receiver = Receiver(self, window_bytes=WINDOW, resume_s=RESUME_S)
        self._decoding: list[tuple[int, Arrived, Data]] = []
        self._conns = 0
        self._reader = self._connect()
        self.now = 0.0

    def feed(self, data: bytes, chunk: int) -> None:
        """Raises FrameError when the connection is of no more use."""
        rng, conn = self._rng, self._conns
        self.now += 0.001
        try:
            for arrived in fed(self._reader, data, chunk):
                frame = arrived.frame
                if not isinstance(frame, Data):
                    self.receiver.handle(conn, frame, self.now)
                elif arrived.body is not None:
                    self._decoding.append((conn, arrived, frame))
            if rng.random() < 0.02:
                raise FrameError("cut")
        except FrameError:
            self._drop(self._reader)
            self._reader = self._connect()
        while self._decoding and rng.random() < 0.7:
            self._decode(rng.randrange(len(self._decoding)))
        if self._have is None and rng.random() < 0.1:
            self._have = 0
            self.receiver.ask_again(self.now)
        said = sum(len(self.receiver.take(ready)) for ready in self.receiver.ready())
        assert said < MOST_FRAMES, said
        assert self.receiver.held_bytes <= 2 * WINDOW + MAX_BODY_BYTES
        assert len(self._reader._head) <= max(framing._HEAD_CAPS.values())

    def end(self) -> None:
        """All goes, and nothing is left."""
        self._drop(self._reader)
        while self._decoding:
            self._decode(0)
        self.receiver.expire(self.now + RESUME_S)
        assert not self.receiver.streams
        assert self.receiver.held_bytes == 0
        assert not self.receiver._held
        assert self.receiver.next_deadline() is None

    def _connect(self) -> FrameReader:
        self._conns += 1
        conn = self._conns
        self.receiver.connected(conn, b"s" * 16)
        return FrameReader(lambda data, nbytes: self._admit(conn, data, nbytes))

    def _admit(self, conn: int, data: Data, nbytes: int) -> bool:
        return self.receiver.admit(conn, data, nbytes, self.now) is Verdict.TAKE

    def _drop(self, reader: FrameReader) -> None:
        if reader.unread is not None:
            self.receiver.dropped(self._conns, *reader.unread)
        self.receiver.disconnected(self._conns, self.now)

    def _decode(self, at: int) -> None:
        conn, arrived, data = self._decoding.pop(at)
        error: Exception | None = None
        try:
            arrived.check()
            decode_slice(dataclasses.replace(data, body=arrived.body or b""))
        except (FrameError, ValueError) as wrong:
            error = wrong
        self.receiver.put(conn, data, arrived.preamble.body_bytes, error, self.now)

    # The sink's side.

    def offered(self, offer: Offer) -> int | None:
        return self._have

    def put(self, stream: StreamId, piece: Slice) -> None:
        raise AssertionError("the driver puts, not the receiver")

    def completed(self, stream: StreamId, stats: StreamStats) -> None:
        assert stats.bytes_raw >= 0

    def broken(self, stream: StreamId, reason: str) -> None:
        assert reason


class ToSender:
    """Three streams, one of them early, with pieces queued and under way."""

    corpus = tuple(wire_bytes(frame) for frame in TO_SENDER)

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.now = 0.0
        self.sender = Sender(connections=2, resume_s=RESUME_S)
        self._conns = 0
        for at, stream in enumerate(STREAMS):
            out = self.sender.open(offer_of(stream), 0.0, token_bytes=64, early=at == 0)
            for key in KEYS:
                if rng.random() < 0.8:
                    self.sender.push(PIECES[stream, key])
            if rng.random() < 0.5:
                self.sender.finish(out, 0.0)
        self._dial()
        self._reader = self._hearer()

    def feed(self, data: bytes, chunk: int) -> None:
        rng, sender = self._rng, self.sender
        self.now += 0.001
        conn = sender.connections[0] if sender.connections else None
        try:
            for arrived in fed(self._reader, data, chunk):
                sender.handle(conn, arrived.frame, self.now)
            if rng.random() < 0.02:
                raise FrameError("cut")
        except FrameError as error:
            sender.disconnected(conn, str(error), self.now)
            self._reader = self._hearer()
        sender.expire(self.now)
        self._dial()
        for conn in sender.connections:
            assert len(sender.control(conn)) < MOST_FRAMES
            if rng.random() < 0.5:
                sender.next_data(conn, self.now)
        sender.changed()
        outs = sender.streams.values()
        assert sender._flying_bytes == sum(len(o.unacked[k].body) for o in outs for k in o.flying)
        for out in outs:
            assert sorted([*out.queue, *out.flying, *out.uncertain]) == sorted(out.unacked)
            assert out.queued_bytes == sum(len(out.unacked[key].body) for key in out.queue)
        assert sender.estimate(None).queue_bytes >= 0

    def end(self) -> None:
        for conn in self.sender.connections:
            self.sender.disconnected(conn, "gone", self.now)
        for _ in range(1000):
            due = self.sender.next_deadline()
            if due is None:
                break
            self.now = max(self.now, due)
            self.sender.expire(self.now)
            for _ in range(self.sender.dials.due(self.now)):
                self.sender.undialled("nobody is there", self.now)
        assert not self.sender.streams
        assert self.sender._flying_bytes == 0
        assert self.sender._goodput.flying == 0

    def _dial(self) -> None:
        for _ in range(self.sender.dials.due(self.now)):
            self._conns += 1
            self.sender.connected(self._conns, WINDOW, None, self.now)

    def _hearer(self) -> FrameReader:
        return FrameReader(lambda data, nbytes: False)


class _ToHandshake:
    """One end of a handshake at a time; nobody here knows the secret, so nobody gets in."""

    corpus = tuple(wire_bytes(frame) for frame in _ANY)

    def __init__(self, rng: random.Random) -> None:
        self._end, self._reader = self._new()

    def feed(self, data: bytes, chunk: int) -> None:
        try:
            for arrived in fed(self._reader, data, chunk):
                self._end.handle(arrived.frame)
        except (FrameError, HandshakeRefused):
            self._end, self._reader = self._new()
        assert self._end.terms is None
        assert len(self._reader._head) <= 256 << 10

    def end(self) -> None:
        assert self._reader.unread is None

    def _new(self) -> tuple[Dialler | Listener, FrameReader]:
        return self._machine(), FrameReader(lambda data, nbytes: True, HANDSHAKE_KINDS)

    def _machine(self) -> Dialler | Listener:
        raise NotImplementedError


class ToDialler(_ToHandshake):
    def _machine(self) -> Dialler:
        return Dialler(HELLO, b"secret", TERMS)


class ToListener(_ToHandshake):
    def _machine(self) -> Listener:
        return Listener("main-0", b"m" * 16, b"secret", TERMS)


TARGETS: list[Callable[[random.Random], ToReceiver | ToSender | _ToHandshake]] = [
    ToReceiver,
    ToReceiver,
    ToSender,
    ToSender,
    ToDialler,
    ToListener,
]


# ------------------------------------------------------------------ the bytes


def _split(raw: bytes) -> tuple[int, bytearray, bytes]:
    """Kind, head and body of a whole, valid frame."""
    preamble = framing.parse_preamble(raw[:PREAMBLE_BYTES])
    at = PREAMBLE_BYTES + preamble.head_bytes
    return preamble.kind, bytearray(raw[PREAMBLE_BYTES:at]), raw[at:]


def _noise(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    return rng.randbytes(rng.randrange(200))


def _valid(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    return b"".join(rng.choices(corpus, k=rng.randrange(1, 6)))


def _flipped(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    raw = bytearray(_valid(rng, corpus))
    for _ in range(rng.randrange(1, 4)):
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    return bytes(raw)


def _truncated(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    raw = _valid(rng, corpus)
    return raw[: rng.randrange(len(raw))]


def _spliced(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    one, other = rng.choice(corpus), rng.choice(corpus)
    return one[: rng.randrange(len(one))] + other[rng.randrange(len(other)) :]


def _resealed(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    """Valid to the checksums, and wrong within."""
    kind, head, body = _split(rng.choice(corpus))
    for _ in range(rng.randrange(1, 4)):
        match rng.randrange(4):
            case 0 if head:
                head[rng.randrange(len(head))] = rng.choice([0, 1, 127, 128, 255])
            case 1 if head:
                head[rng.randrange(len(head))] = rng.randrange(256)
            case 2 if len(head) > 4:
                at = rng.randrange(len(head) - 3)
                head[at : at + 4] = rng.choice([0, 1, 4, 8, 1 << 28, 2**31, 2**32 - 1]).to_bytes(
                    4, "big"
                )
            case _:
                at = rng.randrange(len(head) + 1)
                head[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
    if rng.random() < 0.2:
        kind = rng.choice(list(frames.Kind))
    if rng.random() < 0.2:
        body = rng.randbytes(rng.randrange(80))
    return sealed(kind, bytes(head), body, good_body=rng.random() < 0.8) + rng.choice(corpus)


def _promising(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    """A preamble that declares anything, with a right magic."""
    lengths = [0, 1, 64, 1024, 1 << 16, 1 << 20, 1 << 22, 1 << 23, 1 << 31]
    kind, head, body = rng.randrange(18), rng.choice(lengths), rng.choice(lengths)
    version = framing.VERSION if rng.random() < 0.9 else rng.randrange(256)
    fields = (framing.MAGIC, version, kind, head, body, rng.getrandbits(32), rng.getrandbits(32))
    return struct.pack("!4sBBIIII", *fields) + rng.randbytes(rng.choice([0, 10, 100, 2000]))


def _large(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    """A whole frame whose body is declared, at most, and whose head is longer than the scratch."""
    stream = rng.choice(STREAMS)
    if rng.random() < 0.5:
        keys = tuple(KEYS * (rng.choice([4096, 3640, 3641]) // len(KEYS)))
        return wire_bytes(frames.Ack(stream, keys))
    size = rng.choice([1, 100, WINDOW, MAX_BODY_BYTES])
    data = dataclasses.replace(
        PIECES[stream, rng.choice(KEYS)], heads=(0, 1), head_size=max(1, size // 8)
    )
    _, head, _ = _split(wire_bytes(dataclasses.replace(data, body=b"")))
    return sealed(frames.Kind.DATA, bytes(head), declared=size)


MAKERS = [
    *([_valid] * 6),
    *([_flipped] * 3),
    *([_resealed] * 6),
    *([_truncated, _spliced, _noise, _promising] * 2),
]
RARE = [_large]  # costs as much as a hundred others


# ------------------------------------------------------------------ rounds


def run_round(seed: int, number: int) -> int:
    """How many inputs were tried. Raises Found."""
    rng = random.Random(f"{seed}/{number}")
    target = TARGETS[number % len(TARGETS)](rng)
    data, maker = b"", "none"
    try:
        for _ in range(PER_ROUND):
            make = rng.choice(MAKERS if rng.random() > 0.002 else RARE)
            maker, data = make.__name__, make(rng, target.corpus)
            target.feed(
                data, rng.choice([1 << 20, 1 << 20, 64, 7, 1]) if len(data) < 4096 else 1 << 20
            )
        maker = "end"
        target.end()
    except Exception as error:
        name = type(target).__name__
        again = f"python -m tests.transport.stream.fuzz --seed {seed} --round {number}"
        raise Found(f"{name}, {maker}, {data[:200].hex()}\n{again}") from error
    return PER_ROUND


def run(inputs: int, seed: int) -> Iterator[int]:
    """Inputs tried so far, round by round. Raises Found."""

    def hangs(signum: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"a round took more than {ROUND_S} s")

    before = signal.signal(signal.SIGALRM, hangs)
    try:
        tried = number = 0
        while tried < inputs:
            signal.alarm(ROUND_S)
            tried += run_round(seed, number)
            number += 1
            yield tried
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--round", type=int, help="only this one")
    options = parser.parse_args()
    began, tried = time.monotonic(), 0
    try:
        if options.round is not None:
            tried = run_round(options.seed, options.round)
        else:
            for tried in run(options.inputs, options.seed):
                if tried % 100_000 == 0:
                    print(f"{tried} inputs, {time.monotonic() - began:.0f} s", flush=True)
    except Found:
        traceback.print_exc()
        return 1
    print(f"{tried} inputs in {time.monotonic() - began:.0f} s, seed {options.seed}: all named")
    return 0


if __name__ == "__main__":
    sys.exit(main())
