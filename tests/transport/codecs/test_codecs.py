"""Codecs: exact on every bit pattern, small on KV, and never more than was declared."""

import dataclasses

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.transport.kv_helpers import kv_like
from transport.base import Slice, SliceKey, StreamId
from transport.codecs.table import CODECS, CodecError, decode_slice, encode_slice

STREAM = StreamId("r", 0, 1)


def piece_of(data: np.ndarray, start: int = 0) -> Slice:
    tokens = data.shape[0]
    return Slice(
        key=SliceKey(0, "k", start, start + tokens),
        positions=np.arange(start, start + tokens, dtype=np.int32),
        data=data,
    )


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dtype", ["u1", "<u2", "<u4"])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_exact_on_any_bits(codec: str, dtype: str, data):
    shape = data.draw(hnp.array_shapes(min_dims=3, max_dims=3, max_side=9))
    piece = piece_of(data.draw(hnp.arrays(np.dtype(dtype), shape)), start=5)
    back = decode_slice(encode_slice(STREAM, piece, codec))
    assert back.key == piece.key
    assert back.data.dtype == piece.data.dtype
    assert (back.data == piece.data).all()
    assert (back.positions == piece.positions).all()


@pytest.mark.parametrize("codec", CODECS)
def test_every_bfloat16_and_large_pieces(codec: str):
    every = np.arange(1 << 16, dtype=np.uint16)
    shuffled = np.random.default_rng(0).permutation(every)
    for data in (every, shuffled, np.zeros(1 << 16, np.uint16)):
        piece = piece_of(data.reshape(256, 4, 64))
        assert (decode_slice(encode_slice(STREAM, piece, codec)).data == piece.data).all()


def test_kv_shrinks_as_measured():
    piece = piece_of(kv_like(np.random.default_rng(1), 512, 8, 64))
    frame = encode_slice(STREAM, piece, "zstd")
    assert 1.40 < frame.raw_bytes / len(frame.body) < 1.52
    assert len(encode_slice(STREAM, piece, "raw").body) == frame.raw_bytes
    # The mantissa is noise and stored as it is; zeros are not.
    zeros = encode_slice(STREAM, piece_of(np.zeros((512, 8, 64), np.uint16)), "zstd")
    assert len(zeros.body) < 2000


def test_a_strided_view_is_sent_as_it_looks():
    pool = kv_like(np.random.default_rng(2), 40, 4, 16)
    view = pool[::2, 1:3]
    assert (decode_slice(encode_slice(STREAM, piece_of(view), "zstd")).data == view).all()


@pytest.mark.parametrize("codec", CODECS)
def test_wrong_lengths_are_refused(codec: str):
    frame = encode_slice(STREAM, piece_of(kv_like(np.random.default_rng(3), 64, 2, 16)), codec)
    for body in (frame.body[:-1], frame.body + b"x", b"", frame.body[:3]):
        with pytest.raises(CodecError):
            decode_slice(dataclasses.replace(frame, body=body))
    with pytest.raises(CodecError):
        decode_slice(dataclasses.replace(frame, head_size=frame.head_size + 1))


def test_a_bomb_is_refused_by_its_declared_size():
    frame = encode_slice(STREAM, piece_of(np.zeros((64, 2, 16), np.uint16)), "zstd")
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(200 << 20))
    body = bytes([1]) + len(bomb).to_bytes(4, "little") + bomb
    with pytest.raises(CodecError, match="declares 209715200"):
        decode_slice(dataclasses.replace(frame, body=body))
    # A frame that does not say its size could grow without end.
    silent = zstandard.ZstdCompressor(level=1, write_content_size=False).compress(bytes(1 << 20))
    body = bytes([1]) + len(silent).to_bytes(4, "little") + silent
    with pytest.raises(CodecError):
        decode_slice(dataclasses.replace(frame, body=body))


@given(st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_any_body_is_refused_or_decodes_to_the_shape(body: bytes):
    frame = encode_slice(STREAM, piece_of(np.zeros((4, 2, 16), np.uint16)), "zstd")
    try:
        piece = decode_slice(dataclasses.replace(frame, body=body))
    except CodecError:
        return
    assert piece.data.shape == (4, 2, 16)


def test_unknown_codec_and_version():
    frame = encode_slice(STREAM, piece_of(np.zeros((4, 2, 16), np.uint16)), "raw")
    with pytest.raises(CodecError, match="'int4' is not known here, only raw, zstd"):
        decode_slice(dataclasses.replace(frame, codec="int4"))
    with pytest.raises(CodecError, match="version 7 there, 1 here"):
        decode_slice(dataclasses.replace(frame, codec_version=7))
    with pytest.raises(CodecError, match="heads"):
        decode_slice(dataclasses.replace(frame, heads=(1, 3)))


def test_a_slice_that_contradicts_itself_is_not_sent():
    piece = piece_of(np.zeros((4, 2, 16), np.uint16))
    wrong = dataclasses.replace(piece, key=SliceKey(0, "k", 0, 5))
    with pytest.raises(ValueError, match="4 tokens"):
        encode_slice(STREAM, wrong, "raw")
    with pytest.raises(ValueError, match="float16, must be bits"):
        encode_slice(STREAM, piece_of(np.zeros((4, 2, 16), np.float16)), "raw")
    with pytest.raises(ValueError, match="uint64, must be bits"):
        encode_slice(STREAM, piece_of(np.zeros((4, 2, 16), np.uint64)), "raw")
    with pytest.raises(ValueError, match="in one piece"):
        encode_slice(STREAM, piece_of(np.zeros((4096, 16, 128), np.uint16)), "raw")
