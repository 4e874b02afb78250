"""Copies between caches as vLLM keeps them and a worker's pool."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.workers.engines.vllm.copier_rig import (
    HEADS,
    LAYERS,
    SIZE,
    cache,
    copier,
    paired,
    save_all,
    shape,
    values,
)
from workers.engines.vllm.inside.layouts import VIEWS, UnknownLayout, gather, scatter, views_of
from workers.engines.vllm.inside.plan import Copy, Run, slots
from workers.engines.vllm.pool import SharedPool

OURS = (3, 1, 5, 0)  # the pool's blocks
RUN = 7


def run(have: int, blocks: tuple[int, ...] = OURS, size: int = SIZE) -> Run:
    return Run("a", 1, RUN, have, blocks, size)


def pool_with(folder: Path, tokens: np.ndarray, **changes: object) -> SharedPool:
    """A pool that has the first tokens of the run."""
    pool = SharedPool.create(folder / "a", shape(**changes))
    pool.claims[1] = RUN
    count, size = tokens.shape[2], pool.shape.block_size
    at = slots(OURS[: -(-count // size)], size, 0, count) if count else []
    pool.bits[:, :, at] = tokens.view(np.uint32)
    return pool


def read(pool: SharedPool, count: int) -> np.ndarray:
    size = pool.shape.block_size
    at = slots(OURS[: -(-count // size)], size, 0, count)
    return pool.bits[:, :, at].view(np.float32)


def in_cache(caches: list[torch.Tensor], table: list[int], size: int, kind: str, count: int):
    at = torch.from_numpy(slots(table, size, 0, -(-count // size) * size)[:count])
    return np.stack(
        [np.stack([gather(view, at).numpy() for view in VIEWS[kind](each)]) for each in caches]
    )


@pytest.mark.parametrize("kind", VIEWS)
@pytest.mark.parametrize("size", [4, 16, 32, 128])
@pytest.mark.parametrize("count", [1, 15, 16, 17, 33, 50])
def test_what_is_loaded_is_saved_again(tmp_path: Path, kind: str, size: int, count: int) -> None:
    """Through one vLLM into the other end's pool; block sizes differ at will."""
    tokens = values(count)
    pool = pool_with(tmp_path, tokens)
    caches = [(paired if kind == "pair" else cache)(30, size) for _ in range(LAYERS)]
    table = np.random.default_rng(count).permutation(np.arange(1, 30)).tolist()
    one = copier(tmp_path, caches, size=size, kind=kind)
    one.begin([run(count).load(0, count, [table], [size])], [])
    one.load()
    one.end()
    assert (in_cache(caches, table, size, kind, count) == tokens).all()
    pool.bits[:] = 0
    copy = run(0).save(count, [table], [size])
    assert copy is not None
    one.begin([], [copy])
    save_all(one)
    one.end()
    assert (read(pool, count) == tokens).all()
    assert (pool.saved[1] == count).all()
    assert pool.saved.sum() == count * LAYERS
    assert not one.take_failed_blocks()
    assert pool.fault is None


def test_a_block_of_the_cpu_lies_as_vllm_has_it() -> None:
    """K of a block and head as [head, tokens], then V as [tokens, head]."""
    block = torch.arange(2 * 4 * 3, dtype=torch.float32).view(1, 1, 4, 2 * 3)
    key, value = VIEWS["cpu"](block)
    assert key[0, :, 0].tolist() == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]
    assert value[0, :, 0].tolist() == [[12, 13, 14], [15, 16, 17], [18, 19, 20], [21, 22, 23]]


def test_many_runs_are_saved_together(tmp_path: Path) -> None:
    """Each to its own blocks and rows; one of them was revoked."""
    pool = pool_with(tmp_path, values(0))
    pool.claims[2], pool.claims[3] = 8, 99
    tokens = values(48)
    caches = [cache(8, 16) for _ in range(LAYERS)]
    at = torch.from_numpy(slots((1, 2, 3), 16, 0, 48))
    for n, each in enumerate(caches):
        for part, view in enumerate(VIEWS["content"](each)):
            scatter(view, at, torch.from_numpy(tokens[n, part]))
    one = copier(tmp_path, caches, size=16)
    first = Copy("a", 1, RUN, 0, 16, ((1,),), (0,))
    other = Copy("a", 2, 8, 3, 10, ((2,),), (4,))
    revoked = Copy("a", 3, 9, 0, 16, ((3,),), (5,))
    one.begin([], [first, other, revoked])
    save_all(one)
    one.end()
    assert (pool.bits[:, :, :16].view(np.float32) == tokens[:, :, :16]).all()
    assert (pool.bits[:, :, 67:74].view(np.float32) == tokens[:, :, 19:26]).all()
    assert not pool.bits[:, :, 74:].any()
    assert pool.saved[:, 0, 0].tolist() == [0, 16, 10, 0]


def test_a_device_is_waited_for_once_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Played by the meta device, whose bytes are nowhere: `_to_host` brings others."""
    waited: list[bool] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: waited.append(True))
    monkeypatch.setattr(
        "workers.engines.vllm.inside.copier._to_host", lambda data: torch.ones(data.shape)
    )
    pool = pool_with(tmp_path, values(0))
    one = copier(tmp_path, [cache(8, 16).to("meta") for _ in range(LAYERS)], size=16)
    copy = run(0).save(20, [[2, 3]], [16])
    assert copy is not None
    one.begin([], [copy])
    save_all(one)
    assert not pool.saved.any()
    assert pool.epochs.tolist() == [1]
    one.finish()
    assert waited == [True]
    assert (pool.saved[1] == 20).all()
    assert (read(pool, 20) == 1).all()
    one.end()
    one.finish()
    assert waited == [True]


def test_how_a_cache_lies_is_known_or_refused() -> None:
    here = cache(4, 16)
    assert views_of("l", here, "vec") is VIEWS["cpu"]
    assert views_of("l", here, None) is VIEWS["content"]
    assert views_of("l", paired(4, 16), None) is VIEWS["pair"]
    for isa in ("amx", "vec16", "neon"):
        with pytest.raises(UnknownLayout, match=isa):
            views_of("l", here, isa)
    for strange in (here[0], [here], [here, here[:2]], [here] * 3):
        with pytest.raises(UnknownLayout, match="is not known"):
            views_of("l", strange, None)


def test_a_tensor_of_smaller_blocks_than_the_tables_have(tmp_path: Path) -> None:
    """Attention's kernel may see a block of 32 tokens as two of 16."""
    tokens = values(40)
    pool_with(tmp_path, tokens)
    caches = [cache(12, 16) for _ in range(LAYERS)]
    one = copier(tmp_path, caches, size=32)
    one.begin([run(40).load(0, 40, [[4, 2]], [32])], [])
    one.load()
    assert (in_cache(caches, [8, 9, 4], 16, "content", 40) == tokens).all()


def test_each_layer_tells_when_it_is_there(tmp_path: Path) -> None:
    pool = pool_with(tmp_path, values(0))
    caches = [torch.zeros_like(cache(8, 16)) for _ in range(LAYERS)]
    one = copier(tmp_path, caches, size=16)
    copy = run(0).save(20, [[2, 3]], [16])
    assert copy is not None
    one.begin([], [copy])
    assert one.saving
    one.save("model.layers.0.attn")
    assert pool.saved[1, :, 0].tolist() == [20, 0, 0]
    one.save("model.layers.1.attn")
    assert pool.saved[1, :, 0].tolist() == [20, 20, 0]
    one.end()
    assert not one.saving


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_each_rank_brings_its_heads(tmp_path: Path, ranks: int) -> None:
    tokens = values(20)
    pool = pool_with(tmp_path, tokens, ranks=ranks)
    each = max(1, HEADS // ranks)
    everyone = []
    for rank in range(ranks):
        caches = [cache(8, 16, each) for _ in range(LAYERS)]
        one = copier(tmp_path, caches, size=16, rank=rank, ranks=ranks)
        one.begin([run(20).load(0, 20, [[2, 3]], [16])], [])
        one.load()
        one.end()
        everyone.append((one, caches))
        first = rank * HEADS // ranks
        there = in_cache(caches, [2, 3], 16, "content", 20)
        assert (there == tokens[:, :, :, first : first + each]).all()
    pool.bits[:] = 0
    for rank, (one, _) in enumerate(everyone):
        copy = run(0).save(20, [[2, 3]], [16])
        assert copy is not None
        one.begin([], [copy])
        save_all(one)
        one.end()
        assert (pool.saved[1].min(axis=1) == (20 if rank == ranks - 1 else 0)).all()
    assert (read(pool, 20) == tokens).all()


def test_what_left_a_window_is_not_loaded(tmp_path: Path) -> None:
    """Layer 1's group has only the last 16 tokens; block 0 is nobody's."""
    tokens = values(40)
    pool_with(tmp_path, tokens)
    caches = [cache(8, 16) for _ in range(LAYERS)]
    for each in caches:
        each[0] = 5.0
    one = copier(tmp_path, caches, size=16, groups=(0, 1, 0))
    one.begin([run(40).load(0, 40, [[1, 2, 3], [0, 4, 5]], [16, 16])], [])
    one.load()
    assert all((each[0] == 5).all() for each in caches)
    assert (in_cache([caches[0], caches[2]], [1, 2, 3], 16, "content", 40) == tokens[::2]).all()
    window = in_cache([caches[1]], [4, 5], 16, "content", 24)
    assert (window[0] == tokens[1, :, 16:]).all()


def test_kv_that_left_a_window_before_it_was_saved_is_said(tmp_path: Path) -> None:
    pool = pool_with(tmp_path, values(0))
    one = copier(tmp_path, [cache(8, 16) for _ in range(LAYERS)], size=16, groups=(0, 1, 0))
    copy = run(0).save(40, [[1, 2, 3], [0, 4, 5]], [16, 16])
    assert copy is not None
    one.begin([], [copy])
    save_all(one)
    assert pool.fault is not None
    assert "--no-enable-prefix-caching" in pool.fault
    assert pool.saved[1, :, 0].tolist() == [40, 0, 40]


# -------------------------------------------------------------------- runs that are not wanted


def test_a_revoked_run_writes_and_loads_nothing(tmp_path: Path) -> None:
    tokens = values(20)
    pool = pool_with(tmp_path, tokens)
    before = pool.bits.copy()
    pool.claims[1] = RUN + 1  # somebody else's by now
    caches = [cache(8, 16) for _ in range(LAYERS)]
    one = copier(tmp_path, caches, size=16)
    copy = run(0).save(20, [[2, 3]], [16])
    assert copy is not None
    one.begin([run(20).load(0, 20, [[4, 5]], [16])], [copy])
    one.load()
    save_all(one)
    one.end()
    assert (pool.bits == before).all()
    assert not pool.saved.any()
    assert all(each.isnan().all() for each in caches)
    assert one.take_failed_blocks() == {4, 5}
    assert not one.take_failed_blocks()


@pytest.mark.parametrize(
    ("row", "blocks", "size"),
    [(4, OURS, SIZE), (1, (3, 6), SIZE), (1, (3,), 2 * SIZE)],
    ids=["a row", "a block", "a block size"],
)
def test_what_the_pool_does_not_have_is_left_alone(
    tmp_path: Path, row: int, blocks: tuple[int, ...], size: int
) -> None:
    """It would end vLLM, and with it everybody's requests."""
    tokens = values(20)
    pool = pool_with(tmp_path, tokens)
    before = pool.bits.copy()
    caches = [cache(8, 16) for _ in range(LAYERS)]
    one = copier(tmp_path, caches, size=16)
    load, save = Run("a", row, RUN, 20, blocks, size), Run("a", row, RUN, 0, blocks, size)
    one.begin([load.load(0, 20, [[4, 5]], [16])], [save.save(20, [[2, 3]], [16])])
    one.load()
    save_all(one)
    one.end()
    assert (pool.bits == before).all()
    assert one.take_failed_blocks() == {4, 5}


def test_the_epoch_is_odd_while_a_step_works(tmp_path: Path) -> None:
    pool = pool_with(tmp_path, values(20))
    one = copier(tmp_path, [cache(8, 16) for _ in range(LAYERS)], size=16)
    one.begin([run(20).load(0, 20, [[4, 5]], [16])], [])
    assert pool.epochs.tolist() == [1]
    one.begin([], [])  # the step before was broken off
    assert pool.epochs.tolist() == [1]
    one.end()
    one.end()
    assert pool.epochs.tolist() == [2]


def test_a_pool_that_is_not_there_costs_only_its_own_runs(tmp_path: Path) -> None:
    pool = pool_with(tmp_path, values(20))
    one = copier(tmp_path, [cache(8, 16) for _ in range(LAYERS)], size=16)
    here = run(20).load(0, 20, [[4, 5]], [16])
    gone = Copy("b", 1, RUN, 0, 20, ((6, 7),), OURS[:2])
    one.begin([here, gone], [])
    one.load()
    one.end()
    assert one.take_failed_blocks() == {6, 7}
    assert pool.epochs.tolist() == [2]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ranks": 2}, "for 2 tensor-parallel ranks, vLLM has 1"),
        ({"kv_heads": 2}, "keeps 4 KV heads of 8 on this rank, the pool is for 2 of 8"),
        ({"head_size": 16}, "the pool is for 4 of 16 in 3 layers"),
        ({"layers": 2}, "in 2 layers"),
        ({"kv_dtype": "bfloat16"}, "vLLM keeps KV as torch.float32, the pool as bfloat16"),
    ],
)
def test_a_pool_of_another_model_is_told_why(tmp_path: Path, changes, words: str) -> None:
    pool = SharedPool.create(tmp_path / "a", shape(**changes))
    pool.claims[1] = RUN
    one = copier(tmp_path, [cache(8, 16) for _ in range(LAYERS)], size=16)
    one.begin([run(20).load(0, 20, [[4, 5]], [16])], [])
    assert one.take_failed_blocks() == {4, 5}
    assert pool.fault is not None
    assert words in pool.fault
    assert not pool.epochs.any()
