"""KV out of one engine and into another, in any order, while steps run."""

import random
import threading
from dataclasses import replace

import numpy as np
import pytest

from tests.workers.engines.torch.helpers import collect, complete, near_ties, sequence_spec
from workers.api.info import Part
from workers.api.messages import Sampling
from workers.engines.base import KVSlice, SeqId
from workers.engines.torch.load import build_engine

A, B = SeqId("a", 0), SeqId("b", 1)


def prompt(length: int, stride: int = 7) -> list[int]:
    return [(i * stride) % 500 + 3 for i in range(length)]


def slices(engine, seq, start: int, stop: int, size: int) -> list[KVSlice]:
    """The sequence's KV in shuffled pieces of at most `size` tokens, every third one twice."""
    pieces = [
        engine.read(seq, layer, part, first, min(first + size, stop))
        for layer in range(engine.info.fingerprint.layers)
        for part in Part
        for first in range(start, stop, size)
    ]
    pieces += pieces[::3]
    random.Random(3).shuffle(pieces)
    return pieces


def computed_in(engine, seq, tokens: list[int]) -> None:
    engine.open(seq, sequence_spec(tokens, 64), reuse=False)
    engine.set_goal(seq, len(tokens))
    collect(engine, [seq])


def imported(engine, seq, tokens: list[int], count: int, pieces: list[KVSlice]) -> int:
    engine.open(seq, sequence_spec(tokens, 64), reuse=False)
    have = engine.open_import(seq, count)
    for piece in pieces:
        engine.put(seq, piece)
    assert engine.missing(seq) == 0
    engine.commit_import(seq)
    return have


def test_default_model_continues_elsewhere_with_the_same_tokens(smollm) -> None:
    """Mid-generation from blocks of 16 to blocks of 48 to blocks of 8."""
    hot = Sampling(temperature=0.8, seed=11, margins=True)
    sizes = (16, 48, 8)
    engines = [build_engine(smollm, kv_tokens=480, block_size=size) for size in sizes]
    tokens = [(i * 37) % 40000 + 100 for i in range(53)]
    whole = complete(engines[0], [tokens], 12, sampling=hot)[0].tokens
    source = engines[0]
    source.open(A, sequence_spec(tokens, 12, sampling=hot), reuse=False)
    source.set_goal(A, 57)
    collect(source, [A])
    for done, target in ((4, engines[1]), (8, engines[2])):
        law = tokens + whole[:done]
        target.open(A, sequence_spec(law, 12, sampling=hot, prompt_len=53), reuse=False)
        count = len(law) - 1  # all but the last token, whose KV the next step computes
        assert target.open_import(A, count) == 0
        for piece in slices(source, A, 0, count, 13):
            target.put(A, piece)
        target.commit_import(A)
        target.set_goal(A, len(law) + 4)
        assert collect(target, [A])[0].tokens == whole[done : done + 4]
        source = target


@pytest.mark.parametrize(("kv_dtype", "bits"), [("float16", np.uint16), ("float32", np.uint32)])
def test_other_pool_dtypes_travel_as_their_bits(tiny, kv_dtype: str, bits: type) -> None:
    source, target = (build_engine(tiny, kv_tokens=256, kv_dtype=kv_dtype) for _ in range(2))
    tokens = prompt(40)
    computed_in(source, A, tokens)
    pieces = slices(source, A, 0, 40, 16)
    assert {piece.data.dtype for piece in pieces} == {np.dtype(bits)}
    imported(target, B, tokens, 40, pieces)
    for engine, seq in ((source, A), (target, B)):
        engine.set_goal(seq, 50)
    assert collect(source, [A])[0].tokens == collect(target, [B])[0].tokens


@pytest.mark.parametrize("size", [1, 16, 50])
def test_pieces_of_any_size_land_where_they_belong(tiny, size: int) -> None:
    source = build_engine(tiny, kv_tokens=256)
    target = build_engine(tiny, kv_tokens=240, block_size=24)
    tokens = prompt(50)
    computed_in(source, A, tokens)
    assert imported(target, B, tokens, 50, slices(source, A, 0, 50, size)) == 0
    assert target.computed(B) == 50
    for layer in range(4):
        for part in Part:
            sent = source.read(A, layer, part, 3, 47)
            got = target.read(B, layer, part, 3, 47)
            np.testing.assert_array_equal(sent.data, got.data)
            assert got.positions.tolist() == list(range(3, 47))
    for engine, seq in ((source, A), (target, B)):
        engine.set_goal(seq, 60)
    assert collect(source, [A])[0].tokens == collect(target, [B])[0].tokens


def test_missing_counts_down_and_commit_waits_for_all(tiny) -> None:
    source, target = (build_engine(tiny, kv_tokens=256) for _ in range(2))
    tokens = prompt(50)
    computed_in(source, A, tokens)
    target.open(B, sequence_spec(tokens), reuse=False)
    target.open_import(B, 40)
    target.set_goal(B, 60)
    assert target.begin() is None  # not before the import is committed
    assert target.missing(B) == 4 * 2 * 40
    pieces = slices(source, A, 0, 40, 20)
    first, rest = pieces[0], pieces[1:]
    target.put(B, first)
    target.put(B, first)
    assert target.missing(B) == 4 * 2 * 40 - 20
    with pytest.raises(ValueError, match="missing"):
        target.commit_import(B)
    for piece in rest:
        target.put(B, piece)
    target.commit_import(B)
    with pytest.raises(ValueError, match="no import"):
        target.put(B, first)
    with pytest.raises(ValueError, match="no import"):
        target.missing(B)
    assert near_ties(collect(target, [B])[0], complete(source, [tokens], 10)[0].tokens) == 0


@pytest.mark.parametrize(
    "change",
    [
        {"layer": 4},
        {"layer": -1},
        {"part": "x"},
        {"start": -1, "stop": 9},
        {"start": 35, "stop": 45},
        {"start": 5, "stop": 5},
        {"start": 0, "stop": 9},
        {"start": 0, "stop": 11, "data": np.zeros((11, 2, 16), np.uint16)},
        {"data": np.zeros((10, 2, 16), np.uint32)},
        {"data": np.zeros((10, 3, 16), np.uint16)},
        {"data": np.zeros((10, 2, 8), np.uint16)},
        {"positions": np.arange(1, 11, dtype=np.int32)},
        {"positions": np.array([0, 1, 2, 3, 4, 5, 6, 7, 7, 8], dtype=np.int32)},
    ],
    ids=str,
)
def test_foreign_slices_are_refused_before_anything_is_written(tiny, change: dict) -> None:
    target = build_engine(tiny, kv_tokens=256)
    target.open(B, sequence_spec(prompt(50)), reuse=False)
    target.open_import(B, 40)
    good = KVSlice(
        layer=0,
        part=Part.KEY,
        start=0,
        stop=10,
        positions=np.arange(10, dtype=np.int32),
        data=np.ones((10, 2, 16), np.uint16),
    )
    with pytest.raises(ValueError):
        target.put(B, replace(good, **change))
    assert target.missing(B) == 4 * 2 * 40
    assert not target._store.bits.any()
    target.put(B, good)
    assert target.missing(B) == 4 * 2 * 40 - 10


def test_a_repeat_does_not_overwrite(tiny) -> None:
    source, target = (build_engine(tiny, kv_tokens=256) for _ in range(2))
    tokens = prompt(32)
    computed_in(source, A, tokens)
    target.open(B, sequence_spec(tokens), reuse=False)
    target.open_import(B, 32)
    for piece in slices(source, A, 0, 32, 16):
        target.put(B, piece)
        target.put(B, replace(piece, data=np.zeros_like(piece.data)))
    target.commit_import(B)
    sent, got = (e.read(s, 2, Part.KEY, 0, 32) for e, s in ((source, A), (target, B)))
    np.testing.assert_array_equal(sent.data, got.data)


def test_prefix_hits_need_not_be_sent_and_cannot_be_overwritten(tiny) -> None:
    source, target = (build_engine(tiny, kv_tokens=256) for _ in range(2))
    tokens = prompt(60)
    computed_in(source, A, tokens)
    complete(target, [tokens[:40]], 1)  # leaves two blocks
    target.open(B, sequence_spec(tokens, 30), reuse=False)
    assert target.open_import(B, 60) == 32
    assert target.missing(B) == 4 * 2 * 28
    for piece in slices(source, A, 0, 60, 20):  # more than needed
        target.put(B, piece)
    target.commit_import(B)
    for engine, seq in ((source, A), (target, B)):
        engine.set_goal(seq, 70)
    ours, theirs = collect(source, [A])[0], collect(target, [B])[0]
    assert near_ties(ours, theirs.tokens) == 0


def test_a_full_hit_still_runs_the_last_token(tiny) -> None:
    engine = build_engine(tiny, kv_tokens=256)
    tokens = prompt(48)
    fresh = complete(engine, [tokens], 6)[0]
    engine.open(B, sequence_spec(tokens, 6), reuse=False)
    assert engine.open_import(B, 48) == 48
    assert engine.missing(B) == 0
    engine.commit_import(B)
    engine.set_goal(B, 54)
    step = engine.begin()
    result = engine.finish(step)
    assert (result.computed, result.prefill_tokens) == ({B: 48}, 0)
    rest = collect(engine, [B])[0].tokens
    assert [result.samples[0].token, *rest] == fresh.tokens


def test_an_aborted_import_leaves_whole_blocks_or_nothing(tiny) -> None:
    source, target = (build_engine(tiny, kv_tokens=256) for _ in range(2))
    tokens = prompt(64)
    computed_in(source, A, tokens)
    target.open(B, sequence_spec(tokens), reuse=False)
    target.open_import(B, 64)
    gap = (3, Part.VALUE)
    for piece in slices(source, A, 0, 64, 8):
        if piece.start == 32 and (piece.layer, piece.part) == gap:
            continue
        target.put(B, piece)
    target.close(B)
    assert (target.kv_held_tokens(), target.kv_free_tokens()) == (0, 256)
    assert target.open(B, sequence_spec(tokens, 6), reuse=True) == 32
    target.set_goal(B, 70)
    theirs = complete(source, [tokens], 6)[0]
    assert near_ties(theirs, collect(target, [B])[0].tokens) == 0


def test_an_imported_prefix_serves_the_next_request(tiny) -> None:
    source, target = (build_engine(tiny, kv_tokens=256) for _ in range(2))
    tokens = prompt(50)
    computed_in(source, A, tokens)
    imported(target, B, tokens, 50, slices(source, A, 0, 50, 50))
    assert target.open(A, sequence_spec(tokens), reuse=True) == 48


def test_import_may_not_be_truncated_away(tiny) -> None:
    target = build_engine(tiny, kv_tokens=256)
    target.open(B, sequence_spec(prompt(50)), reuse=False)
    target.open_import(B, 40)
    target.truncate(B, 40)
    with pytest.raises(ValueError, match="import"):
        target.truncate(B, 39)
    with pytest.raises(ValueError, match="open already"):
        target.open_import(B, 40)


def test_read_checks_its_range_and_ends_with_the_sequence(tiny) -> None:
    engine = build_engine(tiny, kv_tokens=256)
    computed_in(engine, A, prompt(20))
    for layer, start, stop in ((0, 0, 21), (0, 5, 5), (0, -1, 3), (4, 0, 1)):
        with pytest.raises(ValueError):
            engine.read(A, layer, Part.KEY, start, stop)
    copy = engine.read(A, 0, Part.KEY, 0, 20)
    engine.close(A)
    with pytest.raises(KeyError):
        engine.read(A, 0, Part.KEY, 0, 20)
    before = copy.data.copy()
    complete(engine, [prompt(200, 11)], 1)  # the slots have another tenant now
    np.testing.assert_array_equal(copy.data, before)


def test_put_and_read_from_other_threads_while_steps_run(tiny) -> None:
    source, target = (build_engine(tiny, kv_tokens=512) for _ in range(2))
    tokens = prompt(100)
    computed_in(source, A, tokens)
    target.open(B, sequence_spec(tokens, 8), reuse=False)
    target.open_import(B, 100)
    pieces = slices(source, A, 0, 100, 3)
    failures: list[BaseException] = []

    def feed(part: list[KVSlice]) -> None:
        try:
            for piece in part:
                target.put(B, piece)
                source.read(A, piece.layer, piece.part, piece.start, piece.stop)
        except BaseException as error:
            failures.append(error)
            raise

    feeders = [threading.Thread(target=feed, args=(pieces[i::2],)) for i in range(2)]
    for feeder in feeders:
        feeder.start()
    busy = complete_other(target)
    for feeder in feeders:
        feeder.join(timeout=20)
    assert not failures
    assert target.missing(B) == 0
    target.commit_import(B)
    target.set_goal(B, 108)
    ours = collect(target, [B])[0]
    assert near_ties(ours, complete(source, [tokens], 8)[0].tokens) == 0
    assert near_ties(busy, complete(source, [prompt(120, 11)], 30)[0].tokens) == 0


def complete_other(engine):
    return complete(engine, [prompt(120, 11)], 30)[0]
