"""Compiled parts of the lossy codecs: bfloat16 to small integers and back.

Values in a group share a scale, kept as bfloat16 bits. To int8: one top, the largest magnitude; a
value is a whole multiple of top / 127. To int4: the least and the largest value, and sixteen even
steps between them, since a group of one channel's tokens often lies far from zero. Groups run
along the tokens of a channel (`along_tokens`, K) or along the channels of a token (V). `scales` is
[1, groups, channels] or [1, tokens, groups] for int8, [2, ..] for int4: least, largest.
"""

# Machine integers here are numba's, which mypy does not know; callers see the annotations.
# mypy: ignore-errors

from typing import Any

import numpy as np
from numba import njit

LEAST_TOP = 0x0880  # 2^-110: below it the steps leave float32
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
def _fill(tops, t, group, along_tokens, inverse, factors):
    """`factors` [channels] of token `t`: 127 / top, or top / 127."""
    levels = np.float32(127)
    if along_tokens:
        g = t // group
        for c in range(len(factors)):
            top = _value(tops[g, c])
            factors[c] = levels / top if inverse else top / levels
    else:
        for g in range(tops.shape[1]):
            top = _value(tops[t, g])
            factors[g * group : (g + 1) * group] = levels / top if inverse else top / levels


@compiled
def to_int8(
    bits: np.ndarray, group: int, along_tokens: bool, scales: np.ndarray, out: np.ndarray
) -> bool:
    """Fill `scales`, and `out` [tokens, channels] uint8: -127 to 127 in two's complement.

    `bits` [tokens, channels] uint16. False, and no `out`, when not all of them are finite.
    """
    tops = scales[0]
    if _find_tops(bits, group, along_tokens, tops) >= np.uint16(INFINITY):
        return False
    tokens, channels = bits.shape
    factors = np.empty(channels, np.float32)
    for t in range(tokens):
        if not along_tokens or t % group == 0:
            _fill(tops, t, group, along_tokens, True, factors)
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
    coded: np.ndarray, group: int, along_tokens: bool, scales: np.ndarray, out: np.ndarray
) -> None:
    """The inverse of `to_int8`; `out` [tokens, channels] uint16."""
    tops = scales[0]
    tokens, channels = out.shape
    factors = np.empty(channels, np.float32)
    for t in range(tokens):
        if not along_tokens or t % group == 0:
            _fill(tops, t, group, along_tokens, False, factors)
        for c in range(channels):
            out[t, c] = _rounded(np.float32(np.int8(coded[t, c])) * factors[c])


@compiled
def _ordered(bits):
    """uint16 that compare as the values do; _ordered_back is the inverse."""
    return np.uint16(bits ^ np.uint16(np.uint16(0) - np.uint16(bits >> np.uint16(15)) | 0x8000))


@compiled
def _ordered_back(key):
    return np.uint16(key ^ np.uint16(0x8000) if key >> np.uint16(15) else ~key)


@compiled
def _find_ends(bits, group, along_tokens, least, largest):
    """Fill both with _ordered ends of each group. False when not all values are finite."""
    tokens, channels = bits.shape
    least[:] = np.uint16(0xFFFF)
    largest[:] = np.uint16(0)
    for t in range(tokens):
        if along_tokens:
            low, high = least[t // group], largest[t // group]
            for c in range(channels):
                key = _ordered(bits[t, c])
                low[c] = key if key < low[c] else low[c]
                high[c] = key if key > high[c] else high[c]
        else:
            for g in range(least.shape[1]):
                values = bits[t, g * group : (g + 1) * group]
                first, last = np.uint16(0xFFFF), np.uint16(0)
                for c in range(len(values)):
                    key = _ordered(values[c])
                    first = key if key < first else first
                    last = key if key > last else last
                least[t, g], largest[t, g] = first, last
    return least.min() > _ordered(np.uint16(0xFF80)) and largest.max() < _ordered(
        np.uint16(INFINITY)
    )


@compiled
def _middle_and_step(least, largest):
    """Of sixteen levels; by halves, for a difference of two finite values may not be finite."""
    low, high = _value(least) * np.float32(0.5), _value(largest) * np.float32(0.5)
    half = max(np.float32(high - low), _value(np.uint16(LEAST_TOP)))
    return np.float32(low + high), np.float32(half / np.float32(7.5))


@compiled
def _fill_levels(scales, t, group, along_tokens, inverse, middles, factors):
    """`middles` and `factors` (step, or 1 / step), [channels], of token `t`."""
    if along_tokens:
        g = t // group
        for c in range(len(factors)):
            middles[c], step = _middle_and_step(scales[0, g, c], scales[1, g, c])
            factors[c] = np.float32(1) / step if inverse else step
    else:
        for g in range(scales.shape[2]):
            middle, step = _middle_and_step(scales[0, t, g], scales[1, t, g])
            middles[g * group : (g + 1) * group] = middle
            factors[g * group : (g + 1) * group] = np.float32(1) / step if inverse else step


@compiled
def to_int4(
    bits: np.ndarray, group: int, along_tokens: bool, scales: np.ndarray, out: np.ndarray
) -> bool:
    """Fill `scales`, and `out` [tokens, (channels + 1) // 2] uint8: 0 to 15.

    The first half of the channels lies in the low nibbles, the second in the high ones.
    `bits` [tokens, channels] uint16. False, and no `out`, when not all of them are finite.
    """
    least, largest = scales[0], scales[1]
    if not _find_ends(bits, group, along_tokens, least, largest):
        return False
    for a in range(least.shape[0]):
        for b in range(least.shape[1]):
            least[a, b], largest[a, b] = _ordered_back(least[a, b]), _ordered_back(largest[a, b])
    tokens, channels = bits.shape
    half = out.shape[1]
    middles, factors = np.empty(channels, np.float32), np.empty(channels, np.float32)
    wide = np.zeros(2 * half, np.uint8)
    for t in range(tokens):
        if not along_tokens or t % group == 0:
            _fill_levels(scales, t, group, along_tokens, True, middles, factors)
        for c in range(channels):
            level = (_value(bits[t, c]) - middles[c]) * factors[c] + np.float32(7.5)
            wide[c] = np.uint8(np.float32(level + _ROUNDER).view(np.uint32))
        for c in range(half):
            out[t, c] = wide[c] | wide[half + c] << np.uint8(4)
    return True


@compiled
def from_int4(
    coded: np.ndarray, group: int, along_tokens: bool, scales: np.ndarray, out: np.ndarray
) -> None:
    """The inverse of `to_int4`; `out` [tokens, channels] uint16."""
    tokens, channels = out.shape
    half = coded.shape[1]
    middles, factors = np.empty(channels, np.float32), np.empty(channels, np.float32)
    wide = np.zeros(2 * half, np.uint8)
    for t in range(tokens):
        if not along_tokens or t % group == 0:
            _fill_levels(scales, t, group, along_tokens, False, middles, factors)
        for c in range(half):
            wide[c] = coded[t, c] & np.uint8(0xF)
            wide[half + c] = coded[t, c] >> np.uint8(4)
        for c in range(channels):
            level = np.float32(wide[c]) - np.float32(7.5)
            out[t, c] = _rounded(level * factors[c] + middles[c])
