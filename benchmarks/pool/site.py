"""A store and workers in this process: the real core, engine, threads, sockets and files."""

import os
import queue
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from transport.base import Offer, StreamId
from workers.api.messages import Role, Start, Stop, TokenRun
from workers.engines.base import Engine, SeqId
from workers.kv.prefix import block_names
from workers.outputs import LoadBlocks, Output, SaveBlocks, Up
from workers.service.engine_thread import EngineThread
from workers.storage.storage import Storage
from workers.tiers.client import StoreClient
from workers.tiers.server import StoreServer
from workers.tiers.store import BlockStore, StoreConfig
from workers.worker import NotYet, Worker

SECRET = "a benchmark's own"
PATIENCE_S = 600.0
GATEWAY = "bench"


class Asked(NamedTuple):
    """A prefill's token: how long it took, and how many tokens of its prompt were found."""

    seconds: float
    cached: int


@contextmanager
def store(config: StoreConfig) -> Iterator[tuple[BlockStore, str]]:
    """A store that is served, and its address. What waits is written at the end."""
    tiers = BlockStore(config)
    server = StoreServer(tiers, socket.create_server(("127.0.0.1", 0)), SECRET)
    server.start()
    try:
        yield tiers, server.address
    finally:
        server.close()
        tiers.close()


def forget_pages(folder: Path) -> None:
    """Let the kernel drop its copies of the files, so that reading them reads the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Bench:
    """One worker over an engine; `stores`: addresses, the one to save to first."""

    def __init__(
        self, engine: Engine, stores: Sequence[str] = (), line_bytes_per_s: float | None = None
    ) -> None:
        self._worker = Worker(
            "bench", engine, slots=4, hold_s=PATIENCE_S, lease_s=PATIENCE_S, stores=bool(stores)
        )
        clients = [StoreClient(address, SECRET) for address in stores]
        self.storage = Storage(engine, clients, line_bytes_per_s, self._loaded)
        self._said: queue.Queue[TokenRun] = queue.Queue()
        self._thread = EngineThread(self._worker, engine, self._deliver, self._broken)
        self._thread.start()
        self._engine = engine
        self._asked = 0

    def ask(self, prompt: tuple[int, ...]) -> Asked:
        """Prefill `prompt`, and wait until what is to be kept of it is saved."""
        began = time.perf_counter()
        request = self._start(Role.PREFILL, prompt)
        run = self._said.get(timeout=PATIENCE_S)
        seconds = time.perf_counter() - began
        self._end(request, epoch=1)
        return Asked(seconds, run.cached)

    def lacks(self, prompt: tuple[int, ...]) -> int:
        """How many tokens of `prompt` a source would have to send to a main leg here."""
        request = self._start(Role.MAIN, prompt)
        names = block_names(self._engine.info.fingerprint.canonical, "", prompt)
        offer = Offer(
            stream=StreamId(request, 2, 1),
            start=0,
            stop=len(prompt),
            slices_per_token=2 * self._engine.info.fingerprint.layers,
            cache_salt="",
            blocks=names,
        )
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            try:
                have = self._thread.look(lambda worker, now: worker.offered(offer, now))
            except NotYet:
                time.sleep(0.001)
            else:
                break
        self._end(request, epoch=1)
        return len(prompt) - have

    def close(self) -> None:
        self._thread.stop()
        self.storage.close()

    def _start(self, role: Role, prompt: tuple[int, ...]) -> str:
        self._asked += 1
        start = Start(
            request=f"r{self._asked}",
            epoch=1,
            gateway=GATEWAY,
            role=role,
            prompt_ids=prompt,
            limit=2,
            reserve=len(prompt) + 2,
        )
        self._thread.submit(lambda worker, now: worker.handle(start, now))
        return start.request

    def _end(self, request: str, epoch: int) -> None:
        stop = Stop(request=request, epoch=epoch)
        self._thread.submit(lambda worker, now: worker.handle(stop, now))
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            idle = self._thread.look(lambda worker, now: worker.idle)
            if idle and not self.storage.saving:
                return
            time.sleep(0.001)

    def _deliver(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            if isinstance(output, LoadBlocks):
                self.storage.load(output)
            elif isinstance(output, SaveBlocks):
                self.storage.save(output)
            elif isinstance(output, Up) and isinstance(output.message, TokenRun):
                self._said.put(output.message)

    def _loaded(self, seq: SeqId) -> None:
        self._thread.submit(lambda worker, now: worker.blocks_loaded(seq, now))

    def _broken(self) -> None:
        raise RuntimeError(self._thread.failure)
