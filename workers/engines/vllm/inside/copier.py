"""The worker's side of the connector, without vLLM: carries copies out between caches and pools."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from workers.engines.vllm.inside.layouts import Cache, Views, gather, scatter
from workers.engines.vllm.inside.plan import NULL_BLOCK, Copy, heads_of, slots
from workers.engines.vllm.pool import PoolRefused, SharedPool, fence


@dataclass(frozen=True, slots=True)
class CachedLayer:
    """One layer as vLLM keeps it: its index in the model, its group, its cache, how to see it."""

    layer: int
    group: int
    cache: Cache
    views: Views

    @property
    def parts(self) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V, [blocks, block_size, kv_heads of this rank, head_size]."""
        return self.views(self.cache)


class _Placed(NamedTuple):
    """A copy ready to be made: its pool, the head range, the slots on both sides."""

    copy: Copy
    pool: SharedPool
    heads: slice
    theirs: tuple[np.ndarray, ...]
    ours: np.ndarray


class _Batch:
    """All that a step saves into one pool: one gather for a layer's K, and one for its V."""

    def __init__(self, placed: Sequence[_Placed]) -> None:
        self.pool, self.heads = placed[0].pool, placed[0].heads
        self.rows = np.array([each.copy.row for each in placed])
        self.stops = np.array([each.copy.stop for each in placed], dtype=np.int32)
        self.ours = np.concatenate([each.ours for each in placed])
        groups = zip(*(each.theirs for each in placed), strict=True)
        self.theirs = [np.concatenate(slots) for slots in groups]
        self._at: dict[tuple[int, torch.device], torch.Tensor] = {}

    def at(self, group: int, device: torch.device) -> torch.Tensor:
        """vLLM's slots of a group, on the device; brought there once a step."""
        if (group, device) not in self._at:
            self._at[group, device] = torch.from_numpy(self.theirs[group]).to(device)
        return self._at[group, device]


class _UnderWay(NamedTuple):
    """A layer's K and V of a batch on their way from the device."""

    batch: _Batch
    layer: int
    parts: list[torch.Tensor]


class Copier:
    """Copies of one rank. A step is `begin`, `load`, `save` for each layer, `finish`, `end`.

    On a CPU a layer is in the pool when `save` returns. A device goes on computing meanwhile, and
    all that it sent is put there by `finish`.

    `sizes`: tokens in a block of each group. A pool that cannot be served is told so (`report`),
    and its copies are left out, as are those of runs that were revoked; vLLM's blocks that a load
    left as they were are in `failed_blocks`.
    """

    def __init__(
        self,
        open_pool: Callable[[str], SharedPool],
        layers: dict[str, CachedLayer],
        sizes: Sequence[int],
        *,
        rank: int,
        ranks: int,
    ) -> None:
        self._open_pool = open_pool
        self._layers = layers
        self._sizes = sizes
        self._rank = rank
        self._ranks = ranks
        self._pools: dict[str, SharedPool | None] = {}
        self._busy: dict[str, SharedPool] = {}
        self._loads: list[_Placed] = []
        self._saves: list[_Batch] = []
        self._under_way: list[_UnderWay] = []
        self.failed_blocks: set[int] = set()

    @property
    def saving(self) -> bool:
        """Whether this step has anything to save."""
        return bool(self._saves)

    def begin(self, loads: Sequence[Copy], saves: Sequence[Copy]) -> None:
        """Take a step's copies on."""
        for copy in (*loads, *saves):
            pool = self._pool(copy.pool)
            if pool is not None and copy.pool not in self._busy:
                self._busy[copy.pool] = pool
                pool.epochs[self._rank] |= np.uint64(1)
        fence()  # who takes a claim back now sees that we are at work
        for copy in loads:
            placed = self._place(copy)
            if placed is not None:
                self._loads.append(placed)
            else:
                self.failed_blocks.update(block for table in copy.theirs for block in table)
        by_pool: dict[str, list[_Placed]] = {}
        for copy in saves:
            placed = self._place(copy)
            if placed is not None:
                by_pool.setdefault(copy.pool, []).append(placed)
        self._saves = [_Batch(placed) for placed in by_pool.values()]

    def load(self) -> None:
        """Fill vLLM's blocks for the step that comes."""
        loads, self._loads = self._loads, []
        for placed in loads:
            for layer in self._layers.values():
                self._load(layer, placed)

    def save(self, name: str) -> None:
        """A layer has been computed: put what the pools lack of it."""
        layer = self._layers[name]
        for batch in self._saves:
            self._save(layer, batch)

    def finish(self) -> None:
        """The step has been computed: what devices have sent goes into the pools."""
        if self._under_way:
            torch.accelerator.synchronize()
            for sent in self._under_way:
                self._put(sent)
            self._under_way = []

    def end(self) -> None:
        """The step is over, and nothing of it is written any more."""
        self._loads, self._saves, self._under_way = [], [], []
        for pool in self._busy.values():
            pool.epochs[self._rank] += np.uint64(1)
        self._busy.clear()

    def take_failed_blocks(self) -> set[int]:
        failed, self.failed_blocks = self.failed_blocks, set()
        return failed

    # ------------------------------------------------------------ pools

    def _pool(self, name: str) -> SharedPool | None:
        if name not in self._pools:
            self._forget_gone()
            try:
                pool = self._open_pool(name)
            except PoolRefused:
                self._pools[name] = None
                return None
            fault = self._misfit(pool)
            if fault is not None:
                pool.report(fault)
                self._pools[name] = None
                return None
            self._pools[name] = pool
        return self._pools[name]

    def _forget_gone(self) -> None:
        """Workers come and go, and each brings a pool of its own."""
        for name, pool in list(self._pools.items()):
            if name not in self._busy and (pool is None or not pool.path.exists()):
                del self._pools[name]

    def _misfit(self, pool: SharedPool) -> str | None:
        """What of a pool is not this model's cache; None: nothing."""
        shape = pool.shape
        if shape.ranks != self._ranks:
            return f"the pool is for {shape.ranks} tensor-parallel ranks, vLLM has {self._ranks}"
        try:
            first, last = heads_of(self._rank, self._ranks, shape.kv_heads)
        except ValueError as error:
            return str(error)
        for name, layer in self._layers.items():
            key = layer.parts[0]
            heads, size = key.shape[2:]
            if (heads, size) != (last - first, shape.head_size) or layer.layer >= shape.layers:
                return (
                    f"{name}: vLLM keeps {heads} KV heads of {size} on this rank, the pool is for "
                    f"{last - first} of {shape.head_size} in {shape.layers} layers"
                )
            if str(key.dtype) != f"torch.{shape.kv_dtype}":
                return f"{name}: vLLM keeps KV as {key.dtype}, the pool as {shape.kv_dtype}"
        return None

    # ------------------------------------------------------------ copies

    def _place(self, copy: Copy) -> _Placed | None:
        """None: the pool is not to be had, or the run is not wanted any more."""
        pool = self._pool(copy.pool)
        if pool is None or not pool.wants(copy.row, copy.run):
            return None
        shape, start, stop = pool.shape, copy.start, copy.stop
        theirs = tuple(
            slots(table, size, start, stop)
            for table, size in zip(copy.theirs, self._sizes, strict=True)
        )
        ours = slots(copy.ours, shape.block_size, start, stop)
        if len(ours) != stop - start or ours.max() >= shape.slots:
            return None  # who asks vLLM by hand may name any blocks
        heads = slice(*heads_of(self._rank, self._ranks, shape.kv_heads))
        return _Placed(copy, pool, heads, theirs, ours)

    def _load(self, layer: CachedLayer, placed: _Placed) -> None:
        theirs, ours = placed.theirs[layer.group], placed.ours
        there = theirs // self._sizes[layer.group] != NULL_BLOCK
        if not there.all():  # the rest has left the layer's window
            theirs, ours = theirs[there], ours[there]
        at = torch.from_numpy(theirs).to(layer.parts[0].device)
        for part, view in enumerate(layer.parts):
            bits = torch.from_numpy(placed.pool.bits[layer.layer, part, ours, placed.heads])
            scatter(view, at, bits.view(view.dtype).to(view.device))

    def _save(self, layer: CachedLayer, batch: _Batch) -> None:
        if (batch.theirs[layer.group] < (NULL_BLOCK + 1) * self._sizes[layer.group]).any():
            batch.pool.report(
                "vLLM's prefix cache has dropped KV outside of a sliding window, which the pool "
                "needs: start vLLM with --no-enable-prefix-caching"
            )
            return
        views = layer.parts
        at = batch.at(layer.group, views[0].device)
        sent = _UnderWay(batch, layer.layer, [_to_host(gather(view, at)) for view in views])
        if at.device.type == "cpu":
            self._put(sent)
        else:
            self._under_way.append(sent)

    def _put(self, sent: _UnderWay) -> None:
        batch = sent.batch
        for part, data in enumerate(sent.parts):
            bits = data.view(_BITS[data.element_size()]).numpy()
            batch.pool.bits[sent.layer, part, batch.ours, batch.heads] = bits
        batch.pool.saved[batch.rows, sent.layer, self._rank] = batch.stops


def _to_host(data: torch.Tensor) -> torch.Tensor:
    """Contiguous in this process's memory, where it is once the device was waited for."""
    if data.device.type == "cpu":
        return data.contiguous()
    host = torch.empty(data.shape, dtype=data.dtype, pin_memory=True)
    return host.copy_(data, non_blocking=True)


_BITS = {2: torch.uint16, 4: torch.uint32}  # by bytes of an element
