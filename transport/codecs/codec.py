"""What a codec is."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from transport.base import SliceKey
from transport.stream.frames import Buffer

Shape = tuple[int, int, int]  # tokens, heads, size


class CodecError(ValueError):
    """The coded bytes are not what the frame declares, or the codec is not known here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """`encode(bits, key)`: `bits` is a C-contiguous [tokens, heads, size] of the pool's raw bits,
    with at least one element; what it gives may lie in `bits`. None: it would not shrink.

    `decode(body, key, shape, dtype)` gives an array of `shape`; it may be read-only and may lie
    in `body`. It trusts nothing in `body`: it raises CodecError, and allocates no more than the
    shape asks for. A `bfloat16_only` codec is never given anything but uint16.
    """

    version: int
    lossless: bool
    bfloat16_only: bool
    encode: Callable[[np.ndarray, SliceKey], Buffer | None]
    decode: Callable[[Buffer, SliceKey, Shape, np.dtype], np.ndarray]


def byte_array(body: Buffer) -> np.ndarray:
    """[bytes] uint8, read-only, in place: one type of array, so compiled code is compiled once."""
    array = np.frombuffer(body, np.uint8)
    array.flags.writeable = False
    return array


def rows_of(bits: np.ndarray) -> np.ndarray:
    """[tokens, channels], read-only, in place."""
    rows = bits.reshape(len(bits), -1)
    rows.flags.writeable = False
    return rows
