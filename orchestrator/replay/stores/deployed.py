"""All stores of a deployment: which worker has which, and what gateways are told of them."""

from orchestrator.replay.setup import ModelSpec, ReplaySetup
from orchestrator.replay.stores.site import PoolStores
from orchestrator.replay.stores.tiers import ModelStore
from orchestrator.state.events import StoreHolds


class Stores:
    """They outlive workers. Without named blocks there are none."""

    def __init__(self, setup: ReplaySetup) -> None:
        named = setup.block_tokens is not None
        nbytes = max(worker.kv_bytes_per_token for worker in setup.workers)
        self._stores = [
            ModelStore(spec, nbytes * (setup.block_tokens or 0))
            for spec in (setup.stores if named else ())
        ]
        self._lines = setup.lines
        self._told = dict.fromkeys(self._stores, b"")  # versions

    def of(self, worker: ModelSpec) -> PoolStores | None:
        """A worker's way to its site's; None: its pool has no store."""
        own_first = sorted(
            (store for store in self._stores if store.spec.site == worker.site),
            key=lambda store: store.spec.pool != worker.pool,
        )
        if not own_first or own_first[0].spec.pool != worker.pool:
            return None
        lines = [line.bytes_per_s for line in self._lines if worker.site in line.between]
        return PoolStores(own_first, worker, max(lines, default=None))

    def news(self) -> list[StoreHolds]:
        """What came and went since this was asked last, of each that has any."""
        news = []
        for store, before in self._told.items():
            told = store.since(before)
            if told.version != before:
                self._told[store] = told.version
                news.append(
                    StoreHolds(
                        site=store.spec.site,
                        pool=store.spec.pool,
                        whole=told.whole,
                        added=b"".join(told.added).hex(),
                        removed=b"".join(told.removed).hex(),
                    )
                )
        return news
