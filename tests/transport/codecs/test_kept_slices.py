"""Slices of sequences that have lost tokens: fewer rows than their range, each with a position."""

from dataclasses import replace

import numpy as np
import pytest

from tests.transport.kv_helpers import make_slice
from transport.base import Slice, SliceKey, StreamId
from transport.codecs.table import CODECS, decode_slice, encode_slice
from transport.stream.frames import Data, MalformedFrame
from transport.stream.framing import PREAMBLE_BYTES, encode, parse_head, parse_preamble

STREAM = StreamId("r", 1, 2)
KEPT = np.array([0, 1, 2, 3, 9, 10, 40, 63], dtype=np.int32)


def kept(start: int = 0, stop: int = 64) -> Slice:
    """Of a piece of 64 tokens those that KEPT names, in [start, stop)."""
    whole = make_slice(1, "k", 0, 64)
    here = np.array([token for token in KEPT if start <= token < stop], dtype=np.int32)
    return Slice(key=SliceKey(1, "k", start, stop), positions=here, data=whole.data[here])


def there_and_back(frame: Data) -> Data:
    head, body = encode(frame)
    preamble = parse_preamble(head[:PREAMBLE_BYTES])
    came = parse_head(preamble, head[PREAMBLE_BYTES:])
    assert isinstance(came, Data)
    return replace(came, body=bytes(body))


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_held_comes_with_its_positions(codec: str) -> None:
    piece = kept()
    came = decode_slice(there_and_back(encode_slice(STREAM, piece, codec)))
    assert came.key == piece.key
    assert came.positions.tolist() == KEPT.tolist()
    assert came.data.shape == (8, 2, 16)
    if CODECS[codec].lossless:
        assert np.array_equal(came.data, piece.data)
    assert np.array_equal(came.data[:4], piece.data[:4])  # the first tokens are exact always


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("held", [[], [2]])
def test_little_or_nothing_may_be_held(codec: str, held: list[int]) -> None:
    rows = np.array(held, dtype=np.int32)
    piece = Slice(
        key=SliceKey(0, "v", 0, 16), positions=rows, data=make_slice(0, "v", 0, 16).data[rows]
    )
    came = decode_slice(there_and_back(encode_slice(STREAM, piece, codec)))
    assert came.positions.tolist() == held
    assert np.array_equal(came.data, piece.data)


@pytest.mark.parametrize(("start", "stop"), [(0, 64), (1, 10), (4, 9), (40, 64)])
def test_a_part_holds_what_is_its_own(start: int, stop: int) -> None:
    part, expected = kept().tokens(start, stop), kept(start, stop)
    assert part.key == expected.key
    assert part.positions.tolist() == expected.positions.tolist()
    assert np.array_equal(part.data, expected.data)


@pytest.mark.parametrize("runs", [((60, 5),), ((8, 2), (9, 1)), ((8, 1), (3, 1)), ((64, 1),)])
def test_positions_outside_of_the_range_or_out_of_order_are_refused(runs) -> None:
    frame = encode_slice(STREAM, kept(), "raw")
    rows = sum(count for _, count in runs)
    broken = replace(frame, positions=runs, body=bytes(rows * 2 * 16 * 2))
    with pytest.raises(MalformedFrame, match="positions"):
        there_and_back(broken)


def test_more_positions_than_tokens_are_refused() -> None:
    piece = make_slice(0, "k", 0, 8)
    with pytest.raises(ValueError, match="positions"):
        encode_slice(STREAM, replace(piece, key=SliceKey(0, "k", 0, 7)), "raw")
