"""Blocks to store, and a store whose writer is waited for."""

import threading
from pathlib import Path
from typing import Any

import numpy as np

from tests.workers.server_rig import wait_until
from workers.tiers.blocks import KEY_BYTES, Block, checksum
from workers.tiers.store import BlockStore, StoreConfig

NBYTES = 1000


def key(number: int) -> bytes:
    return number.to_bytes(KEY_BYTES, "big")


def block(number: int, nbytes: int = NBYTES) -> tuple[bytes, Block]:
    """A key, and bytes that are only its own."""
    data = np.random.default_rng(number).bytes(nbytes)
    return key(number), Block(data, checksum(key(number), data))


def store(folder: Path | None = None, **changes: Any) -> BlockStore:
    """Room for nine blocks in memory and eighteen in files."""
    sizes = {"memory_bytes": 10 * NBYTES, "files_bytes": 20 * NBYTES}
    return BlockStore(StoreConfig(**{"files": folder, **sizes, **changes}))


def fill(into: BlockStore, numbers: range, tenant: str = "t") -> None:
    for number in numbers:
        into.put(tenant, [block(number)])


def written(of: BlockStore) -> BlockStore:
    """The store, once nothing waits to be written."""
    wait_until(lambda: of.account()["unwritten_bytes"] == 0)
    return of


def counts(of: BlockStore) -> dict[str, int]:
    account: dict[str, int] = of.account()["counts"]
    return account


def served(of: BlockStore, numbers: range) -> list[int]:
    """Which blocks it has; what it gives for a key is that key's bytes."""
    there = []
    for number in numbers:
        found = of.get(key(number))
        if found is not None:
            assert bytes(found[0].data) == block(number)[1].data
            there.append(number)
    return there


def at_once(jobs: list[Any]) -> None:
    """Run the jobs in threads that start together, and wait for them."""
    gate = threading.Barrier(len(jobs))
    threads = [threading.Thread(target=lambda job=job: (gate.wait(10), job())) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
