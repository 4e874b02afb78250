"""Frames to bytes and back, bounds before bytes.

A frame is a preamble, a head and, for `Data` only, a body. All numbers are big-endian:

    magic 4s, version u8, kind u8, head length u32, body length u32, crc32 of body, crc32 of head

The head's checksum also covers the preamble before it, so a wrong body length is found before
the body is read. Lengths are held against caps, and counts against the bytes that are there,
before anything is allocated for them.
"""

import struct
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from zlib_ng import zlib_ng

from transport.base import Offer, SliceKey, StreamId
from transport.stream.frames import (
    MAX_BODY_BYTES,
    MAX_TOKENS,
    Accept,
    Ack,
    Again,
    Buffer,
    Cancel,
    CorruptFrame,
    Data,
    Done,
    Finish,
    Frame,
    FrameTooLarge,
    Goodbye,
    Hello,
    Kind,
    MalformedFrame,
    NotAFrame,
    Offering,
    Ping,
    Pong,
    Proof,
    Range,
    Refuse,
    Run,
    Terms,
    TruncatedFrame,
    UnknownKind,
    WrongVersion,
)

MAGIC = b"PDKV"
VERSION = 3
_MAX_NAME = 256
_MAX_REASON = 4096
_MAX_MODEL = 128 << 10
_MAX_LAYOUT = 4096
_SESSION_BYTES = 16
_BLOCK_NAME_BYTES = 16

_PREAMBLE = struct.Struct("!4sBBIIII")
PREAMBLE_BYTES = _PREAMBLE.size
_SUMMED = PREAMBLE_BYTES - 4  # the part of the preamble that the head's checksum covers

T = TypeVar("T")

# Small before the handshake; afterwards the longest are lists of ranges.
_HEAD_CAPS = dict.fromkeys(Kind, 1 << 20) | {
    Kind.OFFER: 4 << 20,  # sixteen bytes for each block of sixteen tokens
    Kind.HELLO: 1024,
    Kind.PROOF: 1024,
    Kind.TERMS: 256 << 10,
    Kind.GOODBYE: 8192,
    Kind.DATA: 64 << 10,
    Kind.PING: 64,
    Kind.PONG: 64,
}


class Preamble(NamedTuple):
    kind: Kind
    head_bytes: int
    body_bytes: int
    body_crc: int
    head_crc: int
    summed: bytes


def encode(frame: Frame) -> tuple[bytes, Buffer]:
    """(preamble and head, body) to write one after the other.

    Raises FrameTooLarge, and MalformedFrame for a value that has no place in a frame.
    """
    kind, write, _ = _TABLE[type(frame)]
    try:
        head = b"".join(write(frame))
    except struct.error as error:
        raise MalformedFrame(f"{kind.name}: {error}") from error
    body: Buffer = frame.body if isinstance(frame, Data) else b""
    known = frame.body_crc if isinstance(frame, Data) else 0
    if len(head) > _HEAD_CAPS[kind]:
        raise FrameTooLarge(f"{kind.name} head of {len(head)} bytes, cap {_HEAD_CAPS[kind]}")
    if len(body) > MAX_BODY_BYTES:
        raise FrameTooLarge(f"body of {len(body)} bytes, cap {MAX_BODY_BYTES}")
    body_crc = zlib_ng.crc32(body) if known is None else known
    summed = _PREAMBLE.pack(MAGIC, VERSION, kind, len(head), len(body), body_crc, 0)
    summed = summed[:_SUMMED]
    crc = zlib_ng.crc32(head, zlib_ng.crc32(summed))
    return summed + crc.to_bytes(4, "big") + head, body


def parse_preamble(data: bytes) -> Preamble:
    """Read PREAMBLE_BYTES bytes. Raises FrameError; allocates nothing the frame asks for."""
    if len(data) != PREAMBLE_BYTES:
        raise TruncatedFrame(f"preamble of {len(data)} bytes, wanted {PREAMBLE_BYTES}")
    magic, version, number, head_bytes, body_bytes, body_crc, head_crc = _PREAMBLE.unpack(data)
    if magic != MAGIC:
        raise NotAFrame(f"starts with {magic!r}, not {MAGIC!r}")
    if version != VERSION:
        raise WrongVersion(f"protocol version {version} there, {VERSION} here")
    if number not in _BY_KIND:
        raise UnknownKind(f"frame kind {number}")
    kind = Kind(number)
    if head_bytes > _HEAD_CAPS[kind]:
        raise FrameTooLarge(f"{kind.name} head of {head_bytes} bytes, cap {_HEAD_CAPS[kind]}")
    if body_bytes > (MAX_BODY_BYTES if kind is Kind.DATA else 0):
        raise FrameTooLarge(f"{kind.name} body of {body_bytes} bytes")
    return Preamble(kind, head_bytes, body_bytes, body_crc, head_crc, data[:_SUMMED])


def parse_head(preamble: Preamble, data: bytes) -> Frame:
    """The frame without its body. Raises FrameError."""
    if len(data) != preamble.head_bytes:
        raise TruncatedFrame(f"head of {len(data)} bytes, wanted {preamble.head_bytes}")
    if zlib_ng.crc32(data, zlib_ng.crc32(preamble.summed)) != preamble.head_crc:
        raise CorruptFrame(f"{preamble.kind.name} head does not match its checksum")
    head = _Head(data)
    frame: Frame = _BY_KIND[preamble.kind](head)
    head.end()
    return frame


def check_body(preamble: Preamble, body: Buffer) -> None:
    """Raises TruncatedFrame or CorruptFrame."""
    if len(body) != preamble.body_bytes:
        raise TruncatedFrame(f"body of {len(body)} bytes, wanted {preamble.body_bytes}")
    if zlib_ng.crc32(body) != preamble.body_crc:
        raise CorruptFrame("body does not match its checksum")


# ------------------------------------------------------------------ heads, field by field

_U32 = struct.Struct("!I")
_U64 = struct.Struct("!Q")
_SESSION = struct.Struct(f"!{_SESSION_BYTES}s")
_BLOCK = struct.Struct(f"!{_BLOCK_NAME_BYTES}s")
_RUN = struct.Struct("!iI")
_RANGE = struct.Struct("!H8sII")
_DATA = struct.Struct("!H8sIIHHIBBI")


class _Head:
    """Reads fields off a head; every read is checked against what is left."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, form: struct.Struct) -> tuple[Any, ...]:
        if self._at + form.size > len(self._data):
            raise TruncatedFrame(f"head ends inside a field at byte {self._at}")
        values = form.unpack_from(self._data, self._at)
        self._at += form.size
        return values

    def table(self, form: struct.Struct) -> list[tuple[Any, ...]]:
        (count,) = self.take(_U32)
        if count * form.size > len(self._data) - self._at:
            raise TruncatedFrame(f"head declares {count} entries and has no room for them")
        return [self.take(form) for _ in range(count)]

    def raw(self, cap: int) -> bytes:
        (size,) = self.take(_U32)
        if size > cap:
            raise FrameTooLarge(f"field of {size} bytes, cap {cap}")
        if size > len(self._data) - self._at:
            raise TruncatedFrame(f"head ends inside a field at byte {self._at}")
        self._at += size
        return self._data[self._at - size : self._at]

    def text(self, cap: int) -> str:
        try:
            return self.raw(cap).decode()
        except UnicodeDecodeError as error:
            raise MalformedFrame("text that is not UTF-8") from error

    def stream(self) -> StreamId:
        return StreamId(self.text(_MAX_NAME), self.take(_U32)[0], self.take(_U32)[0])

    def end(self) -> None:
        if self._at != len(self._data):
            raise MalformedFrame(f"{len(self._data) - self._at} bytes after the last field")


def _raw(data: bytes, cap: int) -> bytes:
    if len(data) > cap:
        raise FrameTooLarge(f"field of {len(data)} bytes, cap {cap}")
    return _U32.pack(len(data)) + data


def _text(text: str, cap: int) -> bytes:
    return _raw(text.encode(), cap)


def _sized(data: bytes, size: int) -> bytes:
    return _checked(data, lambda d: len(d) == size)


def _reason(text: str) -> bytes:
    return _raw(text.encode()[:_MAX_REASON].decode(errors="ignore").encode(), _MAX_REASON)


def _stream(stream: StreamId) -> bytes:
    return _text(stream.request, _MAX_NAME) + _U32.pack(stream.source) + _U32.pack(stream.target)


def _part(name: str) -> bytes:
    data = name.encode()
    if not 0 < len(data) <= 8 or b"\0" in data:
        raise MalformedFrame(f"part {name!r}")
    return data


def _read_part(data: bytes) -> str:
    try:
        return _checked(data.rstrip(b"\0").decode("ascii"), lambda name: "\0" not in name and name)
    except UnicodeDecodeError as error:
        raise MalformedFrame(f"part {data!r}") from error


def _checked(value: T, good: Callable[[T], object]) -> T:
    if not good(value):
        raise MalformedFrame(f"{value!r} is out of bounds")
    return value


def _range(layer: int, part: str, start: int, stop: int) -> bytes:
    return _RANGE.pack(layer, _part(part), start, stop)


def _read_range(layer: int, part: bytes, start: int, stop: int) -> Range:
    _checked((start, stop), lambda r: r[0] < r[1] <= MAX_TOKENS)
    return layer, _read_part(part), start, stop


def _write_offer(frame: Offering) -> list[bytes]:
    offer = frame.offer
    return [
        _stream(offer.stream),
        _U32.pack(offer.start),
        _U32.pack(offer.stop),
        _U32.pack(offer.slices_per_token),
        _text(offer.cache_salt, _MAX_NAME),
        _U32.pack(frame.attempt),
        _U32.pack(len(offer.blocks)),
        *(_BLOCK.pack(_sized(name, _BLOCK_NAME_BYTES)) for name in offer.blocks),
    ]


def _read_offer(head: _Head) -> Offering:
    stream = head.stream()
    start, stop, slices = head.take(_U32)[0], head.take(_U32)[0], head.take(_U32)[0]
    _checked((start, stop), lambda r: r[0] <= r[1] <= MAX_TOKENS)
    _checked(slices, lambda n: 0 < n <= 1 << 16)
    salt, attempt = head.text(_MAX_NAME), head.take(_U32)[0]
    return Offering(
        Offer(
            stream=stream,
            start=start,
            stop=stop,
            slices_per_token=slices,
            cache_salt=salt,
            blocks=tuple(name for (name,) in head.table(_BLOCK)),
        ),
        attempt,
    )


def _write_accept(frame: Accept) -> list[bytes]:
    return [
        _stream(frame.stream),
        _U32.pack(frame.attempt),
        _U32.pack(frame.have),
        _U32.pack(len(frame.received)),
        *(_range(*r) for r in frame.received),
    ]


def _read_accept(head: _Head) -> Accept:
    return Accept(
        head.stream(),
        head.take(_U32)[0],
        head.take(_U32)[0],
        tuple(_read_range(*r) for r in head.table(_RANGE)),
    )


def _write_data(frame: Data) -> list[bytes]:
    key = frame.key
    return [
        _stream(frame.stream),
        _DATA.pack(
            key.layer,
            _part(key.part),
            key.start,
            key.stop,
            *frame.heads,
            frame.head_size,
            frame.itemsize,
            frame.codec_version,
            frame.raw_bytes,
        ),
        _text(frame.codec, 32),
        _U32.pack(len(frame.positions)),
        *(_RUN.pack(*run) for run in frame.positions),
    ]


def _read_data(head: _Head) -> Data:
    stream = head.stream()
    layer, part, start, stop, low, high, size, itemsize, version, raw = head.take(_DATA)
    _, name, _, _ = _read_range(layer, part, start, stop)
    frame = Data(
        stream=stream,
        key=SliceKey(layer, name, start, stop),
        heads=_checked((low, high), lambda r: r[0] < r[1]),
        head_size=_checked(size, lambda n: n > 0),
        itemsize=_checked(itemsize, lambda n: n in (1, 2, 4)),
        codec_version=version,
        codec=head.text(32),
        positions=tuple(head.table(_RUN)),
    )
    if frame.raw_bytes != raw or raw > MAX_BODY_BYTES:
        raise MalformedFrame(f"raw length {raw} for a piece of shape {frame.shape}")
    held = sum(count for _, count in frame.positions)
    if held > stop - start:
        raise MalformedFrame("there is more than one position for each token")
    if held < stop - start:
        _check_kept(frame.positions, start, stop)
    for first, count in frame.positions:
        _checked((first, count), lambda run: run[1] > 0 and run[0] + run[1] <= 1 << 31)
    return frame


def _check_kept(runs: tuple[Run, ...], start: int, stop: int) -> None:
    """A piece that lacks tokens says by their positions which ones it holds."""
    at = start
    for first, count in runs:
        if first < at or first + count > stop:
            raise MalformedFrame(f"positions {first} to {first + count} of [{start}, {stop})")
        at = first + count


def _write_keys(frame: Ack | Again) -> list[bytes]:
    return [_stream(frame.stream), _U32.pack(len(frame.keys)), *(_range(*k) for k in frame.keys)]


def _read_keys(head: _Head) -> tuple[StreamId, tuple[SliceKey, ...]]:
    stream = head.stream()
    return stream, tuple(SliceKey(*_read_range(*entry)) for entry in head.table(_RANGE))


# type: (kind, writer, reader)
_TABLE: dict[type, tuple[Kind, Callable[..., list[bytes]], Callable[[_Head], Frame]]] = {
    Hello: (
        Kind.HELLO,
        lambda f: [
            _text(f.name, _MAX_NAME),
            _raw(f.nonce, 64),
            _sized(f.session, _SESSION_BYTES),
        ],
        lambda h: Hello(h.text(_MAX_NAME), h.raw(64), h.take(_SESSION)[0]),
    ),
    Terms: (
        Kind.TERMS,
        lambda f: [_text(f.model, _MAX_MODEL), _text(f.layout, _MAX_LAYOUT), _U64.pack(f.window)],
        lambda h: Terms(h.text(_MAX_MODEL), h.text(_MAX_LAYOUT), h.take(_U64)[0]),
    ),
    Proof: (Kind.PROOF, lambda f: [_raw(f.digest, 64)], lambda h: Proof(h.raw(64))),
    Goodbye: (
        Kind.GOODBYE,
        lambda f: [_reason(f.reason)],
        lambda h: Goodbye(h.text(_MAX_REASON)),
    ),
    Offering: (Kind.OFFER, _write_offer, _read_offer),
    Accept: (Kind.ACCEPT, _write_accept, _read_accept),
    Refuse: (
        Kind.REFUSE,
        lambda f: [_stream(f.stream), _reason(f.reason)],
        lambda h: Refuse(h.stream(), h.text(_MAX_REASON)),
    ),
    Data: (Kind.DATA, _write_data, _read_data),
    Ack: (Kind.ACK, _write_keys, lambda h: Ack(*_read_keys(h))),
    Again: (Kind.AGAIN, _write_keys, lambda h: Again(*_read_keys(h))),
    Finish: (Kind.FINISH, lambda f: [_stream(f.stream)], lambda h: Finish(h.stream())),
    Done: (Kind.DONE, lambda f: [_stream(f.stream)], lambda h: Done(h.stream())),
    Cancel: (
        Kind.CANCEL,
        lambda f: [_stream(f.stream), _reason(f.reason)],
        lambda h: Cancel(h.stream(), h.text(_MAX_REASON)),
    ),
    Ping: (Kind.PING, lambda f: [_U64.pack(f.stamp)], lambda h: Ping(h.take(_U64)[0])),
    Pong: (Kind.PONG, lambda f: [_U64.pack(f.stamp)], lambda h: Pong(h.take(_U64)[0])),
}
_BY_KIND = {kind: read for kind, _, read in _TABLE.values()}
