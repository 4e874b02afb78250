"""How a slice is coded for the wire: one table of named, versioned codecs.

A codec is chosen per stream by name. Both ends look it up in CODECS; a name or a version that the
receiver does not have breaks the stream, it never guesses.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import zstandard

from transport.base import Slice, SliceKey, StreamId
from transport.stream.frames import MAX_BODY_BYTES, Buffer, Data, expand_runs, runs_of

_LEVEL = 1
_SAMPLE_BYTES = 16 << 10
_WORTH_IT = 0.95  # a plane that zstd cannot bring below this is stored as it is
_DTYPES: dict[int, np.dtype] = {1: np.dtype("u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}


class CodecError(ValueError):
    """The coded bytes are not what the frame declares, or the codec is not known here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """`encode` takes a flat array of unsigned integers, `decode` (bytes, count, dtype)."""

    version: int
    encode: Callable[[np.ndarray], bytes]
    decode: Callable[[Buffer, int, np.dtype], np.ndarray]


def encode_slice(stream: StreamId, piece: Slice, codec: str) -> Data:
    """A frame of `piece`; copies, so the piece may change afterwards. Raises ValueError."""
    tokens, heads, size = piece.data.shape
    if tokens != piece.key.stop - piece.key.start or len(piece.positions) != tokens:
        raise ValueError(f"{piece.key}: data of {tokens} tokens, {len(piece.positions)} positions")
    if piece.data.nbytes > MAX_BODY_BYTES:
        raise ValueError(f"{piece.key}: {piece.data.nbytes} bytes in one piece")
    dtype = _DTYPES.get(piece.data.dtype.itemsize)
    if dtype is None or piece.data.dtype.kind != "u":
        raise ValueError(f"{piece.key}: {piece.data.dtype}, must be bits as uint8, 16 or 32")
    chosen = CODECS[codec]
    flat = np.ascontiguousarray(piece.data).reshape(-1).astype(dtype, copy=False)
    return Data(
        stream=stream,
        key=piece.key,
        heads=(0, heads),
        head_size=size,
        itemsize=dtype.itemsize,
        positions=runs_of(piece.positions),
        codec=codec,
        codec_version=chosen.version,
        body=chosen.encode(flat),
    )


def decode_slice(frame: Data) -> Slice:
    """Exactly what was encoded. Raises CodecError."""
    chosen = CODECS.get(frame.codec)
    if chosen is None:
        raise CodecError(f"codec {frame.codec!r} is not known here, only {', '.join(CODECS)}")
    if chosen.version != frame.codec_version:
        raise CodecError(
            f"codec {frame.codec} version {frame.codec_version} there, {chosen.version} here"
        )
    if frame.heads[0] != 0:
        raise CodecError(f"heads {frame.heads}: only whole token rows are taken")
    count = frame.raw_bytes // frame.itemsize
    flat = chosen.decode(frame.body, count, _DTYPES[frame.itemsize])
    return Slice(
        key=SliceKey(*frame.key),
        positions=expand_runs(frame.positions),
        data=flat.reshape(frame.shape),
    )


def _raw_encode(flat: np.ndarray) -> bytes:
    return flat.tobytes()


def _raw_decode(body: Buffer, count: int, dtype: np.dtype) -> np.ndarray:
    if len(body) != count * dtype.itemsize:
        raise CodecError(f"{len(body)} raw bytes for {count} elements of {dtype}")
    return np.frombuffer(body, dtype)


def _pack(plane: np.ndarray) -> tuple[bool, Buffer]:
    """(coded?, bytes) of a byte plane; a sample of its middle decides whether to try."""
    middle = max(0, len(plane) // 2 - _SAMPLE_BYTES // 2)
    compressor = zstandard.ZstdCompressor(level=_LEVEL)
    sample = plane[middle : middle + _SAMPLE_BYTES]
    if len(compressor.compress(sample.data)) <= _WORTH_IT * len(sample):
        coded = compressor.compress(plane.data)
        if len(coded) < len(plane):
            return True, coded
    return False, plane.data


def _unpack(coded: bool, body: Buffer, size: int) -> np.ndarray:
    """The inverse of `_pack`; `size` is known from the shape and never taken from `body`."""
    if not coded:
        return _raw_decode(body, size, _DTYPES[1])
    try:
        # zstd would allocate what its own header declares, so that is compared first.
        declared = zstandard.frame_content_size(body)
        if declared != size:
            raise CodecError(f"zstd declares {declared} bytes for a plane of {size}")
        plain = zstandard.ZstdDecompressor().decompress(
            body, max_output_size=size, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise CodecError(f"zstd: {error}") from error
    if len(plain) != size:
        raise CodecError(f"zstd gave {len(plain)} bytes for a plane of {size}")
    return np.frombuffer(plain, np.uint8)


def _zstd_encode(flat: np.ndarray) -> bytes:
    """Flags, length of the first plane, planes.

    bfloat16 is sign, 8 bits of exponent, 7 of mantissa. Rotated left by one bit the exponent is
    the high byte: the only part of KV that repeats itself. Other widths are one plane.
    """
    if flat.itemsize == 2:
        turned = (flat << 1) | (flat >> 15)
        planes = [(turned >> 8).astype(np.uint8), turned.astype(np.uint8)]
    else:
        planes = [flat.view(np.uint8)]
    packed = [_pack(plane) for plane in planes]
    flags = sum(coded << bit for bit, (coded, _) in enumerate(packed))
    head = bytes([flags]) + len(packed[0][1]).to_bytes(4, "little")
    return b"".join([head, *(data for _, data in packed)])


def _zstd_decode(body: Buffer, count: int, dtype: np.dtype) -> np.ndarray:
    if len(body) < 5 or body[0] > 3:
        raise CodecError("zstd piece without its head")
    view = memoryview(body)
    flags, split = view[0], 5 + int.from_bytes(view[1:5], "little")
    if split > len(view):
        raise CodecError("zstd piece shorter than its first plane")
    if dtype.itemsize != 2:
        if split != len(view):
            raise CodecError("bytes after the only plane")
        return _unpack(bool(flags & 1), view[5:], count * dtype.itemsize).view(dtype)
    high = _unpack(bool(flags & 1), view[5:split], count)
    low = _unpack(bool(flags & 2), view[split:], count)
    turned = high.astype(dtype) << 8
    turned |= low
    return (turned >> 1) | (turned << 15)


CODECS = {
    "raw": Codec(version=1, encode=_raw_encode, decode=_raw_decode),
    "zstd": Codec(version=1, encode=_zstd_encode, decode=_zstd_decode),
}
