"""The pool in shared memory: one file, two who map it."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from workers.engines.models import ModelError
from workers.engines.vllm.load import private
from workers.engines.vllm.pool import PoolRefused, PoolShape, SharedPool, sweep

SHAPE = PoolShape(
    layers=2,
    slots=12,
    kv_heads=2,
    head_size=4,
    kv_dtype="bfloat16",
    block_size=4,
    rows=3,
    ranks=2,
)


def test_what_one_writes_the_other_reads(tmp_path: Path) -> None:
    ours = SharedPool.create(tmp_path / "pools" / "a", SHAPE)
    theirs = SharedPool.open(tmp_path / "pools", "a")
    assert theirs.shape == SHAPE
    assert theirs.bits.dtype == np.uint16
    assert theirs.bits.shape == (2, 2, 12, 2, 4)
    theirs.bits[1, 0, 5] = 7
    theirs.saved[2, 1, 0] = 9
    theirs.epochs[1] += np.uint64(1)
    ours.claims[0] = 3
    ours.margins[1, 2] = 0.5
    assert (ours.bits[1, 0, 5] == 7).all()
    assert ours.bits.sum() == 7 * 8
    assert ours.saved.sum() == 9
    assert ours.epochs.tolist() == [0, 1]
    assert theirs.claims.tolist() == [3, 0, 0]
    assert theirs.margins[1, 2] == 0.5


def test_no_two_parts_overlap(tmp_path: Path) -> None:
    pool = SharedPool.create(tmp_path / "a", SHAPE)
    for part in (pool.claims, pool.epochs, pool.saved, pool.margins, pool.bits):
        assert not part.any()
        part[...] = 1
    pool.report("a" * 1000)
    again = SharedPool.open(tmp_path, "a")
    assert again.shape == SHAPE
    assert again.fault == "a" * 512
    assert all(
        (part == 1).all()
        for part in (again.claims, again.epochs, again.saved, again.margins, again.bits)
    )


def test_the_first_fault_stays(tmp_path: Path) -> None:
    pool = SharedPool.create(tmp_path / "a", SHAPE)
    assert pool.fault is None
    pool.report("two ranks, not one")
    pool.report("and another thing")
    assert SharedPool.open(tmp_path, "a").fault == "two ranks, not one"


@pytest.mark.parametrize("name", ["", "../a", "/etc/passwd", ".a", "b/a"])
def test_only_a_plain_name_is_opened(tmp_path: Path, name: str) -> None:
    SharedPool.create(tmp_path / "a", SHAPE)
    with pytest.raises(PoolRefused, match="plain file name"):
        SharedPool.open(tmp_path / "b", name)


def test_links_strangers_and_torn_files_are_refused(tmp_path: Path) -> None:
    pool = SharedPool.create(tmp_path / "a", SHAPE)
    assert os.stat(pool.path).st_mode & 0o777 == 0o600
    (tmp_path / "link").symlink_to(pool.path)
    with pytest.raises(PoolRefused, match="link"):
        SharedPool.open(tmp_path, "link")
    with pytest.raises(PoolRefused, match="No such file"):
        SharedPool.open(tmp_path, "b")
    (tmp_path / "c").write_bytes(b"x" * 5000)
    with pytest.raises(PoolRefused, match="no KV pool"):
        SharedPool.open(tmp_path, "c")
    os.truncate(pool.path, 8192)
    with pytest.raises(PoolRefused, match="its shape needs"):
        SharedPool.open(tmp_path, "a")


def test_a_pool_that_does_not_fit_is_refused_before_it_is_made(tmp_path: Path) -> None:
    with pytest.raises(PoolRefused, match="lower kv_tokens"):
        SharedPool.create(tmp_path / "a", replace(SHAPE, slots=1 << 50))
    assert not (tmp_path / "a").exists()


def test_nobody_takes_a_pool_that_is_there(tmp_path: Path) -> None:
    SharedPool.create(tmp_path / "a", SHAPE)
    with pytest.raises(PoolRefused, match="exists"):
        SharedPool.create(tmp_path / "a", SHAPE)


def test_pools_of_the_dead_are_swept_away(tmp_path: Path) -> None:
    """Also where no guard was left to do it; one that is in use stays, and what is no pool."""
    kept = SharedPool.create(tmp_path / "kept", SHAPE)
    (tmp_path / "left").write_bytes(kept.path.read_bytes()[:4096])
    (tmp_path / "left.sock").touch()  # its vLLM listened there
    (tmp_path / "a file of others").write_bytes(b"x")
    (tmp_path / "a folder of others").mkdir()
    (tmp_path / "a link").symlink_to(tmp_path / "nothing")
    sweep(tmp_path)
    sweep(tmp_path / "no such folder")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"kept", "a file of others", "a folder of others", "a link"}


def test_a_row_wants_its_own_run_only(tmp_path: Path) -> None:
    """The sampler of a run that was aborted leaves the next one's margins alone."""
    pool = SharedPool.create(tmp_path / "a", SHAPE)
    pool.claims[1] = 7
    assert pool.wants(1, 7)
    assert not pool.wants(1, 8)
    assert not pool.wants(SHAPE.rows, 7)


def test_the_folder_of_pools_is_this_users_alone(tmp_path: Path) -> None:
    own = tmp_path / "own"
    assert private(own) == private(own) == own
    own.chmod(0o755)
    with pytest.raises(ModelError, match="must be this user's folder"):
        private(own)
    own.chmod(0o700)
    (tmp_path / "link").symlink_to(own)
    with pytest.raises(ModelError, match="must be this user's folder"):
        private(tmp_path / "link")
