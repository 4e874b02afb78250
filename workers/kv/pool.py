"""The accounting of one KV pool: block tables, references, reservations, a prefix cache.

Nothing here touches memory or locks; the owner moves the bytes and serialises the calls.

Every block is in exactly one place: free, cached (no reference, content known by name, may be
evicted at any time) or held (referenced by one or more tables). A table reserves blocks for its
whole life, so that `extend` within the reservation never fails: `available` is what is free or
cached and not promised to anybody.

The prefix cache works in units of lcm(block size, 16) tokens, because names are given to canonical
blocks of 16 tokens and memory to blocks of the pool's own size; a unit is whole in both.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import lcm
from typing import NamedTuple

from workers.kv.prefix import CANONICAL_TOKENS


class PoolFull(Exception):
    """The pool cannot promise that many blocks now."""

    def __init__(self, wanted: int, available: int) -> None:
        super().__init__(f"{wanted} blocks wanted, {available} available")
        self.wanted = wanted
        self.available = available


class BlockCopy(NamedTuple):
    """The owner must copy block `source` onto block `target` before it writes `target`."""

    source: int
    target: int


@dataclass(slots=True, eq=False)
class BlockTable:
    """The blocks of one sequence, in token order, and how many more it was promised."""

    blocks: list[int] = field(default_factory=list)
    promised: int = 0

    @property
    def capacity(self) -> int:
        """Blocks it may come to hold."""
        return len(self.blocks) + self.promised


class BlockPool:
    """See the module's docstring. Sizes are in blocks unless a name says tokens."""

    def __init__(self, blocks: int, block_size: int) -> None:
        if blocks < 1 or block_size < 1:
            raise ValueError(f"a pool of {blocks} blocks of {block_size} tokens holds nothing")
        self.blocks = blocks
        self.block_size = block_size
        self.unit_tokens = lcm(block_size, CANONICAL_TOKENS)
        self._unit_blocks = self.unit_tokens // block_size
        self._promised = 0
        self._references = [0] * blocks
        self._free = list(range(blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._units: dict[bytes, tuple[int, ...]] = {}
        self._names: list[bytes | None] = [None] * blocks

    @property
    def available(self) -> int:
        """Blocks that could be promised now, evictable cache included."""
        return len(self._free) + len(self._cached) - self._promised

    @property
    def held(self) -> int:
        """Blocks that some table references."""
        return self.blocks - len(self._free) - len(self._cached)

    @property
    def cached(self) -> int:
        """Blocks without a reference whose content can be found by name."""
        return len(self._cached)

    def find(self, names: Sequence[bytes]) -> list[int]:
        """The blocks of the longest run of known units that `names`, one per unit, starts with."""
        found: list[int] = []
        for name in names:
            if name not in self._units:
                break
            found.extend(self._units[name])
        return found

    def open(self, capacity: int, found: Sequence[int]) -> BlockTable:
        """A table of `capacity` blocks that starts with the blocks `found`. Raises PoolFull."""
        revived = sum(self._references[block] == 0 for block in found)
        wanted = capacity - len(found) + revived
        if wanted > self.available:
            raise PoolFull(wanted, self.available)
        table = BlockTable(promised=capacity)
        self._promised += capacity
        self.adopt(table, found)
        return table

    def adopt(self, table: BlockTable, blocks: Sequence[int]) -> None:
        """Append blocks by reference, within the reservation."""
        self._use_promise(table, len(blocks))
        for block in blocks:
            if self._references[block] == 0:
                del self._cached[block]
            self._references[block] += 1
            table.blocks.append(block)

    def grow(self, table: BlockTable, capacity: int) -> None:
        """Raise the reservation to `capacity` blocks. Raises PoolFull and changes nothing then."""
        more = capacity - table.capacity
        if more > self.available:
            raise PoolFull(more, self.available)
        if more > 0:
            table.promised += more
            self._promised += more

    def extend(self, table: BlockTable, count: int) -> None:
        """Take blocks until the table has `count`, within the reservation."""
        more = count - len(table.blocks)
        if more > 0:
            self._use_promise(table, more)
            table.blocks.extend(self._take() for _ in range(more))

    def truncate(self, table: BlockTable, tokens: int) -> BlockCopy | None:
        """Keep the first `tokens` tokens and make the rest of the last block writable.

        The reservation stays. A last block that others reference is replaced, see BlockCopy; one
        that only has a name loses it. Raises PoolFull and changes nothing then, which can only
        happen where dropped blocks are shared.
        """
        keep = -(-tokens // self.block_size)
        partial = tokens % self.block_size != 0 and keep <= len(table.blocks)
        changed = table.blocks[keep - 1 if partial else keep :]
        shared = sum(self._references[block] > 1 for block in changed)
        if shared > self.available:
            raise PoolFull(shared, self.available)
        for block in reversed(table.blocks[keep:]):
            self._release(block)
            table.blocks.pop()
            table.promised += 1
            self._promised += 1
        return self.make_writable(table, -1) if partial else None

    def make_writable(self, table: BlockTable, row: int) -> BlockCopy | None:
        """Nobody else is to read what is written into the table's block `row`; see `truncate`.

        Raises PoolFull and changes nothing then.
        """
        block = table.blocks[row]
        name = self._names[block]
        if self._references[block] == 1:
            if name is not None:
                self._forget(name)
            return None
        if self.available < 1:
            raise PoolFull(1, self.available)
        self._references[block] -= 1
        table.blocks[row] = self._take()
        return BlockCopy(block, table.blocks[row])

    def writable(self, block: int) -> bool:
        """Whether nobody else reads it, now or by its name."""
        return self._references[block] == 1 and self._names[block] is None

    def private(self, block: int) -> bool:
        """Whether one table only has it; others may still find it by its name."""
        return self._references[block] == 1

    def keep_rows(self, table: BlockTable, rows: Sequence[int]) -> None:
        """Only these of the table's blocks, in this order; the reservation shrinks with it."""
        stay = [table.blocks[row] for row in rows]
        gone = set(range(len(table.blocks))).difference(rows)
        for row in sorted(gone, reverse=True):
            self._release(table.blocks[row])
        table.blocks[:] = stay

    def shrink(self, table: BlockTable, capacity: int) -> None:
        """Lower the reservation to `capacity` blocks, or to those the table has."""
        less = min(table.promised, table.capacity - capacity)
        if less > 0:
            self._use_promise(table, less)

    def remember(self, table: BlockTable, unit: int, name: bytes) -> None:
        """Give the table's complete unit number `unit` a name by which `find` finds it."""
        first = unit * self._unit_blocks
        blocks = tuple(table.blocks[first : first + self._unit_blocks])
        if name in self._units or any(self._names[block] is not None for block in blocks):
            return
        self._units[name] = blocks
        for block in blocks:
            self._names[block] = name

    def close(self, table: BlockTable) -> None:
        """Drop the table. Blocks with a name stay as cache; later ones are evicted first."""
        self._use_promise(table, table.promised)
        while table.blocks:
            self._release(table.blocks.pop())

    def _use_promise(self, table: BlockTable, count: int) -> None:
        if count > table.promised:
            raise ValueError(f"{count} blocks wanted, {table.promised} promised to this table")
        table.promised -= count
        self._promised -= count

    def _take(self) -> int:
        if not self._free:
            oldest = next(iter(self._cached))
            name = self._names[oldest]
            assert name is not None, "a cached block has a name"
            self._forget(name)
        block = self._free.pop()
        self._references[block] = 1
        return block

    def _release(self, block: int) -> None:
        self._references[block] -= 1
        if self._references[block] == 0:
            if self._names[block] is None:
                self._free.append(block)
            else:
                self._cached[block] = None

    def _forget(self, name: bytes) -> None:
        for block in self._units.pop(name):
            self._names[block] = None
            if self._references[block] == 0:
                del self._cached[block]
                self._free.append(block)
