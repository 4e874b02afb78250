"""One sequence over a block pool: its tokens, its memory, what is computed, what still comes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from workers.api.info import Part
from workers.engines.base import SeqId, SequenceSpec
from workers.engines.grammar import Constraint
from workers.kv.pool import BlockTable
from workers.kv.prefix import CANONICAL_TOKENS, extend_chain

_ROW = {Part.KEY: 0, Part.VALUE: 1}


@dataclass(slots=True, eq=False)
class Incoming:
    """An open import of tokens [0, tokens): which slices have arrived, and how many have not.

    `arrived`: [layers, 2, tokens] bool.
    """

    tokens: int
    arrived: np.ndarray
    missing: int

    @classmethod
    def expect(cls, layers: int, tokens: int, have: int) -> "Incoming":
        arrived = np.zeros((layers, 2, tokens), dtype=bool)
        arrived[:, :, :have] = True
        return cls(tokens, arrived, 2 * layers * (tokens - have))

    def new_tokens(self, layer: int, part: Part, start: int, stop: int) -> np.ndarray:
        """Which tokens of [start, stop) have not arrived yet."""
        return np.flatnonzero(~self.arrived[layer, _ROW[part], start:stop]) + start

    def mark(self, layer: int, part: Part, tokens: np.ndarray) -> None:
        """Tokens that `new_tokens` named have arrived."""
        self.arrived[layer, _ROW[part], tokens] = True
        self.missing -= len(tokens)

    def complete(self) -> int:
        """Leading tokens that are whole: every layer, K and V."""
        whole = self.arrived.all(axis=(0, 1))
        return self.tokens if whole.all() else int(whole.argmin())


@dataclass(slots=True, eq=False, kw_only=True)
class PagedSequence:
    """See the module's docstring; engines add what their computing needs.

    `chain`: names of the canonical blocks of `tokens`, as far as needed. `remembered`: cache
    units of the table that have been offered to the prefix cache. `constraint`: None without a
    grammar.
    """

    id: SeqId
    spec: SequenceSpec
    root: bytes
    tokens: list[int] = field(default_factory=list)
    table: BlockTable = field(default_factory=BlockTable)
    computed: int = 0
    goal: int | None = None
    cancelled: bool = False
    incoming: Incoming | None = None
    remembered: int = 0
    chain: list[bytes] = field(default_factory=list)
    constraint: Constraint | None = None

    def extend(self, ids: Sequence[int]) -> None:
        self.tokens.extend(ids)

    def truncate(self, length: int) -> None:
        del self.tokens[length:]
        del self.chain[length // CANONICAL_TOKENS :]
        if self.constraint is not None:
            self.constraint.cut(max(0, length - self.spec.prompt_len))

    def allowed(self) -> np.ndarray | None:
        """Which ids the grammar lets come next, [vocab] bool; None: any."""
        if self.constraint is None:
            return None
        return self.constraint.allowed(self.tokens, self.spec.prompt_len)

    def banned(self) -> tuple[int, ...]:
        """The stop ids while it is too early for one."""
        spec = self.spec
        early = len(self.tokens) - spec.prompt_len < spec.min_tokens
        return spec.stop_ids if early and self.constraint is None else ()

    def set_computed(self, count: int) -> None:
        self.computed = count

    def readable(self, layer: int) -> int:
        """Leading tokens whose K and V of `layer` are in the pool."""
        return self.computed

    def unit_names(self, unit_tokens: int, count: int) -> list[bytes]:
        """Names of the whole cache units of the first `count` tokens."""
        extend_chain(self.chain, self.root, self.tokens, count)
        step = unit_tokens // CANONICAL_TOKENS
        return self.chain[step - 1 : count // CANONICAL_TOKENS : step]

    def work(self, most: int) -> tuple[int, int] | None:
        """Tokens [start, stop) to compute next, stop at most `most`; None: nothing to do.

        A sequence that is all computed and wants a token computes its last one again, only for
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
        stop = min(length, most)
        return (start, stop) if start < stop else None

    def samples_at(self, stop: int) -> bool:
        """Whether computing up to `stop` gives the logits of a token that the goal asks for."""
        return self.goal is not None and stop == len(self.tokens) < self.goal
