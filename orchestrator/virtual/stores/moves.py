"""A virtual worker's way to its site's stores: the real `BlockMoves` over a clock that it turns on.

An order is carried out in one go on a clock of its own, which each question and each block moves
on; what comes of it then happens in the world when that clock said so. So a store is as it was
when the load began, and a leg that ends, or a worker that dies, meets blocks that are on their way.
"""

from collections.abc import Callable, Sequence

import numpy as np

from orchestrator.virtual.network import Network
from orchestrator.virtual.process import Process
from orchestrator.virtual.stores.store import VirtualStore
from workers.api.info import EngineInfo
from workers.costs import Costs
from workers.engines.base import KVSlice, SeqId
from workers.engines.simulated.engine import SimulatedEngine, WrongKV
from workers.outputs import LoadBlocks, SaveBlocks
from workers.storage.moves import BlockMoves
from workers.tiers.blocks import Block, Tier
from workers.tiers.client import RETRY_S, StoreAway

SAVE_S = 10.0
SAVED_AFTER_S = 0.01  # others have the engine's cache in between


class _Clock:
    """The time in one order."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class _Way:
    """To one store, with the deadlines and the patience of `StoreClient`."""

    def __init__(self, near: Process, store: VirtualStore, network: Network, clock: _Clock) -> None:
        self._near = near
        self._store = store
        self._network = network
        self._clock = clock
        self._away_until = 0.0

    def find(
        self, keys: Sequence[bytes], deadline: float, *, to_save: bool = False
    ) -> list[Tier | None]:
        self._ask(deadline)
        return self._store.blocks.find(keys, to_save=to_save)

    def get(
        self, keys: Sequence[bytes], deadline: float, take: Callable[[int, Block, Tier], None]
    ) -> None:
        self._ask(deadline)
        for number, key in enumerate(keys):
            found = self._store.blocks.get(key)
            if found is None:
                continue
            block, tier = found
            self._spend(len(block.data) / self._store.spec.bytes_per_s, deadline)
            take(number, block, tier)

    def put(self, tenant: str, blocks: Sequence[tuple[bytes, Block]], deadline: float) -> None:
        self._ask(deadline)
        self._store.put(tenant, [(key, Block(bytes(b.data), b.crc)) for key, b in blocks])

    def _ask(self, deadline: float) -> None:
        """A question there and an answer back. Raises StoreAway."""
        clock, store, far = self._clock, self._store, self._store.process
        if clock.now < self._away_until:
            raise StoreAway(f"{store.spec.name} was away a moment ago")
        there, back = (self._near, far), (far, self._near)
        cut = any(self._network.cut_between(*ends) is not None for ends in (there, back))
        if far.frozen or cut:
            self._spend(deadline - clock.now + 1.0, deadline)
        self._spend(store.spec.answer_s + store.late_s, deadline)
        if not far.alive:
            self._give_up("nobody listens")

    def _spend(self, seconds: float, deadline: float) -> None:
        """Raises StoreAway."""
        clock = self._clock
        if clock.now + seconds > deadline:
            clock.now = max(clock.now, deadline)
            self._give_up("not in time")
        clock.now += seconds

    def _give_up(self, reason: str) -> None:
        self._away_until = self._clock.now + RETRY_S
        raise StoreAway(f"{self._store.spec.name}: {reason}")


class _Engine:
    """An engine as an order sees it: what is put is noted, with the time on the order's clock."""

    def __init__(self, engine: SimulatedEngine, clock: _Clock) -> None:
        self._engine = engine
        self._clock = clock
        self.put_at: list[tuple[float, SeqId, KVSlice]] = []

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    @property
    def costs(self) -> Costs | None:
        return self._engine.costs

    def put(self, seq: SeqId, kv: KVSlice) -> None:
        self.put_at.append((self._clock.now, seq, kv))

    def read_cached(self, name: bytes) -> np.ndarray | None:
        return self._engine.read_cached(name)


class VirtualStorage:
    """What `workers.storage.storage` is to a real worker. `loaded` is told of every load when it is
    over, `wrong` of KV that is not its tokens'.
    """

    def __init__(
        self,
        process: Process,
        engine: SimulatedEngine,
        stores: Sequence[VirtualStore],
        network: Network,
        *,
        line_bytes_per_s: float | None,
        loaded: Callable[[SeqId], None],
        wrong: Callable[[SeqId, WrongKV], None],
    ) -> None:
        self._process = process
        self._real = engine
        self._clock = _Clock()
        self._engine = _Engine(engine, self._clock)
        ways = [_Way(process, store, network, self._clock) for store in stores]
        self._moves = BlockMoves(self._engine, ways, line_bytes_per_s, self._clock)
        self._loaded = loaded
        self._wrong = wrong

    @property
    def counts(self) -> dict[str, int]:
        return self._moves.counts()

    def load(self, order: LoadBlocks) -> None:
        """Begin a load."""
        began = self._clock.now = self._process.time()
        self._moves.load(order, began + order.limit_s)
        put_at, self._engine.put_at = self._engine.put_at, []
        for at, seq, piece in put_at:
            self._process.after(at - began, self._put, seq, piece)
        self._process.after(self._clock.now - began, self._loaded, order.seq)

    def save(self, order: SaveBlocks) -> None:
        """Begin a save."""
        self._process.after(SAVED_AFTER_S, self._save, order)

    def _save(self, order: SaveBlocks) -> None:
        self._clock.now = self._process.time()
        self._moves.save(order, self._clock.now + SAVE_S)

    def _put(self, seq: SeqId, piece: KVSlice) -> None:
        try:
            self._real.put(seq, piece)
        except WrongKV as error:
            self._wrong(seq, error)
        except (KeyError, ValueError):
            self._moves.count("puts_refused")  # the leg has ended, or has all its KV
