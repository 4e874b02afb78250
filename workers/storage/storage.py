"""Between one worker's engine and its site's stores, in threads of its own; see `moves`.

Nothing is held in the engine while it waits to be saved: what has been evicted meanwhile is not
saved, and counted.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import inf

from workers.engines.base import Engine, SeqId
from workers.outputs import LoadBlocks, SaveBlocks
from workers.storage.moves import BlockMoves
from workers.tiers.client import StoreClient

LOADERS = 2
SAVE_S = 10.0
CLOSE_S = 2.0  # for saves that wait when the worker ends
MAX_SAVES = 64  # that wait; more are refused, and counted

log = logging.getLogger(__name__)


class Storage:
    """`stores`: the one to save to first. `loaded` is told of every load when it is over, from any
    thread. `line_bytes_per_s`: of the best line to another site; None: there is none.
    """

    def __init__(
        self,
        engine: Engine,
        stores: Sequence[StoreClient],
        line_bytes_per_s: float | None,
        loaded: Callable[[SeqId], None],
    ) -> None:
        self._stores = stores
        self._moves = BlockMoves(engine, stores, line_bytes_per_s, time.monotonic)
        self._loaded = loaded
        self._lock = threading.Lock()
        self._saves = 0
        self._save_until = inf
        self._loaders = ThreadPoolExecutor(LOADERS, thread_name_prefix="block-load")
        self._saver = ThreadPoolExecutor(1, thread_name_prefix="block-save")

    def load(self, order: LoadBlocks) -> None:
        """Begin a load."""
        deadline = time.monotonic() + order.limit_s
        self._loaders.submit(self._load, order, deadline).add_done_callback(_tell_defect)

    def save(self, order: SaveBlocks) -> None:
        """Begin a save, unless too many wait."""
        with self._lock:
            refused = self._saves >= MAX_SAVES
            self._saves += not refused
        if refused:
            self._moves.count("saves_refused")
        else:
            self._saver.submit(self._save, order).add_done_callback(_tell_defect)

    @property
    def saving(self) -> int:
        """Saves that wait or are under way."""
        return self._saves

    def counts(self) -> dict[str, int]:
        """What has happened so far."""
        return self._moves.counts()

    def close(self) -> None:
        """End. What waits to be saved is, as far as there is time for it."""
        self._save_until = time.monotonic() + CLOSE_S
        self._loaders.shutdown(cancel_futures=True)
        self._saver.shutdown()
        for store in self._stores:
            store.close()

    def _load(self, order: LoadBlocks, deadline: float) -> None:
        try:
            self._moves.load(order, deadline)
        finally:
            self._loaded(order.seq)

    def _save(self, order: SaveBlocks) -> None:
        try:
            self._moves.save(order, min(time.monotonic() + SAVE_S, self._save_until))
        finally:
            with self._lock:
                self._saves -= 1


def _tell_defect(done: "Future[None]") -> None:
    """What nobody waits for would fail in silence."""
    if not done.cancelled() and done.exception() is not None:
        log.error("storage failed", exc_info=done.exception())
