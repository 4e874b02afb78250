"""A store's process: it serves, keeps what it was given over its end, and says why it cannot."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.transport.tls_rig import Rig
from tests.workers.server_rig import SECRET
from tests.workers.storage.store_rig import Store
from tests.workers.tiers.blocks_rig import block, key
from workers.tiers.client import StoreAway, StoreClient


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path)
    yield made
    made.end(signal.SIGKILL)


def test_its_end_writes_what_waits_and_its_next_life_has_it(store: Store) -> None:
    store.up().client.put("t", [block(n) for n in range(50)], time.monotonic() + 10)
    assert store.end() == 0
    store.start()
    store.up()
    tiers = store.client.find([key(n) for n in range(51)], time.monotonic() + 10)
    assert tiers == ["nvme"] * 50 + [None]


def test_with_tls_it_serves_its_site_and_no_other_client(tmp_path: Path) -> None:
    store = Store(tmp_path, tls=Rig(tmp_path).files("here"))
    try:
        store.up().client.put("t", [block(1)], time.monotonic() + 10)
        assert store.client.find([key(1)], time.monotonic() + 10) == ["dram"]
        with pytest.raises(StoreAway):
            StoreClient(store.address, SECRET).account(time.monotonic() + 2)
        assert store.end() == 0
    finally:
        store.end(signal.SIGKILL)


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "files").write_text("a file is in the way")
    store = Store(tmp_path)
    assert store.process.wait(20) == 1
    assert "store cannot start: kv_store:" in store.errors.read_text()
    assert "files" in store.errors.read_text()
