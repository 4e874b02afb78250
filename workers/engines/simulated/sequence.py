"""One sequence's state inside the simulated engine."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from workers.engines.paged.sequence import PagedSequence
from workers.engines.simulated.model import grow_history


@dataclass(slots=True, eq=False, kw_only=True)
class SimulatedSequence(PagedSequence):
    """`hashes`: the history hash of each token; `seed`: what sampling adds to it."""

    seed: int
    hashes: "array[int]" = field(default_factory=lambda: array("Q"))

    # Not `super()`: a dataclass with slots is another class than the one its methods saw.
    def extend(self, ids: Sequence[int]) -> None:
        PagedSequence.extend(self, ids)
        grow_history(self.hashes, ids)

    def truncate(self, length: int) -> None:
        PagedSequence.truncate(self, length)
        del self.hashes[length:]
