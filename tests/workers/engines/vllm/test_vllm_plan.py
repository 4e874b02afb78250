"""Which tokens a step copies, and between which blocks."""

from itertools import pairwise

import numpy as np
import pytest

from workers.engines.vllm.inside.plan import Copy, Run, covering, heads_of, slots

PARAMS = {"pool": "p", "row": 1, "run": 7, "have": 20, "blocks": [4, 9, 2], "block_size": 16}


def run(**changes: object) -> Run:
    return Run.of(PARAMS | changes)


def test_a_run_is_read_from_the_request() -> None:
    assert run() == Run("p", 1, 7, 20, (4, 9, 2), 16)
    assert run().capacity == 48


@pytest.mark.parametrize(
    "changes",
    [
        {"have": 49},
        {"have": -1},
        {"blocks": [1, -1]},
        {"blocks": []},
        {"block_size": 0},
        {"block_size": 1 << 40},
        {"row": -1},
        {"have": "many"},
        {"blocks": None},
    ],
)
def test_a_senseless_run_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError)):
        run(**changes)


@pytest.mark.parametrize(
    ("have", "tokens", "computed", "loadable"),
    [
        (0, 10, 0, 0),
        (20, 30, 0, 20),
        (20, 30, 16, 4),
        (20, 30, 32, 0),
        (20, 20, 0, 19),  # the last token gives the logits
        (20, 21, 0, 20),
        (1, 1, 0, 0),
        (20, 20, 16, 3),
    ],
)
def test_what_the_pool_can_give(have: int, tokens: int, computed: int, loadable: int) -> None:
    assert run(have=have).loadable(tokens, computed) == loadable


def test_a_copy_names_the_blocks_that_cover_it_on_both_sides() -> None:
    copy = run().load(16, 20, [[5, 6], [0, 0, 0, 0, 8]], [32, 4])
    assert copy == Copy("p", 1, 7, 16, 20, ((5,), (8,)), (9,))


def test_chunks_are_saved_as_they_come_and_nothing_twice() -> None:
    here, tables = run(have=5), [[3, 1, 8]]
    first = here.save(20, tables, [16])
    assert first == Copy("p", 1, 7, 5, 20, ((3, 1),), (4, 9))
    assert here.save(20, tables, [16]) is None
    assert here.save(21, tables, [16]) == Copy("p", 1, 7, 20, 21, ((1,),), (9,))


def test_what_vllm_found_in_its_own_cache_is_saved_too() -> None:
    """The step computes [32, 33); the pool had only five tokens."""
    copy = run(have=5).save(33, [[3, 1, 8]], [16])
    assert copy is not None
    assert (copy.start, copy.stop) == (5, 33)


def test_after_a_preemption_all_comes_back_from_the_pool() -> None:
    here = run(have=5)
    here.save(40, [[3, 1, 8]], [16])
    assert here.loadable(45, 0) == 40
    assert here.save(40, [[7, 6, 5]], [16]) is None


def test_nothing_is_saved_past_the_blocks_that_were_given() -> None:
    here = run(have=47)
    copy = here.save(50, [[3, 1, 8, 2]], [16])
    assert copy is not None
    assert copy.stop == 48
    assert here.save(51, [[3, 1, 8, 2]], [16]) is None


def test_slots_follow_the_blocks() -> None:
    assert slots((5, 2), 4, 6, 11).tolist() == [22, 23, 8, 9, 10]
    every = slots(covering([9, 5, 2], 4, 6, 11), 4, 6, 11)
    assert every.tolist() == [22, 23, 8, 9, 10]
    assert every.dtype == np.int64
    with pytest.raises(ValueError, match="tokens up to 13"):
        covering([9, 5, 2], 4, 6, 13)


@pytest.mark.parametrize("block_size", [1, 3, 16, 128])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 127, 128, 129, 1000])
def test_pieces_of_slots_make_up_the_whole(length: int, block_size: int) -> None:
    blocks = np.random.default_rng(length).permutation(-(-length // block_size)).tolist()
    whole = slots(covering(blocks, block_size, 0, length), block_size, 0, length)
    assert len(set(whole.tolist())) == length
    cuts = [0, length // 3, length // 2, length]
    parts = [
        slots(covering(blocks, block_size, a, b), block_size, a, b)
        for a, b in pairwise(cuts)
        if a < b
    ]
    assert np.concatenate(parts).tolist() == whole.tolist()


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 8])
@pytest.mark.parametrize("ranks", [1, 2, 4, 6, 8, 16])
def test_ranks_share_the_heads_out(kv_heads: int, ranks: int) -> None:
    if kv_heads % ranks and ranks % kv_heads:
        with pytest.raises(ValueError, match="cannot be shared out"):
            heads_of(0, ranks, kv_heads)
        return
    kept = [heads_of(rank, ranks, kv_heads) for rank in range(ranks)]
    copies = max(1, ranks // kv_heads)
    heads = sorted(head for first, last in kept for head in range(first, last))
    assert heads == sorted(list(range(kv_heads)) * copies)
    assert kept == sorted(kept)
