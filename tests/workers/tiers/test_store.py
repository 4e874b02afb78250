"""Both tiers together: what is where, what comes back, and what accidents do."""

import errno
import os
import random
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.workers.server_rig import wait_until
from tests.workers.tiers.blocks_rig import (
    NBYTES,
    at_once,
    block,
    counts,
    fill,
    key,
    served,
    store,
    written,
)
from workers.tiers.blocks import Block, Tier
from workers.tiers.files import HEAD_BYTES, BlockFiles
from workers.tiers.store import BlockStore

ALL = range(40)


def file_of(folder: Path, number: int, tenant: str = "t") -> Path:
    return BlockFiles(folder).path(key(number), tenant)


def only_in_files(folder: Path, numbers: range) -> BlockStore:
    """A store that was started again: its memory is empty."""
    before = store(folder)
    fill(before, numbers)
    before.close()
    return store(folder)


# ------------------------------------------------------------------------------- where blocks are


def test_memory_goes_over_into_files(tmp_path: Path) -> None:
    tiers = store(tmp_path)
    fill(tiers, range(15))
    written(tiers)
    found = tiers.find([key(number) for number in range(16)])
    assert found == [Tier.FILES] * 6 + [Tier.MEMORY] * 9 + [None]
    assert counts(tiers)["misses"] == 1
    assert served(tiers, range(15)) == list(range(15))
    assert counts(tiers)["hits_nvme"] + counts(tiers)["hits_dram"] == 15
    tiers.find([key(16)], to_save=True)
    assert counts(tiers)["misses"] == 1
    assert tiers.account()["tiers"]["dram"]["bytes"] <= 10 * NBYTES


def test_without_files_memory_is_all(tmp_path: Path) -> None:
    tiers = store()
    fill(tiers, ALL)
    assert served(tiers, ALL) == list(range(31, 40))
    assert counts(tiers)["evicted_dram_room"] == 31


def test_what_is_read_from_a_file_is_in_memory_next_time(tmp_path: Path) -> None:
    tiers = only_in_files(tmp_path, range(3))
    for expected in (Tier.FILES, Tier.MEMORY):
        found = tiers.get(key(1))
        assert found is not None
        assert found[1] is expected


def test_files_are_bounded_and_evicted(tmp_path: Path) -> None:
    tiers = store(tmp_path)
    fill(tiers, ALL)
    written(tiers)
    there = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(there) == tiers.account()["tiers"]["nvme"]["blocks"] <= 19
    assert counts(tiers)["evicted_nvme_room"] == 40 - len(there)


def test_the_end_of_a_chain_leaves_first(tmp_path: Path) -> None:
    """The beginning of a prefix is worth more than what follows it."""
    tiers = store(memory_bytes=10 * NBYTES)
    tiers.put("t", [block(number) for number in range(9)])
    tiers.find([key(number) for number in range(9)])
    fill(tiers, range(100, 104))
    assert served(tiers, range(9)) == [0, 1, 2, 3, 4]


def test_a_known_block_does_not_fail_a_batch() -> None:
    tiers = store()
    tiers.put("t", [block(1)])
    tiers.put("t", [block(1), block(2), block(2), block(3)])
    assert served(tiers, range(1, 4)) == [1, 2, 3]
    assert (counts(tiers)["written_dram"], counts(tiers)["known"]) == (3, 2)


def test_damaged_blocks_are_not_taken() -> None:
    tiers = store()
    name, good = block(1)
    tiers.put("t", [(name, Block(good.data[:-1] + b"?", good.crc)), block(2)])
    assert served(tiers, range(3)) == [2]
    assert counts(tiers)["defect_put_corrupt"] == 1


def test_another_keys_bytes_are_not_taken() -> None:
    """A tier that hands out another request's KV would have to be given it under that name."""
    tiers = store()
    tiers.put("t", [(key(1), block(2)[1])])
    assert tiers.get(key(1)) is None


def test_a_tenants_name_cannot_leave_the_folder(tmp_path: Path) -> None:
    tiers = store(tmp_path)
    with pytest.raises(ValueError, match=r"tenant '\.\./x'"):
        tiers.put("../x", [block(1)])


# ------------------------------------------------------------------------------- started again


def test_a_restart_keeps_the_hits(tmp_path: Path) -> None:
    again = only_in_files(tmp_path, range(12))
    assert counts(again)["rebuilt"] == 12
    assert served(again, range(12)) == list(range(12))


def test_a_restart_keeps_who_was_used_last(tmp_path: Path) -> None:
    tiers = only_in_files(tmp_path, range(18))
    for number, path in ((n, file_of(tmp_path, n)) for n in range(18)):
        os.utime(path, (number, number))
    assert served(tiers, range(2)) == [0, 1]  # used now
    again = store(tmp_path)
    fill(again, range(100, 104))
    written(again)
    assert {0, 1} <= set(served(again, range(18)))


def test_a_restart_with_less_room_keeps_the_newest(tmp_path: Path) -> None:
    before = store(tmp_path, files_bytes=100 * NBYTES)
    fill(before, range(30))
    before.close()
    for number in range(30):
        os.utime(file_of(tmp_path, number), (number, number))
    again = store(tmp_path)
    kept = served(again, range(30))
    assert 10 < len(kept) < 20
    assert kept == list(range(30 - len(kept), 30))
    assert len([p for p in tmp_path.rglob("*") if p.is_file()]) == len(kept)


def test_torn_and_foreign_files_are_told_apart(tmp_path: Path) -> None:
    only_in_files(tmp_path, range(5)).close()
    for number, keep in ((0, 10), (1, HEAD_BYTES), (2, HEAD_BYTES + 10)):
        os.truncate(file_of(tmp_path, number), keep)
    beside = file_of(tmp_path, 3).parent / "somebody else's"
    beside.write_text("not ours")
    old = file_of(tmp_path, 3).parent / f".{key(77).hex()}.1.1.part"
    new = old.with_name(f".{key(77).hex()}.1.2.part")
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    again = store(tmp_path)
    assert served(again, range(5)) == [3, 4]
    assert counts(again)["defect_scan_corrupt"] == 4
    assert beside.exists()
    assert not old.exists()
    assert new.exists()  # somebody may be writing it


def test_an_orderly_end_writes_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = gated(monkeypatch)
    tiers = store(tmp_path)
    fill(tiers, range(12))
    gate.set()
    tiers.close()
    assert served(store(tmp_path), range(12)) == list(range(12))


def test_an_end_takes_no_longer_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block takes a second to write, by a clock of the test's own."""
    gate, now = gated(monkeypatch), [100.0]
    real = BlockFiles.write

    def write(self: BlockFiles, name: bytes, tenant: str, content: Block) -> None:
        real(self, name, tenant, content)
        now[0] += 1.0

    monkeypatch.setattr(BlockFiles, "write", write)
    monkeypatch.setattr("workers.tiers.store.time", SimpleNamespace(monotonic=lambda: now[0]))
    tiers = store(tmp_path)
    fill(tiers, range(12))
    closing = threading.Thread(target=tiers.close, args=(4.5,))
    closing.start()
    wait_until(lambda: tiers._closing_at is not None)
    fill(tiers, range(100, 101))  # a connection that has not noticed yet
    gate.set()
    closing.join(20)
    assert counts(tiers)["written_nvme"] == 5
    assert counts(tiers)["writes_given_up"] == 7
    assert counts(tiers)["writes_refused"] == 1
    assert tiers.account()["unwritten_bytes"] == 0


def gated(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Nothing is written before this is set."""
    real, gate = BlockFiles.write, threading.Event()

    def write(self: BlockFiles, name: bytes, tenant: str, content: Block) -> None:
        assert gate.wait(10)
        real(self, name, tenant, content)

    monkeypatch.setattr(BlockFiles, "write", write)
    return gate


# ------------------------------------------------------------------------------- accidents


@pytest.mark.parametrize("at", [0, 5, 20, 45, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + NBYTES - 1])
def test_a_flipped_byte_is_never_served(tmp_path: Path, at: int) -> None:
    tiers = only_in_files(tmp_path, range(3))
    path = file_of(tmp_path, 1)
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)
    assert served(tiers, range(3)) == [0, 2]
    assert counts(tiers)["defect_read_corrupt"] == 1
    assert not path.exists()
    assert tiers.find([key(1)]) == [None]
    tiers.put("t", [block(1)])  # computed again, it is kept again
    assert served(tiers, range(3)) == [0, 1, 2]


def test_another_blocks_file_is_never_served(tmp_path: Path) -> None:
    """Each byte of it is right, but it is not what its name says."""
    tiers = only_in_files(tmp_path, range(3))
    file_of(tmp_path, 1).write_bytes(file_of(tmp_path, 2).read_bytes())
    assert served(tiers, range(3)) == [0, 2]
    assert counts(tiers)["defect_read_corrupt"] == 1


def test_a_key_whose_file_is_gone_is_a_miss_and_forgotten(tmp_path: Path) -> None:
    tiers = only_in_files(tmp_path, range(3))
    file_of(tmp_path, 1).unlink()
    assert tiers.get(key(1)) is None
    assert tiers.find([key(0), key(1)]) == [Tier.FILES, None]
    assert counts(tiers)["defect_read_enoent"] == 1


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_file_that_cannot_be_opened_now_is_a_miss_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """It says nothing of the file: it must not be given up for that."""
    tiers = only_in_files(tmp_path, range(3))

    def read(self: BlockFiles, name: bytes, tenant: str) -> Block:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(BlockFiles, "read", read)
        assert served(tiers, range(3)) == []
    assert counts(tiers)[f"defect_read_{errno.errorcode[number].lower()}"] == 3
    assert served(tiers, range(3)) == [0, 1, 2]


def test_a_file_that_cannot_be_read_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiers = only_in_files(tmp_path, range(3))
    real = BlockFiles.read

    def read(self: BlockFiles, name: bytes, tenant: str) -> Block:
        if name == key(1):
            raise OSError(errno.EIO, "Input/output error")
        return real(self, name, tenant)

    monkeypatch.setattr(BlockFiles, "read", read)
    assert served(tiers, range(3)) == [0, 2]
    assert counts(tiers)["defect_read_eio"] == 1
    assert tiers.find([key(1)]) == [None]


def test_a_file_that_cannot_be_opened_at_the_start_stops_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_in_files(tmp_path, range(5)).close()
    real = Path.open

    def refusing(self: Path, *arguments: object, **named: object) -> object:
        if self == file_of(tmp_path, 2):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(self, *arguments, **named)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refusing)
    again = store(tmp_path)
    assert served(again, range(5)) == [0, 1, 3, 4]
    assert counts(again)["defect_scan_eacces"] == 1


def test_a_folder_that_vanishes_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "blocks"
    tiers = only_in_files(folder, range(3))
    shutil.rmtree(folder)
    assert served(tiers, range(3)) == []
    assert counts(tiers)["defect_read_enoent"] == 3
    fill(tiers, range(6))
    assert counts(written(tiers))["written_nvme"] == 6
    assert served(store(folder), range(6)) == list(range(6))


def test_a_folder_that_becomes_something_else_leaves_memory(tmp_path: Path) -> None:
    folder = tmp_path / "blocks"
    tiers = only_in_files(folder, range(3))
    shutil.rmtree(folder)
    folder.write_text("a file is in the way")
    assert served(tiers, range(3)) == []
    fill(written(tiers), range(6))
    assert served(written(tiers), range(6)) == list(range(6))
    assert counts(tiers)["defect_read_enotdir"] == 3
    assert counts(tiers)["defect_write_enotdir"] == 6


def test_a_full_disk_is_survived_and_takes_the_new_for_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's own refusal is in `test_faults`; here the disk has room for six blocks."""
    real = BlockFiles.write

    def write(self: BlockFiles, name: bytes, tenant: str, content: Block) -> None:
        if len([p for p in tmp_path.rglob("*") if p.is_file()]) >= 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, name, tenant, content)

    monkeypatch.setattr(BlockFiles, "write", write)
    tiers = store(tmp_path, memory_bytes=3 * NBYTES)
    fill(tiers, range(12))
    written(tiers)
    assert counts(tiers)["disk_full"] > 0
    assert counts(tiers)["evicted_nvme_disk_full"] > 0
    assert served(store(tmp_path), range(12))[-1] == 11


def test_what_cannot_be_written_fast_enough_is_refused_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = gated(monkeypatch)
    tiers = store(tmp_path, memory_bytes=100 * NBYTES, unwritten_bytes=4 * NBYTES)
    fill(tiers, range(30))
    assert served(tiers, range(30)) == list(range(30))
    assert counts(tiers)["writes_refused"] == 26
    gate.set()
    assert counts(written(tiers))["written_nvme"] == 4


def test_a_writer_that_fails_at_one_block_writes_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = BlockFiles.write

    def write(self: BlockFiles, name: bytes, tenant: str, content: Block) -> None:
        if name == key(1):
            raise OSError(errno.EIO, "Input/output error")
        real(self, name, tenant, content)

    monkeypatch.setattr(BlockFiles, "write", write)
    before = store(tmp_path)
    fill(before, range(4))
    written(before)
    assert counts(before)["defect_write_eio"] == 1
    assert served(store(tmp_path), range(4)) == [0, 2, 3]


def test_accidents_without_end_do_not_wear_the_hit_rate_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is lost to an error gives its room back: in the end all of it would be gone."""
    real, rng = BlockFiles.write, random.Random(4)

    def write(self: BlockFiles, name: bytes, tenant: str, content: Block) -> None:
        if rng.random() < 0.2:
            raise OSError(errno.EIO, "Input/output error")
        real(self, name, tenant, content)
        if rng.random() < 0.2:
            self.path(name, tenant).write_bytes(b"damaged")

    monkeypatch.setattr(BlockFiles, "write", write)
    tiers = store(tmp_path)
    for number in range(150):
        fill(tiers, range(number, number + 1))
        written(tiers)  # none is refused for want of time
        served(tiers, range(max(0, number - 25), number))
    monkeypatch.setattr(BlockFiles, "write", real)
    fill(written(tiers), range(1000, 1030))
    written(tiers)
    assert len(served(tiers, range(1000, 1030))) >= 17
    assert counts(tiers)["defect_read_corrupt"] > 0 < counts(tiers)["defect_write_eio"]
    held = tiers.account()["tiers"]["nvme"]
    assert held["blocks"] == len([path for path in tmp_path.rglob("*") if path.is_file()])


def test_two_stores_on_one_folder_write_the_same_blocks(tmp_path: Path) -> None:
    one, other = store(tmp_path), store(tmp_path)
    blocks = [block(number) for number in range(15)]
    at_once([lambda: one.put("t", blocks), lambda: other.put("t", blocks)])
    for tiers in (written(one), written(other)):
        assert served(tiers, range(15)) == list(range(15))
        assert "defect_read_corrupt" not in counts(tiers)
    assert counts(store(tmp_path))["rebuilt"] == 15


def test_many_threads_leave_the_books_right(tmp_path: Path) -> None:
    tiers = store(tmp_path)

    def work(seed: int) -> None:
        for number in range(60):
            fill(tiers, range((number * seed) % 40, (number * seed) % 40 + 1), f"t{seed % 2}")
            served(tiers, range(number % 40, number % 40 + 2))

    at_once([lambda seed=seed: work(seed) for seed in (1, 3, 7, 11)])
    account = written(tiers).account()
    for tier, capacity in (("dram", 10), ("nvme", 20)):
        held = account["tiers"][tier]
        assert held["bytes"] == NBYTES * held["blocks"] == sum(held["tenants"].values())
        assert held["bytes"] <= capacity * NBYTES
    there = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(there) == account["tiers"]["nvme"]["blocks"]
