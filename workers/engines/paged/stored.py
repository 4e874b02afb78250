"""A sequence whose KV lies in slots, layer by layer."""

from dataclasses import dataclass

from workers.engines.paged.sequence import PagedSequence


@dataclass(slots=True, eq=False, kw_only=True)
class StoredSequence(PagedSequence):
    """`written[layer]`: tokens whose K and V of that layer are in the pool; ahead of `computed`
    only while a step runs.
    """

    written: list[int]

    def set_computed(self, count: int) -> None:
        self.computed = count
        self.written[:] = [count] * len(self.written)

    def readable(self, layer: int) -> int:
        return self.written[layer]
