"""Compiled parts of the lossy codecs: bfloat16 to small integers and back.

A group of values has one top, its largest magnitude as bfloat16 bits; a value is a whole multiple
of top / 127 or top / 7. Groups run along the tokens of a channel (`along_tokens`, K: tops are
[token groups, channels]) or along the channels of a token (V: tops are [tokens, channel groups]).
"""

# Machine integers here are numba's, which mypy does not know; callers see the annotations.
# mypy: ignore-errors

from typing import Any

import numpy as np
from numba import njit

LEAST_TOP = 0x0880  # 2^-110: below it 127 / top leaves float32
INFINITY = 0x7F80  # magnitudes from here on are infinite or not a number
_ROUNDER = np.float32(1.5 * 2**23)  # added to a small float32, its low bits are the nearest integer

compiled = njit(cache=True, nogil=True, error_model="numpy")


@compiled
def _find_tops(bits, group, along_tokens, tops):
    """Fill `tops` with nothing below LEAST_TOP; returns the largest of all."""
    tokens, channels = bits.shape
    mask = np.uint16(0x7FFF)
    tops[:] = np.uint16(LEAST_TOP)
    if along_tokens:
        for t in range(tokens):
            g = t // group
            for c in range(channels):
                tops[g, c] = max(tops[g, c], np.uint16(bits[t, c] & mask))
    else:
        for t in range(tokens):
            for g in range(tops.shape[1]):
                values = bits[t, g * group : (g + 1) * group]
                top = np.uint16(LEAST_TOP)
                for c in range(len(values)):  # written so that many are compared at once
                    magnitude = np.uint16(values[c] & mask)
                    top = magnitude if magnitude > top else top
                tops[t, g] = top
    return tops.max()


@compiled
def _value(bits: Any) -> Any:
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


@compiled
def _fill(
    tops: np.ndarray,
    t: int,
    group: int,
    along_tokens: bool,
    levels: Any,
    inverse: bool,
    factors: np.ndarray,
) -> None:
    """`factors` [channels] of token `t`: levels / top, or top / levels."""
    if along_tokens:
        g = t // group
        for c in range(len(factors)):
            top = _value(tops[g, c])
            factors[c] = levels / top if inverse else top / levels
    else:
        for g in range(tops.shape[1]):
            top = _value(tops[t, g])
            factor = levels / top if inverse else top / levels
            factors[g * group : (g + 1) * group] = factor


@compiled
def to_int8(
    bits: np.ndarray, group: int, along_tokens: bool, tops: np.ndarray, out: np.ndarray
) -> bool:
    """Fill `tops`, and `out` [tokens, channels] uint8: integers from -127 to 127, two's complement.

    `bits` [tokens, channels] uint16. False, and no `out`, when not all of them are finite.
    """
    if _find_tops(bits, group, along_tokens, tops) >= np.uint16(INFINITY):
        return False
    tokens, channels = bits.shape
    factors = np.empty(channels, np.float32)
    for t in range(tokens):
        if not along_tokens or t % group == 0:
            _fill(tops, t, group, along_tokens, np.float32(127), True, factors)
        for c in range(channels):
            shifted = _value(bits[t, c]) * factors[c] + _ROUNDER
            out[t, c] = np.uint8(np.float32(shifted).view(np.uint32))
    return True


@compiled
def _rounded(value: Any) -> Any:
    """bfloat16 bits nearest to a float32."""
    return np.uint16(
        np.uint32(np.float32(value).view(np.uint32) + np.uint32(0x8000)) >> np.uint32(16)
    )


@compiled
def from_int8(
    coded: np.ndarray, group: int, along_tokens: bool, tops: np.ndarray, out: np.ndarray
) -> None:
    """The inverse of `to_int8`; `out` [tokens, channels] uint16."""
    tokens, channels = out.shape
    factors = np.empty(channels, np.float32)
    for t in range(tokens):
        if not along_tokens or t % group == 0:
            _fill(tops, t, group, along_tokens, np.float32(127), False, factors)
        for c in range(channels):
            out[t, c] = _rounded(np.float32(np.int8(coded[t, c])) * factors[c])


@compiled
def to_int4(
    bits: np.ndarray, group: int, along_tokens: bool, tops: np.ndarray, out: np.ndarray
) -> bool:
    """Fill `tops`, and `out` [tokens, (channels + 1) // 2] uint8: integers from -7 to 7, plus 8.

    The first half of the channels lies in the low nibbles, the second in the high ones.

    `bits` [tokens, channels] uint16. False, and no `out`, when not all of them are finite.
    """
    if _find_tops(bits, group, along_tokens, tops) >= np.uint16(INFINITY):
        return False
    tokens, channels = bits.shape
    half = out.shape[1]
    factors = np.empty(channels, np.float32)
    wide = np.full(2 * half, 8, np.uint8)
    for t in range(tokens):
        if not along_tokens or t % group == 0:
            _fill(tops, t, group, along_tokens, np.float32(7), True, factors)
        for c in range(channels):
            shifted = _value(bits[t, c]) * factors[c] + _ROUNDER
            wide[c] = np.uint8(np.float32(shifted).view(np.uint32)) + np.uint8(8)
        for c in range(half):
            out[t, c] = wide[c] | wide[half + c] << np.uint8(4)
    return True


@compiled
def from_int4(
    coded: np.ndarray, group: int, along_tokens: bool, tops: np.ndarray, out: np.ndarray
) -> None:
    """The inverse of `to_int4`; `out` [tokens, channels] uint16."""
    tokens, channels = out.shape
    half = coded.shape[1]
    factors = np.empty(channels, np.float32)
    for t in range(tokens):
        if not along_tokens or t % group == 0:
            _fill(tops, t, group, along_tokens, np.float32(7), False, factors)
        nibbles, low, high = coded[t], out[t, :half], out[t, half:]
        low_factors, high_factors = factors[:half], factors[half:]
        for c in range(len(low)):
            q = np.int8(np.int8(nibbles[c] & np.uint8(0xF)) - np.int8(8))
            low[c] = _rounded(np.float32(q) * low_factors[c])
        for c in range(len(high)):
            q = np.int8(np.int8(nibbles[c] >> np.uint8(4)) - np.int8(8))
            high[c] = _rounded(np.float32(q) * high_factors[c])
