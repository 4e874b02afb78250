"""Worker processes and a store's process: hits outlive workers and stores, and nobody waits."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workers.server_rig import PROMPT, Reader, Server, wait_until
from tests.workers.storage.store_rig import Store
from workers.api.messages import Role, Sampling, Start, Stop, TokenRun

LIMIT = 4
BLOCKS = 12  # whole ones before the last of 200 tokens


class Site:
    """A store and workers of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.store = Store(folder)
        self.workers: list[Server] = []
        self._asked = 0

    def worker(self) -> Server:
        name = f"w{len(self.workers)}"
        slow = {"prefill_tokens_per_s": 500.0, "step_s": 0.01}  # loading pays on any machine
        self.workers.append(Server(self._folder, name, stores=[self.store.address], simulated=slow))
        return self.workers[-1].up()

    def ask(self, worker: Server, **changes: object) -> TokenRun:
        """A prefill's token, and how many of its prompt were found."""
        self._asked += 1
        request = f"r{self._asked}"
        reader = Reader(worker, f"g{self._asked}")
        start = Start(
            **{
                "request": request,
                "epoch": 1,
                "gateway": reader._params["gateway"],
                "role": Role.PREFILL,
                "prompt_ids": PROMPT,
                "limit": LIMIT,
                "reserve": len(PROMPT) + LIMIT,
                "sampling": Sampling(margins=True),
                **changes,
            }
        )
        worker.post("/control", start)
        (run,) = wait_until(lambda: reader.of(TokenRun, request))
        worker.post("/control", Stop(request=request, epoch=1))
        return run

    def stored(self, blocks: int) -> None:
        wait_until(lambda: self.store.counts().get("written_dram", 0) >= blocks)

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
        self.store.end(signal.SIGKILL)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    made.store.up()
    yield made
    made.close()


def test_hits_outlive_their_worker_and_their_store(site: Site) -> None:
    first = site.worker()
    alone = site.ask(first)
    assert alone.cached == 0
    site.stored(BLOCKS)
    first.kill()
    second = site.worker()
    again = site.ask(second)
    assert (again.cached, again.ids, again.hist) == (16 * BLOCKS, alone.ids, alone.hist)
    counted = second.http.get("/blocks").json()["stores"]
    assert counted["loaded_blocks_dram"] == counted["known"] == BLOCKS
    assert site.ask(second, cache_salt="mine").cached == 0

    assert site.store.end() == 0
    site.store.start()
    site.store.up()
    third = site.worker()
    assert site.ask(third).cached == 16 * BLOCKS
    assert site.store.counts()["hits_nvme"] == BLOCKS


def test_a_store_that_is_killed_or_frozen_stops_nobody(site: Site) -> None:
    worker = site.worker()
    tokens = tuple(range(300, 500))
    alone = site.ask(worker)
    site.store.process.send_signal(signal.SIGSTOP)
    assert site.ask(worker, prompt_ids=tokens).cached == 0
    site.store.end(signal.SIGKILL)
    assert site.ask(worker, prompt_ids=tokens[::-1]).cached == 0
    assert site.ask(worker).ids == alone.ids
    assert worker.healthy()
    wait_until(lambda: worker.held_tokens() == 0)


def test_a_worker_killed_while_it_saves_leaves_nothing_wrong(site: Site) -> None:
    worker, tokens = site.worker(), tuple(range(1500))
    site.ask(worker, prompt_ids=tokens, reserve=1600)
    worker.kill()  # in the middle of it, or not
    reader = site.worker()
    run = site.ask(reader, prompt_ids=tokens, reserve=1600)
    alone = site.ask(reader, prompt_ids=tokens, reserve=1600, cache_salt="alone")
    assert run.ids == alone.ids
    assert not [name for name in site.store.counts() if name.startswith("defect_")]
