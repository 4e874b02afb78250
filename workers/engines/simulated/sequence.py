"""One sequence's state inside the simulated engine."""

from array import array
from dataclasses import dataclass, field

import numpy as np

from workers.api.info import Part
from workers.engines.base import SeqId, SequenceSpec
from workers.engines.simulated.model import grow_history
from workers.kv.pool import BlockTable
from workers.kv.prefix import CANONICAL_TOKENS, extend_chain


@dataclass(slots=True, eq=False)
class Incoming:
    """An open import of tokens [0, tokens). `arrived`: [layers, 2, tokens] bool."""

    tokens: int
    arrived: np.ndarray

    @classmethod
    def expect(cls, layers: int, tokens: int, have: int) -> "Incoming":
        arrived = np.zeros((layers, 2, tokens), dtype=bool)
        arrived[:, :, :have] = True
        return cls(tokens, arrived)

    @property
    def missing(self) -> int:
        return self.arrived.size - int(np.count_nonzero(self.arrived))

    @property
    def complete(self) -> int:
        """Leading tokens of which every slice has arrived."""
        whole = self.arrived.all(axis=(0, 1))
        return self.tokens if whole.all() else int(whole.argmin())

    def mark(self, layer: int, part: Part, start: int, stop: int) -> None:
        self.arrived[layer, 0 if part is Part.KEY else 1, start:stop] = True


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens, their history hashes, their blocks and how many are computed."""

    id: SeqId
    spec: SequenceSpec
    seed: int
    root: bytes
    table: BlockTable
    tokens: list[int] = field(default_factory=list)
    hashes: "array[int]" = field(default_factory=lambda: array("Q"))
    chain: list[bytes] = field(default_factory=list)
    computed: int = 0
    remembered: int = 0  # cache units of the table that have a name
    goal: int | None = None
    cancelled: bool = False
    incoming: Incoming | None = None

    def extend(self, ids: "list[int]") -> None:
        self.tokens.extend(ids)
        grow_history(self.hashes, ids)

    def truncate(self, length: int, unit_tokens: int) -> None:
        del self.tokens[length:]
        del self.hashes[length:]
        del self.chain[length // CANONICAL_TOKENS :]
        self.computed = min(self.computed, length)
        self.remembered = min(self.remembered, length // unit_tokens)

    def unit_names(self, unit_tokens: int, count: int) -> list[bytes]:
        """Names of the whole cache units of the first `count` tokens."""
        extend_chain(self.chain, self.root, self.tokens, count)
        step = unit_tokens // CANONICAL_TOKENS
        return self.chain[step - 1 : count // CANONICAL_TOKENS : step]

    def work(self, capacity: int) -> tuple[int, int] | None:
        """Tokens [start, stop) to compute next; None: nothing to do.

        A sequence that is all computed and wants a token computes its last one again, for the
        logits.
        """
        if self.goal is None or self.cancelled or self.incoming is not None:
            return None
        length = len(self.tokens)
        start = self.computed
        if start == length:
            if self.goal <= length:
                return None
            start -= 1
        stop = min(length, capacity)
        return (start, stop) if start < stop else None

    def samples_at(self, stop: int) -> bool:
        return self.goal is not None and stop == len(self.tokens) < self.goal
