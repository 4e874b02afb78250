"""How blocks go between one worker's engine and its site's stores: what pays in, what lacks out.

Whoever calls waits, in whichever thread; time is the caller's clock. What was damaged on its way,
or is gone, ends a load before it.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from math import lcm
from typing import Protocol

import numpy as np

from workers.api.info import EngineInfo, Part
from workers.costs import Costs
from workers.engines.base import KVSlice, SeqId
from workers.kv.prefix import CANONICAL_TOKENS, block_names
from workers.outputs import LoadBlocks, SaveBlocks
from workers.tiers.blocks import Block, BlockForm, Tier, checksum
from workers.tiers.choice import Place, Speeds, spared_s, worth_loading
from workers.tiers.client import StoreAway

PUT_BYTES = 8 << 20  # given to the engine at a time
# Until a prefill has been measured stores are given a try.
UNKNOWN_TOKENS_PER_S = 100.0

log = logging.getLogger(__name__)


class BlockEngine(Protocol):
    """Of an engine, what this needs; see `Engine`."""

    @property
    def info(self) -> EngineInfo: ...
    @property
    def costs(self) -> Costs | None: ...
    def put(self, seq: SeqId, kv: KVSlice) -> None: ...
    def read_cached(self, name: bytes) -> np.ndarray | None: ...


class StoreWay(Protocol):
    """The way to a store; see `StoreClient`, whose verbs these are."""

    def find(
        self, keys: Sequence[bytes], deadline: float, *, to_save: bool = False
    ) -> list[Tier | None]: ...
    def get(
        self, keys: Sequence[bytes], deadline: float, take: Callable[[int, Block, Tier], None]
    ) -> None: ...
    def put(self, tenant: str, blocks: Sequence[tuple[bytes, Block]], deadline: float) -> None: ...


class _Cut(Exception):
    """A block did not come as it should: what follows it is of no use."""


class BlockMoves:
    """`stores`: the one to save to first. `line_bytes_per_s`: of the best line to another site;
    None: there is none.
    """

    def __init__(
        self,
        engine: BlockEngine,
        stores: Sequence[StoreWay],
        line_bytes_per_s: float | None,
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._stores = stores
        self._line_bytes_per_s = line_bytes_per_s
        self._clock = clock
        self._fingerprint = engine.info.fingerprint.canonical
        self._form = BlockForm.of(engine.info.fingerprint)
        self._unit_blocks = lcm(engine.info.block_size, CANONICAL_TOKENS) // CANONICAL_TOKENS
        self._speeds = Speeds()
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def counts(self) -> dict[str, int]:
        """What has happened so far."""
        with self._lock:
            return dict(self._counts)

    def count(self, what: str, by: int = 1) -> None:
        with self._lock:
            self._counts[what] += by

    # ------------------------------------------------------------ in

    def load(self, order: LoadBlocks, deadline: float) -> None:
        """Give the engine what pays, until `deadline` at most. Nothing is raised."""
        try:
            self._load_what_pays(order, deadline)
        except (StoreAway, _Cut) as error:
            self.count("loads_cut")
            log.warning("blocks not loaded", extra={"reason": str(error)})
        except (KeyError, ValueError) as error:  # the leg has ended, or has all its KV
            self.count("puts_refused")
            log.info("blocks not wanted any more", extra={"reason": str(error)})

    def _load_what_pays(self, order: LoadBlocks, deadline: float) -> None:
        if order.sent_otherwise and self._line_bytes_per_s is None:
            return  # it comes over the site's own network: loading would spare nothing
        have = order.have // CANONICAL_TOKENS
        keys = self._form.keys(order.tokens, order.cache_salt)[have:]
        places = self._places(keys, deadline)
        depth = worth_loading(
            places,
            self._form.nbytes,
            self._speeds,
            self._clock(),
            lambda blocks: self._otherwise_s(order, blocks),
            limit_s=deadline - self._clock(),
        )
        known = next((n for n, place in enumerate(places) if place is None), len(places))
        with self._lock:
            self._counts["wanted"] += len(keys)
            self._counts["known"] += known
            self._counts["not_worth_loading"] += known - depth
        first = 0
        for place, run in groupby(places[:depth]):
            stop = first + len(list(run))
            if place is not None:
                self._load_run(order.seq, have + first, keys[first:stop], place, deadline)
            first = stop

    def _otherwise_s(self, order: LoadBlocks, blocks: int) -> float:
        """What that many blocks cost when they are not loaded."""
        if order.sent_otherwise:
            assert self._line_bytes_per_s is not None, "seen to before"
            return blocks * self._form.nbytes / self._line_bytes_per_s
        tokens, costs = blocks * CANONICAL_TOKENS, self._engine.costs
        if costs is not None:
            lacking = len(order.tokens) - order.have + 1  # the last is computed in any case
            return spared_s(costs, lacking, order.have, tokens)
        return tokens / (order.prefill_tokens_per_s or UNKNOWN_TOKENS_PER_S)

    def _places(
        self, keys: Sequence[bytes], deadline: float, *, to_save: bool = False
    ) -> list[Place | None]:
        """Where each block is. A store that is away has none."""
        places: list[Place | None] = [None] * len(keys)
        for number, store in enumerate(self._stores):
            lacking = [n for n, place in enumerate(places) if place is None]
            if not lacking:
                break
            began = self._clock()
            try:
                # Half of what is left, so that one store that hangs leaves time for another.
                until = (began + deadline) / 2
                tiers = store.find([keys[n] for n in lacking], until, to_save=to_save)
            except StoreAway as away:
                self.count("stores_away")
                log.info("store away", extra={"reason": str(away)})
                continue
            self._speeds.asked(number, self._clock() - began)
            for n, tier in zip(lacking, tiers, strict=True):
                places[n] = None if tier is None else Place(number, tier)
        return places

    def _load_run(
        self, seq: SeqId, first: int, keys: Sequence[bytes], place: Place, deadline: float
    ) -> None:
        """Load blocks that are in one place; `first` counts from the sequence's beginning."""
        at_once = max(1, PUT_BYTES // self._form.nbytes)
        waiting: list[np.ndarray] = []
        given = 0

        def take(number: int, block: Block, tier: Tier) -> None:
            nonlocal given
            if number != given + len(waiting):
                raise _Cut(f"{number - given - len(waiting)} blocks are gone")
            waiting.append(self._checked(keys[number], block))
            self.count(f"loaded_blocks_{tier}")
            if len(waiting) == at_once or number + 1 == len(keys):
                self._put(seq, first + given, waiting)
                given += len(waiting)
                waiting.clear()

        began = self._clock()
        try:
            self._stores[place.store].get(keys, deadline, take)
            if given < len(keys):
                raise _Cut(f"{len(keys) - given - len(waiting)} blocks are gone")
        except (StoreAway, _Cut):
            self._measured(place, given + len(waiting), began, deadline)
            self._put(seq, first + given, waiting)
            raise
        self._measured(place, len(keys), began, deadline)

    def _measured(self, place: Place, blocks: int, began: float, deadline: float) -> None:
        """So many blocks came, in time or not: who is late once must not be waited for again."""
        now = self._clock()
        if blocks or now >= deadline:
            self._speeds.loaded(place, max(1, blocks) * self._form.nbytes, now - began, now)

    def _checked(self, key: bytes, block: Block) -> np.ndarray:
        if len(block.data) != self._form.nbytes or checksum(key, block.data) != block.crc:
            self.count("corrupt")
            raise _Cut(f"block {key.hex()} is damaged")
        return np.frombuffer(block.data, dtype=self._form.dtype).reshape(self._form.shape)

    def _put(self, seq: SeqId, first: int, blocks: Sequence[np.ndarray]) -> None:
        """Give the engine consecutive blocks. Raises KeyError, ValueError: not wanted any more."""
        if not blocks:
            return
        layers, parts, tokens, heads, size = self._form.shape
        joined = np.stack(blocks, axis=2).reshape(layers, parts, len(blocks) * tokens, heads, size)
        start = first * tokens
        stop = start + len(blocks) * tokens
        positions = np.arange(start, stop, dtype=np.int32)
        for layer in range(layers):
            for part, data in zip(Part, joined[layer], strict=True):
                piece = KVSlice(
                    layer=layer, part=part, start=start, stop=stop, positions=positions, data=data
                )
                self._engine.put(seq, piece)
        self.count("loaded_bytes", joined.nbytes)

    # ------------------------------------------------------------ out

    def save(self, order: SaveBlocks, deadline: float) -> None:
        """Give the first store what no store has, until `deadline` at most. Nothing is raised."""
        try:
            self._save_what_is_lacking(order, deadline)
        except StoreAway as away:
            self.count("saves_cut")
            log.info("blocks not saved", extra={"reason": str(away)})

    def _save_what_is_lacking(self, order: SaveBlocks, deadline: float) -> None:
        keys = self._form.keys(order.tokens, order.cache_salt)
        places = self._places(keys, deadline, to_save=True)
        lacking = {n for n, place in enumerate(places) if place is None}
        if not lacking:
            return
        names = block_names(self._fingerprint, order.cache_salt, order.tokens)
        some: list[tuple[bytes, Block]] = []
        for number, data in self._cached(names, lacking):
            some.append((keys[number], Block(data, checksum(keys[number], data))))
            if len(some) * self._form.nbytes >= PUT_BYTES:
                self._give(order.tenant, some, deadline)
                some.clear()
        if some:
            self._give(order.tenant, some, deadline)

    def _cached(
        self, names: Sequence[bytes], lacking: set[int]
    ) -> Iterator[tuple[int, memoryview]]:
        """Numbers and bytes of the blocks that are lacking, as far as the engine still has them."""
        blocks = self._unit_blocks
        for first in range(0, len(names) - blocks + 1, blocks):
            wanted = [n for n in range(first, first + blocks) if n in lacking]
            if not wanted:
                continue
            unit = self._engine.read_cached(names[first + blocks - 1])
            if unit is None:
                self.count("evicted_before_saved", len(wanted))
                continue
            for number in wanted:
                at = (number - first) * CANONICAL_TOKENS
                block = unit[:, :, at : at + CANONICAL_TOKENS].astype(self._form.dtype, order="C")
                yield number, block.data.cast("B")

    def _give(self, tenant: str, some: Sequence[tuple[bytes, Block]], deadline: float) -> None:
        self._stores[0].put(tenant, some, deadline)
        with self._lock:
            self._counts["saved_blocks"] += len(some)
            self._counts["saved_bytes"] += len(some) * self._form.nbytes
