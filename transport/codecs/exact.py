"""The codecs of any width: bits as they are, and zstd."""

import threading

import numpy as np
import zstandard

from transport.base import SliceKey
from transport.codecs.codec import Codec, CodecError, Shape
from transport.stream.frames import Buffer

_LEVEL = 1
_SAMPLE_BYTES = 16 << 10
_WORTH_IT = 0.95  # a plane that zstd cannot bring below this is stored as it is


class _Local(threading.local):
    """A compressor holds half a megabyte that is worth keeping, and serves one thread at a time."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self.decompressor = zstandard.ZstdDecompressor()


_local = _Local()


def pack(plane: np.ndarray) -> tuple[bool, Buffer]:
    """(coded?, bytes) of a byte plane; a sample of its middle decides whether to try."""
    middle = max(0, len(plane) // 2 - _SAMPLE_BYTES // 2)
    sample = plane[middle : middle + _SAMPLE_BYTES]
    if len(_local.compressor.compress(sample.data)) <= _WORTH_IT * len(sample):
        coded = _local.compressor.compress(plane.data)
        if len(coded) < len(plane):
            return True, coded
    return False, plane.data


def unpack(coded: bool, body: Buffer, size: int) -> np.ndarray:
    """The inverse of `pack`; `size` is known from the shape and never taken from `body`."""
    if not coded:
        return _plain(body, np.dtype(np.uint8), size)
    try:
        # zstd would allocate what its own header declares, so that is compared first.
        declared = zstandard.frame_content_size(body)
        if declared != size:
            raise CodecError(f"zstd declares {declared} bytes for a plane of {size}")
        plain = _local.decompressor.decompress(body, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CodecError(f"zstd: {error}") from error
    if len(plain) != size:
        raise CodecError(f"zstd gave {len(plain)} bytes for a plane of {size}")
    return np.frombuffer(plain, np.uint8)


def _plain(body: Buffer, dtype: np.dtype, count: int) -> np.ndarray:
    if len(body) != count * dtype.itemsize:
        raise CodecError(f"{len(body)} raw bytes for {count} elements of {dtype}")
    return np.frombuffer(body, dtype)


def as_they_are(bits: np.ndarray) -> Buffer:
    """The bytes of C-contiguous `bits`, in place."""
    return bits.reshape(-1).view(np.uint8).data


def _raw_encode(bits: np.ndarray, key: SliceKey) -> Buffer:
    return as_they_are(bits)


def _raw_decode(body: Buffer, key: SliceKey, shape: Shape, dtype: np.dtype) -> np.ndarray:
    return _plain(body, dtype, shape[0] * shape[1] * shape[2]).reshape(shape)


def zstd_encode(bits: np.ndarray, key: SliceKey) -> Buffer:
    """Flags, length of the first plane, planes.

    bfloat16 is sign, 8 bits of exponent, 7 of mantissa. Rotated left by one bit the exponent is
    the high byte: the only part of KV that repeats itself. Other widths are one plane.
    """
    flat = bits.reshape(-1)
    if flat.itemsize == 2:
        turned = (flat << 1) | (flat >> 15)
        planes = [(turned >> 8).astype(np.uint8), turned.astype(np.uint8)]
    else:
        planes = [flat.view(np.uint8)]
    packed = [pack(plane) for plane in planes]
    flags = sum(coded << bit for bit, (coded, _) in enumerate(packed))
    head = bytes([flags]) + len(packed[0][1]).to_bytes(4, "little")
    return b"".join([head, *(data for _, data in packed)])


def zstd_decode(body: Buffer, key: SliceKey, shape: Shape, dtype: np.dtype) -> np.ndarray:
    if len(body) < 5 or body[0] > 3:
        raise CodecError("zstd piece without its head")
    count = shape[0] * shape[1] * shape[2]
    view = memoryview(body)
    flags, split = view[0], 5 + int.from_bytes(view[1:5], "little")
    if split > len(view):
        raise CodecError("zstd piece shorter than its first plane")
    if dtype.itemsize != 2:
        if split != len(view):
            raise CodecError("bytes after the only plane")
        return unpack(bool(flags & 1), view[5:], count * dtype.itemsize).view(dtype).reshape(shape)
    high = unpack(bool(flags & 1), view[5:split], count)
    low = unpack(bool(flags & 2), view[split:], count)
    turned = high.astype(dtype) << 8
    turned |= low
    return ((turned >> 1) | (turned << 15)).reshape(shape)


RAW = Codec(version=1, lossless=True, bfloat16_only=False, encode=_raw_encode, decode=_raw_decode)
ZSTD = Codec(version=1, lossless=True, bfloat16_only=False, encode=zstd_encode, decode=zstd_decode)
