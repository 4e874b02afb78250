"""The prefix cache is read by name, and an import may end with what has come of it."""

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
    spec,
)
from workers.api.info import Part
from workers.engines.base import SeqId
from workers.engines.simulated.engine import SimulatedEngine
from workers.kv.prefix import block_names

NAMES = block_names(MODEL.fingerprint.canonical, "", PROMPT)


def canonical(source: SimulatedEngine, start: int, stop: int) -> np.ndarray:
    """What `read_cached` should give of A's tokens."""
    return np.stack(
        [
            np.stack([source.read(A, layer, part, start, stop).data for part in Part])
            for layer in range(MODEL.layers)
        ]
    )


def test_a_cached_unit_has_the_bytes_of_its_tokens_also_without_its_sequence() -> None:
    source = computed()
    units = [canonical(source, at, at + 16) for at in (0, 16, 32)]
    for closed in (False, True):
        if closed:
            source.close(A)
        for name, unit in zip(NAMES, units, strict=True):
            read = source.read_cached(name)
            assert read is not None
            assert (read == unit).all()


def test_units_of_larger_blocks_have_the_name_of_their_last_16_tokens() -> None:
    source = engine(block_size=24, kv_total_tokens=960)
    source.open(A, spec(), reuse=False)
    source.set_goal(A, len(PROMPT))
    run(source)
    read = source.read_cached(NAMES[2])
    assert read is not None
    assert (read == canonical(source, 0, 48)).all()
    assert source.read_cached(NAMES[0]) is None


def test_what_was_evicted_is_not_read_and_what_took_its_place_has_its_own_bytes() -> None:
    source = engine(kv_total_tokens=112)
    for number in range(3):
        tokens = tuple(t + 1000 * number for t in PROMPT)
        seq = SeqId(f"s{number}", 0)
        source.open(seq, spec(tokens, reserve=len(tokens)), reuse=False)
        source.set_goal(seq, len(tokens))
        run(source)
        source.close(seq)
    assert source.read_cached(NAMES[0]) is None
    last = block_names(MODEL.fingerprint.canonical, "", tokens)
    read, alone = source.read_cached(last[1]), computed(tokens)
    assert read is not None
    assert (read == canonical(alone, 16, 32)).all()


def loading(target: SimulatedEngine, tokens: int, *, holes: tuple[int, ...] = ()) -> None:
    """An import of `tokens` into B; blocks of 16 in `holes` have not come."""
    source = computed()
    target.open(B, spec(), reuse=True)
    target.open_import(B, tokens)
    for layer in range(MODEL.layers):
        for part in Part:
            for block in range(tokens // 16):
                if block not in holes or layer == 0:
                    at = 16 * block
                    target.put(B, source.read(A, layer, part, at, at + 16))


@pytest.mark.parametrize(
    ("holes", "kept"), [((), 48), ((2,), 32), ((1,), 16), ((0,), 0), ((0, 1, 2), 0)]
)
@pytest.mark.parametrize("block_size", [16, 32, 24])
def test_an_import_ends_with_its_complete_beginning(
    holes: tuple[int, ...], kept: int, block_size: int
) -> None:
    """The rest is computed, and the text is the same."""
    target = engine(block_size=block_size, kv_total_tokens=block_size * 20)
    loading(target, 48, holes=holes)
    assert target.imported(B) == kept
    assert target.keep_import(B) == kept == target.computed(B)
    target.set_goal(B, len(PROMPT) + 20)
    assert run(target)[B] == TEXT
    target.close(B)
    assert target.kv_held_tokens() == 0


def test_what_an_import_did_not_bring_goes_back() -> None:
    target = engine(kv_total_tokens=160)
    loading(target, 48, holes=(1, 2))
    before = target.kv_free_tokens()
    target.keep_import(B)
    assert target.kv_held_tokens() == 16
    assert target.kv_free_tokens() == before  # still promised to B
    target.close(B)
    assert target.kv_free_tokens() == 160


def test_an_import_goes_on_from_what_the_cache_has() -> None:
    target = computed()
    loading(target, 48, holes=(0, 1, 2))
    assert target.keep_import(B) == 48
