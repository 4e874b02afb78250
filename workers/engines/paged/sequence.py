"""One sequence over a block pool: its tokens, its memory, what is computed, what still comes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from workers.api.info import Part
from workers.engines.base import SeqId, SequenceSpec
from workers.engines.grammar import Constraint
from workers.kv.evict.attention import Attention
from workers.kv.pool import BlockTable
from workers.kv.prefix import CANONICAL_TOKENS, extend_chain
from workers.kv.tokens import TokenTable

_ROW = {Part.KEY: 0, Part.VALUE: 1}


@dataclass(slots=True, eq=False)
class Incoming:
    """An open import of tokens [0, tokens): which slices have arrived, and how many have not.

    `arrived`: [layers, 2, tokens] bool. `kept`: [tokens] bool, False where the source has said
    that it did not keep a token; `said`: of which tokens it has said anything.
    """

    tokens: int
    arrived: np.ndarray
    missing: int
    kept: np.ndarray
    said: np.ndarray

    @classmethod
    def expect(cls, layers: int, tokens: int, have: int) -> "Incoming":
        arrived = np.zeros((layers, 2, tokens), dtype=bool)
        arrived[:, :, :have] = True
        said = np.zeros(tokens, dtype=bool)
        said[:have] = True
        return cls(tokens, arrived, 2 * layers * (tokens - have), np.ones(tokens, bool), said)

    def new_tokens(self, layer: int, part: Part, start: int, stop: int) -> np.ndarray:
        """Which tokens of [start, stop) have not arrived yet."""
        return np.flatnonzero(~self.arrived[layer, _ROW[part], start:stop]) + start

    def agree(self, start: int, stop: int, positions: np.ndarray) -> None:
        """A slice of [start, stop) holds these tokens. ValueError: another one held others."""
        here = np.zeros(stop - start, dtype=bool)
        here[positions - start] = True
        known = self.said[start:stop]
        if (self.kept[start:stop] != here)[known].any():
            raise ValueError(f"of tokens [{start}, {stop}) other slices held other ones")
        self.kept[start:stop][~known] = here[~known]
        self.said[start:stop] = True

    def mark(self, layer: int, part: Part, tokens: np.ndarray) -> None:
        """Tokens that `new_tokens` named have arrived."""
        self.arrived[layer, _ROW[part], tokens] = True
        self.missing -= len(tokens)

    def complete(self) -> int:
        """Leading tokens that are whole: every layer, K and V."""
        return _leading(self.arrived.all(axis=(0, 1)))

    def whole(self) -> int:
        """Leading tokens that are complete, and all of them kept."""
        return _leading(np.logical_and(self.arrived.all(axis=(0, 1)), self.kept))


def _leading(true: np.ndarray) -> int:
    return len(true) if true.all() else int(true.argmin())


@dataclass(slots=True, eq=False, kw_only=True)
class PagedSequence:
    """See the module's docstring; engines add what their computing needs.

    `chain`: names of the canonical blocks of `tokens`, as far as needed. `remembered`: cache
    units of the table that have been offered to the prefix cache. `constraint`: None without a
    grammar. `kept`: which places hold which tokens, None as long as all are kept, in order.
    `settled`: its prompt is computed, and what was to die of it is dead; `pins`: whoever reads it
    as it is now. `reserve`: tokens that it was promised room for. `attention`: what its tokens were
    paid, where a policy asks for it.
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
    kept: TokenTable | None = None
    settled: bool = False
    pins: int = 0
    reserve: int = 0
    attention: Attention | None = None

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

    # ------------------------------------------------------------ where its tokens are

    @property
    def live(self) -> int:
        """How many of its computed tokens are kept."""
        if self.kept is None:
            return self.computed
        return self.kept.live - (len(self.kept) - self.computed)  # what is not computed lives

    def living(self, start: int, stop: int) -> np.ndarray:
        """Tokens of [start, stop) that are kept, ascending."""
        if self.kept is None:
            return np.arange(start, stop)
        return self.kept.living(start, stop)

    def rows_for(self, size: int, tokens: int) -> int:
        """Blocks that it takes once it has grown to `tokens`."""
        return -(-tokens // size) if self.kept is None else self.kept.rows_for(tokens)

    def reach(self, size: int) -> int:
        """Tokens that it can grow to within its reservation."""
        capacity = self.table.capacity
        return capacity * size if self.kept is None else self.kept.reach(capacity)

    def slots(self, size: int, start: int, stop: int) -> np.ndarray:
        """The slots of the tokens of [start, stop) that are kept, int64, by token."""
        if self.kept is not None:
            return self.slots_of(size, self.kept.places[self.kept.living(start, stop)])
        first = start // size
        blocks = np.array(self.table.blocks[first : -(-stop // size)], dtype=np.int64)
        slots = (blocks[:, None] * size + np.arange(size)).ravel()
        return slots[start - first * size : stop - first * size]

    def places_of(self, tokens: np.ndarray) -> np.ndarray:
        """Where kept tokens are in its table."""
        return tokens if self.kept is None else self.kept.places[tokens]

    def slots_of(self, size: int, places: np.ndarray) -> np.ndarray:
        """The slots of these places of its table."""
        blocks = np.array(self.table.blocks, dtype=np.int64)
        return blocks[places // size] * size + places % size

    # ------------------------------------------------------------ what it wants

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
