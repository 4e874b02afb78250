"""The lossy codecs, for bfloat16: integers that share a scale.

K is scaled along the tokens of each channel (a key's channels differ by a factor of ten and more,
and scaling its tokens instead ruins the model), V along the channels of each token.

What must not be rounded is not: the sequence's first FIRST_EXACT tokens, which all later ones
attend to, travel as they are; so do infinities and NaNs, which would otherwise take a whole group
with them.

Body: the exact tokens; how many exceptions (u32), their indices (u32) and bits (u16); the groups'
scales (bfloat16); the integers. With zstd the scales are its own split of them behind their length
(u32), and the integers come behind a byte that says whether coding them paid.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from transport.base import SliceKey
from transport.codecs import quantise_kernels as kernels
from transport.codecs.codec import Codec, CodecError, Shape, byte_array, rows_of
from transport.codecs.exact import pack, unpack, zstd_decode, zstd_encode
from transport.stream.frames import Buffer

FIRST_EXACT = 4
_U16, _U32 = np.dtype("<u2"), np.dtype("<u4")
_EXCEPTION_BYTES = _U16.itemsize + _U32.itemsize


@dataclass(frozen=True, slots=True)
class _Width:
    """Integers of one width; arguments of the compiled functions as in `quantise_kernels`."""

    quantise: Callable[..., bool]
    restore: Callable[..., None]
    per_byte: int
    scales: int  # of a group

    def bytes_of(self, channels: int) -> int:
        return -(-channels // self.per_byte)


_INT8 = _Width(kernels.to_int8, kernels.from_int8, 1, 1)
_INT4 = _Width(kernels.to_int4, kernels.from_int4, 2, 2)


@dataclass(frozen=True, slots=True)
class _Part:
    """How K or V is coded. `group`: values that share a scale; None: all of a token's channels."""

    width: _Width
    along_tokens: bool
    group: int | None

    def scales_shape(self, tokens: int, channels: int) -> Shape:
        group = self.group_of(channels)
        if self.along_tokens:
            return self.width.scales, -(-tokens // group), channels
        return self.width.scales, tokens, -(-channels // group)

    def group_of(self, channels: int) -> int:
        return channels if self.group is None else self.group


# 256 tokens are what a worker sends at a time; in a larger piece scales must not get coarser.
_K8 = _Part(_INT8, along_tokens=True, group=256)
_V8 = _Part(_INT8, along_tokens=False, group=None)
_K4 = _Part(_INT4, along_tokens=True, group=64)
_V4 = _Part(_INT4, along_tokens=False, group=64)


@dataclass(frozen=True, slots=True)
class _Lossy:
    k: _Part
    v: _Part
    zstd: bool

    def codec(self) -> Codec:
        return Codec(
            version=1,
            lossless=False,
            bfloat16_only=True,
            encode=self.encode,
            decode=self.decode,
        )

    def encode(self, bits: np.ndarray, key: SliceKey) -> Buffer:
        exact = min(_exact_tokens(key), len(bits))
        head = bits[:exact].reshape(-1).view(np.uint8)
        if exact == len(bits):
            return head.tobytes()
        rows = rows_of(bits[exact:])
        part = self._part(key)
        channels = rows.shape[1]
        group = part.group_of(channels)
        scales = np.empty(part.scales_shape(len(rows), channels), np.uint16)
        coded = np.empty((len(rows), part.width.bytes_of(channels)), np.uint8)
        exceptions: Buffer = bytes(_U32.itemsize)
        if not part.width.quantise(rows, group, part.along_tokens, scales, coded):
            rows, exceptions = _set_aside(rows)
            part.width.quantise(rows, group, part.along_tokens, scales, coded)
        if self.zstd:
            coded_scales = zstd_encode(scales, key)
            smaller, data = pack(coded.reshape(-1))
            length = len(coded_scales).to_bytes(4, "little")
            pieces = [length, coded_scales, bytes([smaller]), data]
        else:
            pieces = [scales.reshape(-1).view(np.uint8).data, coded.reshape(-1).data]
        return b"".join([head.data, exceptions, *pieces])

    def decode(self, body: Buffer, key: SliceKey, shape: Shape, dtype: np.dtype) -> np.ndarray:
        data = byte_array(body)
        tokens, channels = shape[0], shape[1] * shape[2]
        exact = min(_exact_tokens(key), tokens)
        at = exact * channels * 2
        if tokens == exact:
            if len(data) != at:
                raise CodecError(f"{len(data)} bytes for {exact} exact tokens of {at}")
            return np.frombuffer(body, dtype).reshape(shape)
        part = self._part(key)
        indices, values, at = _exceptions(data, at, (tokens - exact) * channels)
        scales, at = self._scales(data, at, key, part.scales_shape(tokens - exact, channels))
        coded = self._integers(data[at:], tokens - exact, part.width.bytes_of(channels))
        bits = np.empty((tokens, channels), np.uint16)
        bits.reshape(-1)[: exact * channels].view(np.uint8)[:] = data[: exact * channels * 2]
        rows = bits[exact:]
        part.width.restore(coded, part.group_of(channels), part.along_tokens, scales, rows)
        if len(indices):
            rows.reshape(-1)[indices] = values
        return bits.reshape(shape)

    def _part(self, key: SliceKey) -> _Part:
        return self.k if key.part == "k" else self.v

    def _scales(
        self, data: np.ndarray, at: int, key: SliceKey, shape: Shape
    ) -> tuple[np.ndarray, int]:
        """Memory of their own, which is aligned, and where the body goes on."""
        end = at + 2 * shape[0] * shape[1] * shape[2]
        if self.zstd:
            end = at + 4 + int.from_bytes(data[at : at + 4].data, "little")
            at += 4
        if len(data) < end:
            raise CodecError(f"scales to byte {end} of {len(data)}")
        scales = np.empty(shape, np.uint16)
        if self.zstd:
            scales[:] = zstd_decode(data[at:end].data, key, shape, _U16)
        else:
            scales.reshape(-1).view(np.uint8)[:] = data[at:end]
        if (scales & 0x7FFF).max() >= kernels.INFINITY:
            raise CodecError("a scale that is not finite")
        return scales, end

    def _integers(self, data: np.ndarray, tokens: int, width: int) -> np.ndarray:
        """[tokens, width] uint8, read-only."""
        coded = data
        if self.zstd:
            if not len(data) or data[0] > 1:
                raise CodecError("integers without the byte that says how they are coded")
            coded = unpack(bool(data[0]), data[1:].data, tokens * width)
        if len(coded) != tokens * width:
            raise CodecError(f"{len(coded)} bytes of integers for {tokens} tokens of {width}")
        return coded.reshape(tokens, width)


def _exact_tokens(key: SliceKey) -> int:
    return max(0, min(FIRST_EXACT, key.stop) - key.start)


def _set_aside(rows: np.ndarray) -> tuple[np.ndarray, Buffer]:
    """`rows` with zeros for all that is not finite, and those as [bytes]."""
    finite = (rows & kernels.INFINITY) != kernels.INFINITY
    indices = np.flatnonzero(~finite)
    cleared = np.where(finite, rows, np.uint16(0))
    cleared.flags.writeable = False
    parts = (
        np.array([len(indices)], _U32),
        indices.astype(_U32),
        rows.reshape(-1)[indices].astype(_U16),
    )
    return cleared, b"".join(part.tobytes() for part in parts)


def _exceptions(data: np.ndarray, at: int, count: int) -> tuple[np.ndarray, np.ndarray, int]:
    """(indices, bits, where the body goes on); every index is below `count`."""
    if len(data) < at + 4:
        raise CodecError(f"lossy piece of {len(data)} bytes")
    number = int.from_bytes(data[at : at + 4].data, "little")
    at += 4
    if number > count or len(data) < at + number * _EXCEPTION_BYTES:
        raise CodecError(f"{number} exceptions in a lossy piece of {len(data)} bytes")
    split, end = at + 4 * number, at + _EXCEPTION_BYTES * number
    indices, bits = data[at:split].view(_U32), data[split:end].view(_U16)
    if number and indices.max() >= count:
        raise CodecError(f"an exception at {indices.max()} of {count} values")
    return indices, bits, end


INT8 = _Lossy(_K8, _V8, zstd=False).codec()
INT8_ZSTD = _Lossy(_K8, _V8, zstd=True).codec()
K8V4 = _Lossy(_K8, _V4, zstd=False).codec()
INT4 = _Lossy(_K4, _V4, zstd=True).codec()
