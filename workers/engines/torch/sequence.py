"""One sequence's state inside the torch engine."""

from dataclasses import dataclass, field

import numpy as np

from workers.api.info import Part
from workers.engines.base import SeqId, SequenceSpec
from workers.kv.pool import BlockTable
from workers.kv.prefix import CANONICAL_TOKENS, extend_chain


@dataclass(slots=True, eq=False)
class Incoming:
    """An open import of tokens [0, tokens): which slices have arrived, and how many have not.

    `arrived`: [layers, 2, tokens] bool.
    """

    tokens: int
    have: int
    arrived: np.ndarray
    missing: int

    @classmethod
    def expect(cls, layers: int, tokens: int, have: int) -> "Incoming":
        arrived = np.zeros((layers, 2, tokens), dtype=bool)
        arrived[:, :, :have] = True
        return cls(tokens, have, arrived, 2 * layers * (tokens - have))

    def new_tokens(self, layer: int, part: Part, start: int, stop: int) -> np.ndarray:
        """Which tokens of [start, stop) have not arrived yet."""
        return np.flatnonzero(~self._part(layer, part)[start:stop]) + start

    def mark(self, layer: int, part: Part, tokens: np.ndarray) -> None:
        self._part(layer, part)[tokens] = True
        self.missing -= len(tokens)

    def complete(self) -> int:
        """Leading tokens that are whole: every layer, K and V."""
        whole = self.arrived.all(axis=(0, 1))
        return self.tokens if whole.all() else int(whole.argmin())

    def _part(self, layer: int, part: Part) -> np.ndarray:
        return self.arrived[layer, 0 if part is Part.KEY else 1]


@dataclass(slots=True, eq=False)
class SequenceState:
    """Tokens, their memory and what is computed.

    `written[layer]`: tokens whose K and V of that layer are in the pool; ahead of `computed`
    only while a step runs. `chain`: names of the canonical blocks of `tokens`, as far as needed.
    `remembered`: cache units of the table that have been offered to the prefix cache.
    """

    id: SeqId
    spec: SequenceSpec
    tokens: list[int]
    root: bytes
    written: list[int]
    table: BlockTable = field(default_factory=BlockTable)
    computed: int = 0
    goal: int | None = None
    cancelled: bool = False
    incoming: Incoming | None = None
    remembered: int = 0
    chain: list[bytes] = field(default_factory=list)

    def set_computed(self, count: int) -> None:
        self.computed = count
        self.written[:] = [count] * len(self.written)

    def unit_names(self, unit_tokens: int, count: int) -> list[bytes]:
        """Names of the whole cache units of the first `count` tokens."""
        extend_chain(self.chain, self.root, self.tokens, count)
        step = unit_tokens // CANONICAL_TOKENS
        return self.chain[step - 1 : count // CANONICAL_TOKENS : step]

    def slots(self, block_size: int, start: int, stop: int) -> np.ndarray:
        """The slots of tokens [start, stop), [stop - start] int64."""
        first = start // block_size
        blocks = np.array(self.table.blocks[first : -(-stop // block_size)], dtype=np.int64)
        slots = (blocks[:, None] * block_size + np.arange(block_size)).ravel()
        return slots[start - first * block_size : stop - first * block_size]

    def work(self, context: int, block_size: int) -> tuple[int, int] | None:
        """Tokens [start, stop) to run through the model next, None: nothing to do.

        A sequence that is all computed and wants a token runs its last token again, only for
        the logits.
        """
        if self.goal is None or self.cancelled or self.incoming is not None:
            return None
        length = len(self.tokens)
        start = self.computed
        if start == length:
            if self.goal <= length:
                return None
            start -= 1
        stop = min(length, context, self.table.capacity * block_size)
        return (start, stop) if start < stop else None

    def wants_token_at(self, stop: int) -> bool:
        """Whether running up to `stop` gives the logits of a token that the goal asks for."""
        return self.goal is not None and stop == len(self.tokens) < self.goal
