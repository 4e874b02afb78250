"""Lossless bfloat16: the exponents Huffman-coded around their channel's mean.

Sign and mantissa of KV are noise and travel as they are. The exponents carry 2.7 bits as they
stand; taken relative to the mean of their channel (a key's channels differ by a factor of ten and
more) the same code needs 2.4 for K and 2.6 for V. zipnn, which has no wheel for Linux and wants a
compiler and torch, codes the exponents as they stand.

Body: first and last symbol that has a code, their code lengths as nibbles, the streams' sizes as
u32, the channels' means, the streams, the noise.
"""

import numpy as np

from transport.base import SliceKey
from transport.codecs import huffman_kernels as kernels
from transport.codecs.codec import Codec, CodecError, Shape, byte_array, rows_of
from transport.stream.frames import Buffer

_SIZES = np.dtype("<u4")
_SIZES_BYTES = kernels.STREAMS * _SIZES.itemsize


def _encode(bits: np.ndarray, key: SliceKey) -> Buffer | None:
    rows = rows_of(bits)
    count, channels = rows.size, rows.shape[1]
    bases = np.empty(channels, np.uint8)
    symbols = np.empty(count, np.uint8)
    noise = np.empty(count, np.uint8)
    kernels.split(rows, bases, symbols, noise)
    counts = np.empty((kernels.STREAMS, 256), np.uint32)
    lengths = np.empty(256, np.uint8)
    sizes = np.empty(kernels.STREAMS, np.int64)
    kernels.count(symbols, counts)
    kernels.choose_lengths(counts, lengths, sizes)
    head = _head(lengths, sizes)
    coded = len(head) + channels
    after = coded + int(sizes.sum())
    if after + count > bits.nbytes:
        return None
    body = np.empty(after + count, np.uint8)
    body[: len(head)] = head
    body[len(head) : coded] = bases
    kernels.write(symbols, lengths, sizes, body[coded:after])
    body[after:] = noise
    return body.data


def _head(lengths: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    present = np.flatnonzero(lengths)
    first, last = int(present[0]), int(present[-1])
    nibbles = np.zeros(2 * ((last - first) // 2 + 1), np.uint8)
    nibbles[: last - first + 1] = lengths[first : last + 1]
    ends = np.array([first, last], np.uint8)
    packed = nibbles[::2] | nibbles[1::2] << 4
    return np.concatenate([ends, packed, sizes.astype(_SIZES).view(np.uint8)])


def _decode(body: Buffer, key: SliceKey, shape: Shape, dtype: np.dtype) -> np.ndarray:
    data = byte_array(body)
    tokens, channels = shape[0], shape[1] * shape[2]
    count = tokens * channels
    lengths, at = _lengths(data)
    if len(data) < at + _SIZES_BYTES + channels + count:
        raise CodecError(f"huffman piece of {len(data)} bytes for {count} elements")
    sizes = data[at : at + _SIZES_BYTES].view(_SIZES).astype(np.int64)
    means = at + _SIZES_BYTES
    coded = means + channels
    after = coded + int(sizes.sum())
    if sizes.min() < kernels.PAD or after + count != len(data):
        raise CodecError(f"huffman streams of {sizes.tolist()} bytes in a piece of {len(data)}")
    slots = np.empty(1 << kernels.MAX_BITS, np.uint64)
    if not kernels.table(lengths, slots):
        raise CodecError("huffman code lengths are not those of a code")
    symbols = np.empty(count, np.uint8)
    if not kernels.read(data[coded:after], sizes, lengths, slots, symbols):
        raise CodecError("huffman streams do not end where they say")
    bits = np.empty((tokens, channels), np.uint16)
    kernels.join(symbols, data[means:coded], data[after:], bits)
    return bits.reshape(shape)


def _lengths(data: np.ndarray) -> tuple[np.ndarray, int]:
    """[256] uint8, and where the head goes on."""
    if len(data) < 2 or data[0] > data[1]:
        raise CodecError("huffman piece without its code")
    first, last = int(data[0]), int(data[1])
    packed = data[2 : 2 + (last - first) // 2 + 1]
    nibbles = np.empty(2 * len(packed), np.uint8)
    nibbles[::2] = packed & 0xF
    nibbles[1::2] = packed >> 4
    lengths = np.zeros(256, np.uint8)
    given = nibbles[: last - first + 1]
    lengths[first : first + len(given)] = given
    return lengths, 2 + (last - first) // 2 + 1


HUFFMAN = Codec(version=1, lossless=True, bfloat16_only=True, encode=_encode, decode=_decode)
