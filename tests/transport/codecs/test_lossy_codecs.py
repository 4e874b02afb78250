"""Lossy codecs: near where they may be, exact where they must be."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transport.kv_helpers import kv_like
from transport.base import Slice, SliceKey, StreamId
from transport.codecs.table import CODECS, CodecError, decode_slice, encode_slice

STREAM = StreamId("r", 0, 1)
LOSSY = [name for name, codec in CODECS.items() if not codec.lossless]
# codec -> part -> (levels, values that share a scale along the tokens, along the channels)
GROUPS = {
    "int8": {"k": (127, 256, 1), "v": (127, 1, None)},
    "int8+zstd": {"k": (127, 256, 1), "v": (127, 1, None)},
    "k8v4": {"k": (127, 256, 1), "v": (7.5, 1, 64)},
    "int4": {"k": (7.5, 64, 1), "v": (7.5, 1, 64)},
}
INFINITY = 0x7F80
LEAST = 2.0**-110


def piece_of(data: np.ndarray, part: str, start: int) -> Slice:
    tokens = data.shape[0]
    return Slice(
        key=SliceKey(0, part, start, start + tokens),
        positions=np.arange(start, start + tokens, dtype=np.int32),
        data=data,
    )


def values(bits: np.ndarray) -> np.ndarray:
    """As float64, [tokens, channels]."""
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    return wide.reshape(len(bits), -1).astype(np.float64)


def largest_errors(codec: str, part: str, bits: np.ndarray) -> np.ndarray:
    """[tokens, channels]: half a step of each value's group, and the rounding to bfloat16."""
    levels, along, across = GROUPS[codec][part]
    magnitudes = np.where((bits & INFINITY) == INFINITY, 0, bits & 0x7FFF).astype(np.uint16)
    magnitudes = np.maximum(values(magnitudes), LEAST)
    tokens, channels = magnitudes.shape
    across = across or channels
    tops = np.maximum.reduceat(magnitudes, range(0, tokens, along), axis=0)
    tops = np.maximum.reduceat(tops, range(0, channels, across), axis=1)
    tops = tops.repeat(along, axis=0)[:tokens].repeat(across, axis=1)[:, :channels]
    return tops * (0.5 / levels + 2.0**-8)


def check(codec: str, part: str, start: int, bits: np.ndarray) -> None:
    back = decode_slice(encode_slice(STREAM, piece_of(bits, part, start), codec)).data
    assert back.shape == bits.shape
    assert back.dtype == bits.dtype
    exact = max(0, min(4 - start, len(bits)))
    assert (back[:exact] == bits[:exact]).all()
    rest, came = bits[exact:], back[exact:]
    special = (rest & INFINITY) == INFINITY
    assert (came[special] == rest[special]).all()
    if rest.size:
        with np.errstate(invalid="ignore"):
            errors = np.abs(values(came) - values(rest))
        allowed = largest_errors(codec, part, rest)
        near = errors <= allowed
        assert (near | special.reshape(near.shape)).all()


def any_bits(data: st.DataObject, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """KV with a few of everything else bfloat16 can hold."""
    bits = kv_like(rng, *shape)
    odd = [0x0000, 0x8000, 0x0001, 0x807F, 0x7F80, 0xFF80, 0x7FC0, 0xFFFF, 0x7F7F, 0x0080]
    for value in data.draw(st.lists(st.sampled_from(odd), max_size=6)):
        bits.reshape(-1)[rng.integers(bits.size)] = value
    return bits


@pytest.mark.parametrize("codec", LOSSY)
@pytest.mark.parametrize("part", ["k", "v"])
@given(data=st.data(), seed=st.integers(0, 999), start=st.sampled_from([0, 1, 3, 4, 256]))
@settings(max_examples=40, deadline=None)
def test_bounded_by_the_scale(codec: str, part: str, data, seed: int, start: int):
    shape = tuple(data.draw(st.integers(1, top)) for top in (300, 4, 70))
    check(codec, part, start, any_bits(data, np.random.default_rng(seed), shape))


@pytest.mark.parametrize("codec", LOSSY)
@pytest.mark.parametrize("part", ["k", "v"])
def test_every_bfloat16(codec: str, part: str):
    every = np.random.default_rng(0).permutation(np.arange(1 << 16, dtype=np.uint16))
    check(codec, part, 0, every.reshape(256, 4, 64))
    for bits in (0x0000, 0x7FC0, 0xFF80, 0x7F7F, 0x0001):
        check(codec, part, 9, np.full((64, 2, 64), bits, np.uint16))


@pytest.mark.parametrize("codec", LOSSY)
@pytest.mark.parametrize("part", ["k", "v"])
@pytest.mark.parametrize("odd", [0x7F80, 0xFF80, 0x7FC1])
def test_one_nan_costs_the_others_nothing(codec: str, part: str, odd: int):
    bits = kv_like(np.random.default_rng(1), 128, 2, 64)
    before = decode_slice(encode_slice(STREAM, piece_of(bits, part, 8), codec)).data
    spoilt = bits.copy()
    spoilt[77, 1, 5] = 0  # so that no group loses its largest value to the NaN
    clean = decode_slice(encode_slice(STREAM, piece_of(spoilt, part, 8), codec)).data.copy()
    spoilt[77, 1, 5] = odd
    after = decode_slice(encode_slice(STREAM, piece_of(spoilt, part, 8), codec)).data
    assert after[77, 1, 5] == odd
    clean[77, 1, 5] = odd
    assert (after == clean).all()
    assert not (before == bits).all()  # it is a lossy codec


@pytest.mark.parametrize("codec", LOSSY)
@pytest.mark.parametrize("start", range(6))
def test_the_first_four_tokens_are_exact(codec: str, start: int):
    bits = kv_like(np.random.default_rng(2), 20, 2, 64)
    bits[:4] *= 3  # anything
    for part in "kv":
        back = decode_slice(encode_slice(STREAM, piece_of(bits, part, start), codec)).data
        exact = max(0, 4 - start)
        assert (back[:exact] == bits[:exact]).all()
        assert not (back[exact:] == bits[exact:]).all()


@pytest.mark.parametrize(
    ("codec", "k", "v"),
    [("int8", 1.97, 1.97), ("int8+zstd", 1.97, 2.0), ("k8v4", 1.97, 3.5), ("int4", 3.7, 3.7)],
)
def test_sizes(codec: str, k: float, v: float):
    bits = kv_like(np.random.default_rng(3), 256, 3, 64)
    for part, least in (("k", k), ("v", v)):
        frame = encode_slice(STREAM, piece_of(bits, part, 256), codec)
        assert frame.raw_bytes / len(frame.body) >= least


@pytest.mark.parametrize("codec", LOSSY)
def test_other_widths_are_not_rounded(codec: str):
    bits = np.random.default_rng(4).integers(0, 1 << 32, (64, 2, 16), np.uint32)
    for data in (bits, (bits & 3).astype(np.uint8)):
        frame = encode_slice(STREAM, piece_of(data, "k", 64), codec)
        assert CODECS[frame.codec].lossless
        assert (decode_slice(frame).data == data).all()
    forged = dataclasses.replace(frame, codec=codec, codec_version=CODECS[codec].version)
    with pytest.raises(CodecError, match="is for bfloat16, not 1 bytes"):
        decode_slice(forged)


def test_a_foreign_exception_is_refused():
    bits = kv_like(np.random.default_rng(5), 8, 1, 8)
    bits[3, 0, 3] = 0x7F80
    frame = encode_slice(STREAM, piece_of(bits, "k", 8), "int8")
    body = bytearray(frame.body)
    assert body[:4] == (1).to_bytes(4, "little")
    body[4:8] = (64).to_bytes(4, "little")  # of 64 values
    with pytest.raises(CodecError, match="an exception at 64 of 64"):
        decode_slice(dataclasses.replace(frame, body=body))
    body[:4] = (1 << 30).to_bytes(4, "little")
    with pytest.raises(CodecError, match="exceptions in a lossy piece"):
        decode_slice(dataclasses.replace(frame, body=body))


def test_a_scale_that_is_not_finite_is_refused():
    frame = encode_slice(
        STREAM, piece_of(kv_like(np.random.default_rng(6), 8, 1, 8), "v", 8), "int8"
    )
    body = bytearray(frame.body)
    body[4:6] = (0x7FC0).to_bytes(2, "little")
    with pytest.raises(CodecError, match="a scale that is not finite"):
        decode_slice(dataclasses.replace(frame, body=body))
