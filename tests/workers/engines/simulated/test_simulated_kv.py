"""The simulated engine: true KV, true accounting."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tests.workers.engines.simulated.simulated_rig import (
    MODEL,
    PROMPT,
    TEXT,
    A,
    B,
    computed,
    engine,
    run,
    say,
    spec,
)
from workers.api.info import Part
from workers.engines.base import KVSlice, NoRoom
from workers.engines.simulated.engine import SimulatedEngine

# -------------------------------------------------------------------- KV


def carry(source: SimulatedEngine, target: SimulatedEngine, ranges: list[tuple[int, int]]) -> None:
    for (start, stop), layer, part in product(ranges, range(MODEL.layers), Part):
        target.put(B, source.read(A, layer, part, start, stop))


def test_a_slice_has_the_bytes_that_the_wire_will_carry() -> None:
    source = computed()
    piece = source.read(A, 1, Part.VALUE, 3, 10)
    assert piece.data.shape == (7, 2, 6)
    assert piece.data.dtype == np.uint16
    assert list(piece.positions) == list(range(3, 10))
    per_token = 2 * MODEL.layers * piece.data[0].nbytes
    assert per_token == source.info.kv_bytes_per_token


def test_kv_looks_like_small_bfloat16_numbers() -> None:
    bits = computed().read(A, 0, Part.KEY, 0, 50).data.astype(np.uint32) << 16
    values = bits.view(np.float32)
    assert np.isfinite(values).all()
    assert 0 < np.abs(values).max() < 2
    assert (values < 0).any()
    assert (values > 0).any()
    assert len(np.unique(bits)) > 300


def test_kv_differs_by_layer_part_token_and_prefix() -> None:
    source = computed()
    pieces = [source.read(A, n, part, 4, 5).data for n, part in product(range(3), Part)]
    pieces.append(source.read(A, 0, Part.KEY, 5, 6).data)
    pieces.append(computed((1, *PROMPT[1:])).read(A, 0, Part.KEY, 4, 5).data)
    assert len({piece.tobytes() for piece in pieces}) == len(pieces)


def test_an_import_in_any_order_and_with_repeats_goes_on_with_the_same_tokens() -> None:
    source, target = computed(), engine(block_size=8)
    target.open(B, spec(), reuse=False)
    assert target.open_import(B, len(PROMPT)) == 0
    assert target.missing(B) == 2 * MODEL.layers * len(PROMPT)
    carry(source, target, [(30, 50), (0, 13), (30, 50)])
    assert target.missing(B) == 2 * MODEL.layers * 17
    with pytest.raises(ValueError, match="missing"):
        target.commit_import(B)
    carry(source, target, [(10, 31)])
    target.commit_import(B)
    assert target.computed(B) == len(PROMPT)
    target.set_goal(B, len(PROMPT) + 20)
    assert run(target)[B] == TEXT


def test_nothing_runs_while_an_import_is_open() -> None:
    target = engine()
    target.open(B, spec(), reuse=False)
    target.open_import(B, len(PROMPT))
    target.set_goal(B, len(PROMPT) + 1)
    assert target.begin() is None


@pytest.mark.parametrize(
    "change",
    [
        lambda kv: {"data": kv.data ^ np.uint16(1)},
        lambda kv: {"data": kv.data[:, ::-1]},
        lambda kv: {"data": kv.data.astype(np.uint32)},
        lambda kv: {"data": kv.data[:-1]},
        lambda kv: {"positions": kv.positions + 1},
        lambda kv: {"layer": 2},
        lambda kv: {"layer": 3},
        lambda kv: {"part": Part.VALUE},
        lambda kv: {"start": kv.start + 1, "stop": kv.stop + 1},
        lambda kv: {"start": -1},
        lambda kv: {"stop": 99},
    ],
)
def test_kv_that_this_engine_would_not_have_computed_is_refused(change: object) -> None:
    source, target = computed(), engine()
    target.open(B, spec(), reuse=False)
    target.open_import(B, len(PROMPT))
    piece = source.read(A, 0, Part.KEY, 5, 20)
    with pytest.raises(ValueError):
        target.put(B, replace(piece, **change(piece)))  # type: ignore[operator]
    assert target.missing(B) == 2 * MODEL.layers * len(PROMPT)


def test_kv_without_an_open_import_is_refused() -> None:
    source, target = computed(), engine()
    piece = source.read(A, 0, Part.KEY, 5, 20)
    with pytest.raises(KeyError):
        target.put(B, piece)
    target.open(B, spec(), reuse=False)
    with pytest.raises(ValueError, match="no import"):
        target.put(B, piece)


def test_only_what_is_there_can_be_read() -> None:
    source = engine()
    source.open(A, spec(), reuse=False)
    source.set_goal(A, len(PROMPT) + 1)
    step = source.begin()
    assert step is not None
    source.finish(step)
    assert isinstance(source.read(A, 0, Part.KEY, 0, 32), KVSlice)
    with pytest.raises(ValueError, match="32 are there"):
        source.read(A, 0, Part.KEY, 0, 33)
    source.close(A)
    with pytest.raises(KeyError):
        source.read(A, 0, Part.KEY, 0, 1)


# -------------------------------------------------------------------- memory and prefixes


def test_a_prefix_that_is_known_is_not_computed_again() -> None:
    one = engine()
    say(one, 20)
    assert one.open(B, spec(), reuse=True) == 48
    assert one.kv_held_tokens() == 80  # A's five blocks; three of them are B's too
    one.set_goal(B, len(PROMPT) + 20)
    assert run(one)[B] == TEXT


def test_the_last_token_is_never_taken_from_the_cache() -> None:
    one = computed(PROMPT[:48])
    one.close(A)
    assert one.open(B, spec(PROMPT[:48]), reuse=True) == 32
    one.close(B)
    one.open(B, spec(PROMPT[:48]), reuse=False)
    assert one.open_import(B, 48) == 48


def test_a_salt_keeps_prefixes_apart() -> None:
    one = computed()
    assert one.open(B, spec(cache_salt="x"), reuse=True) == 0


def test_an_unfinished_import_leaves_its_whole_blocks_as_cache() -> None:
    source, target = computed(), engine()
    target.open(B, spec(), reuse=False)
    target.open_import(B, len(PROMPT))
    carry(source, target, [(0, 40)])
    target.close(B)
    assert target.kv_held_tokens() == 0
    assert target.open(B, spec(), reuse=True) == 32


def test_no_room_is_said_and_nothing_is_held() -> None:
    one = engine(kv_total_tokens=96)
    one.open(A, spec(reserve=60), reuse=False)
    with pytest.raises(NoRoom) as full:
        one.open(B, spec(reserve=60), reuse=False)
    assert (full.value.wanted, full.value.free) == (64, 32)
    with pytest.raises(NoRoom):
        one.grow(A, 97)
    one.grow(A, 96)
    assert one.kv_free_tokens() == 0
    one.close(A)
    assert one.kv_free_tokens() == 96


def test_shared_blocks_are_counted_once() -> None:
    one = computed()
    one.open(B, spec(), reuse=False)
    one.share(A, B, len(PROMPT))
    assert one.computed(B) == len(PROMPT)
    assert one.kv_held_tokens() == 48 + 16 + 16
    one.close(A)
    one.set_goal(B, len(PROMPT) + 20)
    assert run(one)[B] == TEXT
    one.close(B)
    assert one.kv_held_tokens() == 0


def test_only_equal_and_computed_tokens_are_shared() -> None:
    one = computed()
    one.open(B, spec((1, *PROMPT[1:])), reuse=False)
    with pytest.raises(ValueError, match="differ"):
        one.share(A, B, len(PROMPT))
    with pytest.raises(ValueError, match="are computed"):
        one.share(A, B, len(PROMPT) + 1)


@pytest.mark.parametrize("verb", ["close", "cancel", "length", "computed"])
def test_every_verb_on_an_unknown_sequence_raises(verb: str) -> None:
    with pytest.raises(KeyError):
        getattr(engine(), verb)(A)


def test_senseless_sequences_are_refused() -> None:
    one = engine()
    with pytest.raises(ValueError, match="vocabulary"):
        one.open(A, spec((32_000,)), reuse=False)
    with pytest.raises(ValueError, match="context"):
        one.open(A, spec((1,) * 9000), reuse=False)
    with pytest.raises(ValueError, match="prompt"):
        one.open(A, spec((1,), prompt_len=2), reuse=False)
    one.open(A, spec(), reuse=False)
    with pytest.raises(ValueError, match="open already"):
        one.open(A, spec(), reuse=False)
    with pytest.raises(ValueError, match="cannot cut"):
        one.truncate(A, 51)
    one.open_import(A, 50)
    with pytest.raises(ValueError, match="is open"):
        one.open_import(A, 50)
    with pytest.raises(ValueError, match="is open"):
        one.truncate(A, 3)
