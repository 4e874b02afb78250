"""An engine and stores: what one engine computed another loads, and nothing wrong or late."""

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any

import pytest

from tests.workers.engines.simulated.simulated_rig import run
from tests.workers.server_rig import SECRET, wait_until
from tests.workers.tiers.blocks_rig import written
from workers.api.messages import Sampling
from workers.costs import MeasuredCosts
from workers.engines.base import SeqId, SequenceSpec
from workers.engines.simulated.engine import SimulatedEngine
from workers.engines.simulated.model import SimulatedModel
from workers.outputs import LoadBlocks, SaveBlocks
from workers.storage.storage import Storage
from workers.tiers.blocks import Block, BlockForm, checksum
from workers.tiers.client import StoreClient
from workers.tiers.server import StoreServer
from workers.tiers.store import BlockStore, StoreConfig

# So slow that loading pays, whatever else the machine does.
SLOW = MeasuredCosts(prefill_tokens_per_s=5.0, decode_step_s=0.02)
MODEL = SimulatedModel(layers=3, kv_heads=2, head_size=6)
PROMPT = tuple(range(100, 300))  # twelve whole blocks
FORM = BlockForm.of(MODEL.fingerprint)
SEQ = SeqId("r", 1)


class Worker:
    """An engine with its way to the stores; what it loads is waited for."""

    def __init__(
        self,
        *addresses: str,
        model: SimulatedModel = MODEL,
        line: float | None = 1e6,
        **sizes: int,
    ) -> None:
        sizes = {"kv_total_tokens": 1920, "chunk_tokens": 64, **sizes}
        self.engine = SimulatedEngine(model, SLOW, **sizes)
        self.done: queue.Queue[SeqId] = queue.Queue()
        stores = [StoreClient(address, SECRET) for address in addresses]
        self.storage = Storage(self.engine, stores, line, self.done.put)

    def compute(self, tokens: tuple[int, ...] = PROMPT, salt: str = "") -> "Worker":
        """Prefill and close; what it was is in the engine's cache."""
        self.engine.open(SEQ, spec(tokens, salt), reuse=True)
        self.engine.set_goal(SEQ, len(tokens))
        run(self.engine)
        self.engine.close(SEQ)
        return self

    def save(self, tokens: tuple[int, ...] = PROMPT, salt: str = "") -> "Worker":
        self.storage.save(SaveBlocks(tokens=tokens, cache_salt=salt, tenant="t"))
        wait_until(lambda: self.storage.saving == 0)
        return self

    def load(self, tokens: tuple[int, ...] = PROMPT, salt: str = "", **changes: Any) -> int:
        """How many tokens came, and none of them wrong: the simulated engine looks."""
        have = self.engine.open(SEQ, spec(tokens, salt), reuse=True)
        stop = (len(tokens) - 1) // 16 * 16
        self.engine.open_import(SEQ, stop)
        order = {
            "seq": SEQ,
            "tokens": tokens[:stop],
            "cache_salt": salt,
            "have": have,
            "prefill_tokens_per_s": 100.0,
            "sent_otherwise": False,
            "limit_s": 10.0,
        }
        self.storage.load(LoadBlocks(**{**order, **changes}))
        assert self.done.get(timeout=20) == SEQ
        kept = self.engine.keep_import(SEQ)
        self.engine.close(SEQ)
        return kept

    @property
    def counts(self) -> dict[str, int]:
        return self.storage.counts()


def spec(tokens: tuple[int, ...], salt: str) -> SequenceSpec:
    return SequenceSpec(
        tokens=tokens,
        prompt_len=len(tokens),
        reserve=len(tokens),
        sampling=Sampling(),
        cache_salt=salt,
    )


class Site:
    """Stores in this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.servers: list[StoreServer] = []
        self.tiers: list[BlockStore] = []

    def store(self, **changes: Any) -> str:
        """One more store; its address."""
        sizes = {"memory_bytes": 1 << 20, "files_bytes": 1 << 20}
        files = self._folder / str(len(self.tiers))
        self.tiers.append(BlockStore(StoreConfig(**{"files": files, **sizes, **changes})))
        listening = socket.create_server(("127.0.0.1", 0))
        self.servers.append(StoreServer(self.tiers[-1], listening, SECRET))
        self.servers[-1].start()
        return self.servers[-1].address


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    for server in made.servers:
        server.close()


def test_what_one_worker_computed_another_loads(site: Site) -> None:
    store = site.store()
    one = Worker(store).compute().save()
    other = Worker(store)
    assert other.load() == 192
    assert one.counts["saved_blocks"] == other.counts["loaded_blocks_dram"] == 12
    assert other.counts["loaded_bytes"] == 12 * FORM.nbytes == one.counts["saved_bytes"]


@pytest.mark.parametrize(("theirs", "ours"), [(16, 48), (48, 8), (24, 16), (8, 32)])
def test_workers_with_other_block_sizes_understand_one_another(
    site: Site, theirs: int, ours: int
) -> None:
    """A unit of theirs may hold several blocks; what fills none of theirs was not cached."""
    store = site.store()
    unit = {8: 16, 16: 16, 24: 48, 48: 48}[theirs]
    Worker(store, block_size=theirs).compute().save()
    assert Worker(store, block_size=ours).load() == 200 // unit * unit


def test_a_conversation_loads_as_deep_as_it_is_known(site: Site) -> None:
    store = site.store()
    Worker(store).compute().save()
    longer = (*PROMPT[:100], *range(900, 1000))
    other = Worker(store)
    assert other.load(longer) == 96
    other.compute(longer).save(longer)
    assert other.counts["saved_blocks"] == 6  # the others are there already
    assert Worker(store).load(longer) == 192


def test_what_the_engine_has_is_not_loaded(site: Site) -> None:
    store = site.store()
    Worker(store).compute().save()
    other = Worker(store).compute(PROMPT[:64])
    assert other.load() == 192
    assert other.counts["loaded_blocks_dram"] == 8


def test_a_salt_is_kept_through_every_tier(site: Site) -> None:
    """Alike prompts of two tenants with their own salts never meet, in memory or in files."""
    store = site.store(memory_bytes=8 * FORM.nbytes)
    Worker(store).compute(salt="mine").save(salt="mine")
    written(site.tiers[0])
    other = Worker(store)
    assert other.load(salt="yours") == other.load() == 0
    assert other.load(salt="mine") == 192
    assert other.counts["loaded_blocks_nvme"] > 0 < other.counts["loaded_blocks_dram"]


def test_another_model_finds_nothing(site: Site) -> None:
    store = site.store()
    Worker(store).compute().save()
    assert Worker(store, model=SimulatedModel(layers=3, kv_heads=3, head_size=4)).load() == 0


def test_a_hit_in_files_is_not_cut_down_to_what_memory_holds(site: Site) -> None:
    store = site.store(memory_bytes=4 * FORM.nbytes)
    Worker(store).compute().save()
    written(site.tiers[0])
    assert Worker(store).load() == 192


def test_all_stores_of_a_site_are_looked_into(site: Site) -> None:
    mine, theirs = site.store(), site.store()
    Worker(theirs).compute(PROMPT[:96]).save(PROMPT[:96])
    one = Worker(mine, theirs).compute().save()
    assert one.counts["saved_blocks"] == 6  # the beginning is in the other store
    assert Worker(mine, theirs).load() == 192
    assert Worker(mine).load() == 0


def test_a_store_that_is_away_costs_its_own_blocks_only(site: Site) -> None:
    mine, theirs = site.store(), site.store()
    Worker(theirs).compute().save()
    site.servers[0].close()
    other = Worker(mine, theirs)
    assert other.load() == 192
    assert other.counts["stores_away"] == 1


def test_a_store_that_hangs_leaves_time_for_another(site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        host, port = mute.getsockname()
        theirs = site.store()
        Worker(theirs).compute().save()
        other = Worker(f"{host}:{port}", theirs)
        assert other.load(limit_s=2.0) == 192


def test_a_site_whose_only_store_hangs_computes(site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        host, port = mute.getsockname()
        other = Worker(f"{host}:{port}")
        assert other.load(limit_s=0.3) == 0


def tampered(site: Site, change: Callable[[bytes, Block], Block | None]) -> str:
    """A store that gives something else than it was given for the prompt's fourth block."""
    address = site.store()
    Worker(address).compute().save()
    tiers, fourth = site.tiers[-1], FORM.keys(PROMPT, "")[3]
    real = tiers.get

    def get(key: bytes) -> Any:
        found = real(key)
        if key != fourth or found is None:
            return found
        block = change(key, found[0])
        return None if block is None else (block, found[1])

    tiers.get = get  # type: ignore[method-assign]
    return address


def flipped(key: bytes, block: Block) -> Block:
    data = bytearray(block.data)
    data[700] ^= 1
    return Block(data, block.crc)


def shortened(key: bytes, block: Block) -> Block:
    data = bytes(block.data)[:-2]
    return Block(data, checksum(key, data))


def of_another(key: bytes, block: Block) -> Block:
    other = BlockForm.of(MODEL.fingerprint).keys(tuple(range(16)), "")[0]
    return Block(block.data, checksum(other, block.data))


@pytest.mark.parametrize("change", [flipped, shortened, of_another])
def test_a_damaged_block_ends_the_load_before_it(
    site: Site, change: Callable[[bytes, Block], Block]
) -> None:
    """Wherever it was damaged: the checksum goes from engine to engine."""
    other = Worker(tampered(site, change))
    assert other.load() == 48
    assert other.counts["corrupt"] == other.counts["loads_cut"] == 1


def test_a_block_that_went_between_two_questions_ends_the_load_before_it(site: Site) -> None:
    other = Worker(tampered(site, lambda key, block: None))
    assert other.load() == 48
    assert other.counts["loads_cut"] == 1


def test_what_is_faster_computed_is_not_loaded(site: Site) -> None:
    store = site.store()
    Worker(store).compute().save()
    measured, modelled = Worker(store), Worker(store)
    measured.engine.costs = None
    modelled.engine.costs = MeasuredCosts(prefill_tokens_per_s=1e9, decode_step_s=0.01)
    for other in (measured, modelled):
        assert other.load(prefill_tokens_per_s=1e9) == 0
        assert other.counts["not_worth_loading"] == other.counts["known"] == 12
    assert measured.load(prefill_tokens_per_s=100.0) == 192


def test_main_weighs_the_line_instead_of_prefill(site: Site) -> None:
    store = site.store()
    Worker(store).compute().save()
    # Without a line its source is in its own site: nothing would be spared.
    for line, loaded in ((1e3, 192), (1e15, 0), (None, 0)):
        other = Worker(store, line=line)
        assert other.load(sent_otherwise=True, prefill_tokens_per_s=None) == loaded


def test_what_the_engine_evicted_before_it_was_saved_is_counted_not_saved(site: Site) -> None:
    store = site.store()
    one = Worker(store, kv_total_tokens=208).compute()
    one.compute(tuple(range(1000, 1200))).save()
    assert one.counts["evicted_before_saved"] > 0
    kept = one.counts.get("saved_blocks", 0)
    assert kept + one.counts["evicted_before_saved"] == 12
    assert Worker(store).load() in (0, 16 * kept)


def test_too_many_saves_are_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.storage.storage.MAX_SAVES", 0)
    one = Worker(site.store()).compute().save()
    assert one.counts == {"saves_refused": 1}


def test_a_worker_that_ends_saves_what_waits(site: Site) -> None:
    store = site.store()
    one = Worker(store).compute()
    for length in (96, 160, 200):
        one.storage.save(SaveBlocks(tokens=PROMPT[:length], cache_salt="", tenant="t"))
    one.storage.close()
    assert one.counts["saved_blocks"] == 12
    assert Worker(store).load() == 192


def test_a_worker_that_ends_does_not_save_for_ever(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.storage.storage.CLOSE_S", 0.0)
    one, gate = Worker(site.store()).compute(), threading.Event()
    one.storage._saver.submit(gate.wait, 10)
    one.storage.save(SaveBlocks(tokens=PROMPT, cache_salt="", tenant="t"))
    closing = threading.Thread(target=one.storage.close)
    closing.start()
    wait_until(lambda: one.storage._save_until < inf)
    gate.set()
    closing.join(20)
    assert one.counts["saves_cut"] == 1


def test_a_restarted_store_keeps_the_hits(site: Site) -> None:
    first = site.store()
    Worker(first).compute().save()
    site.servers[0].close()
    site.tiers[0].close()
    site.tiers.clear()
    other = Worker(site.store())  # the same folder
    assert other.load() == 192
    assert other.counts["loaded_blocks_nvme"] == 12


def test_two_workers_save_the_same_at_once(site: Site) -> None:
    store = site.store()
    both = [Worker(store).compute() for _ in range(2)]
    for worker in both:
        worker.storage.save(SaveBlocks(tokens=PROMPT, cache_salt="", tenant="t"))
    for worker in both:
        wait_until(lambda worker=worker: worker.storage.saving == 0)
    assert site.tiers[0].account()["counts"]["written_dram"] == 12
    assert Worker(store).load() == 192
