"""A modelled worker's prefix cache: blocks of KV that stay while nobody needs their memory."""

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """Which blocks a worker has. What legs use is held; the rest lives in the memory that is free.

    The least recently used goes first, and of one prompt its last block before its first. A block
    that several legs use counts as memory of each of them, since each has reserved it.
    """

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._held: dict[int, int] = {}  # by how many legs
        self._idle: OrderedDict[int, None] = OrderedDict()  # the least recently used first

    @property
    def idle_tokens(self) -> int:
        return len(self._idle) * self.block_tokens

    def depth(self, blocks: Sequence[int]) -> int:
        """How many leading blocks are here."""
        held, idle = self._held, self._idle
        for depth, block in enumerate(blocks):
            if block not in held and block not in idle:
                return depth
        return len(blocks)

    def hold(self, blocks: Sequence[int]) -> None:
        """A leg has these blocks."""
        held, idle = self._held, self._idle
        if held.keys().isdisjoint(blocks):  # most often, of what was just computed
            held.update(dict.fromkeys(blocks, 1))
            if idle and not idle.keys().isdisjoint(blocks):
                for block in blocks:
                    idle.pop(block, None)
            return
        for block in blocks:
            if block in held:
                held[block] += 1
            else:
                held[block] = 1
                if block in idle:
                    del idle[block]

    def release(self, blocks: Sequence[int]) -> None:
        """A leg needs them no more; they were its own by `hold`."""
        held, idle = self._held, self._idle
        for block in reversed(blocks):
            if held[block] > 1:
                held[block] -= 1
            else:
                del held[block]
                idle[block] = None

    def fit(self, free_tokens: int) -> None:
        """So much memory is free of legs: what does not fit in it is evicted."""
        idle = self._idle
        for _ in range(len(idle) - free_tokens // self.block_tokens):
            idle.popitem(last=False)

    def clear(self) -> None:
        """The worker is new: nothing is here, and nobody holds anything."""
        self._held.clear()
        self._idle.clear()
