"""One sequence's state inside the torch engine."""

from dataclasses import dataclass

import numpy as np

from workers.engines.paged.sequence import PagedSequence


@dataclass(slots=True, eq=False, kw_only=True)
class TorchSequence(PagedSequence):
    """`written[layer]`: tokens whose K and V of that layer are in the pool; ahead of `computed`
    only while a step runs.
    """

    written: list[int]

    def set_computed(self, count: int) -> None:
        self.computed = count
        self.written[:] = [count] * len(self.written)

    def readable(self, layer: int) -> int:
        return self.written[layer]

    def slots(self, block_size: int, start: int, stop: int) -> np.ndarray:
        """The slots of tokens [start, stop), [stop - start] int64."""
        first = start // block_size
        blocks = np.array(self.table.blocks[first : -(-stop // block_size)], dtype=np.int64)
        slots = (blocks[:, None] * block_size + np.arange(block_size)).ravel()
        return slots[start - first * block_size : stop - first * block_size]
