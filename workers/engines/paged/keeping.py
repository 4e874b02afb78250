"""What a paged engine keeps of its sequences: who dies, which blocks come back, and the counts.

Called under the engine's lock by the engine's own thread, between steps: no running step reads a
slot that moves, and whoever copies KV out holds the lock meanwhile.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic

import numpy as np

from workers.engines.paged.batch import S
from workers.kv.evict.attention import Attention
from workers.kv.evict.config import Eviction, Reclaim
from workers.kv.evict.dying import name_dying
from workers.kv.evict.policies import NEED_ATTENTION
from workers.kv.pool import BlockPool, PoolFull
from workers.kv.tokens import TokenTable

MOVES_A_STEP = 4096  # tokens copied between two steps, unless one sequence alone takes more

CopySlots = Callable[[np.ndarray, np.ndarray], None]
Watch = Callable[[S], Attention | None]
Score = Callable[[S, np.ndarray], np.ndarray]


@dataclass(slots=True)
class KeptCounts:
    """What eviction has come to since the engine began."""

    evicted_tokens: int = 0
    freed_blocks: int = 0
    moved_tokens: int = 0


class Keeping(Generic[S]):
    """See the module's docstring. `eviction`: None where every token is kept.

    `copy` moves KV between slots; `attention` and `score`, [tokens], are for the policies that ask.
    """

    def __init__(
        self,
        pool: BlockPool,
        eviction: Eviction | None,
        copy: CopySlots,
        attention: Watch[S],
        score: Score[S],
    ) -> None:
        self.eviction = eviction
        self.counts = KeptCounts()
        self._pool = pool
        self._size = pool.block_size
        self._copy = copy
        self._attention = attention
        self._score = score

    @property
    def wants_attention(self) -> bool:
        return self.eviction is not None and self.eviction.policy in NEED_ATTENTION

    def prunes_prompt(self, state: S) -> bool:
        """Whether tokens of its prompt will die as soon as all of it is computed."""
        return self.eviction is not None and self.eviction.prunes(state.spec.prompt_len)

    def capacity(self, state: S, tokens: int) -> int:
        """Blocks to set aside so that the sequence can grow to `tokens` tokens."""
        kept, eviction = state.kept, self.eviction
        if kept is None:
            return -(-tokens // self._size)
        rows = kept.rows_for(tokens)
        if eviction is None or eviction.reclaim is Reclaim.NAIVE:
            return rows
        most = -(-eviction.most(tokens, state.spec.prompt_len) // self._size) + 1
        return max(kept.rows, min(rows, most))

    # ------------------------------------------------------------ between two steps

    def settle(self, states: Iterable[S]) -> None:
        """A step has computed these: let tokens die, and give back what is wholly dead."""
        for state in states:
            if state.computed >= state.spec.prompt_len:
                if not (state.pins and state.settled):
                    self._evict(state)
                state.settled = True

    def repack_some(self, states: Iterable[S]) -> None:
        """Pack what is scattered most, as long as this takes but little time."""
        eviction = self.eviction
        if eviction is None or eviction.reclaim is Reclaim.NAIVE:
            return
        if self._plenty(eviction):
            return
        scattered = [
            state
            for state in states
            if state.kept is not None
            and state.incoming is None
            and state.kept.waste > eviction.waste
        ]
        moved = 0
        for state in sorted(scattered, key=lambda s: -s.kept.waste if s.kept else 0.0):
            if moved >= MOVES_A_STEP:
                break
            moved += self.repack(state)

    def make_room(self, state: S, tokens: int) -> None:
        """The sequence is to grow to `tokens`, past its reservation: by what is at hand."""
        eviction = self.eviction
        if state.reach(self._size) >= tokens or state.kept is None:
            return
        if state.settled and not state.pins:
            self._evict(state)  # it may have been kept from that
        if eviction is not None and not self._plenty(eviction):
            self.repack(state)
        try:
            self._pool.grow(state.table, state.kept.rows_for(tokens))
        except PoolFull:
            return  # it goes on when others give blocks back

    def repack(self, state: S) -> int:
        """Move survivors together and free the rest; how many tokens moved."""
        kept, table, pool = state.kept, state.table, self._pool
        if kept is None:
            return 0
        before = len(table.blocks)
        repack = kept.plan([pool.writable(block) for block in table.blocks])
        if repack is not None and not self._take(state, repack.fresh):
            # Blocks that others may find by name are written over when there are no others.
            repack = kept.plan([pool.private(block) for block in table.blocks])
            if repack is not None and not self._take(state, repack.fresh):
                return 0
        if repack is None:
            return 0
        for row in np.unique(repack.targets // self._size).tolist():
            pool.make_writable(table, row)
        self._copy(
            state.slots_of(self._size, repack.sources), state.slots_of(self._size, repack.targets)
        )
        kept.apply(repack)
        pool.keep_rows(table, repack.rows)
        pool.shrink(table, self.capacity(state, state.reserve))
        self.counts.moved_tokens += len(repack.sources)
        self.counts.freed_blocks += max(0, before - len(table.blocks))
        return len(repack.sources)

    def _take(self, state: S, blocks: int) -> bool:
        """Take so many blocks beyond what the sequence was promised; False: there are none."""
        table = state.table
        try:
            self._pool.grow(table, table.capacity + blocks)
        except PoolFull:
            return False
        self._pool.extend(table, len(table.blocks) + blocks)
        return True

    def _plenty(self, eviction: Eviction) -> bool:
        """Whether so many blocks are to be had that none need be gained."""
        return self._pool.available > eviction.low * self._pool.blocks

    def _evict(self, state: S) -> None:
        eviction, prompt = self.eviction, state.spec.prompt_len
        if eviction is None or state.cancelled:
            return
        tokens, live = state.computed, state.live
        if live - eviction.allowed(tokens, prompt) < eviction.slack:
            return
        if state.kept is not None and len(state.kept) > tokens:
            return  # a step has set places aside that it did not fill
        attention = self._attention(state) if self.wants_attention else None
        if self.wants_attention and (attention is None or attention.queries < eviction.slack):
            return
        dying = name_dying(
            eviction,
            state.living(0, tokens),
            tokens,
            prompt,
            name=state.id.request,
            attention=attention,
            score=lambda candidates: self._score(state, candidates),
        )
        if not len(dying):
            return
        if state.kept is None:
            state.kept = TokenTable(self._size, tokens)
            self._pool.truncate(state.table, state.kept.rows * self._size)
        state.kept.kill(dying)
        self.counts.evicted_tokens += len(dying)
        self._give_back(state)

    def _give_back(self, state: S) -> None:
        """Rows without a living token, and what no longer needs to be promised."""
        kept, table = state.kept, state.table
        assert kept is not None, "something has died"
        dead = kept.dead_rows()
        if dead:
            rows = [row for row in range(len(table.blocks)) if row not in set(dead)]
            kept.drop(dead)
            self._pool.keep_rows(table, rows)
            self.counts.freed_blocks += len(dead)
        self._pool.shrink(table, self.capacity(state, state.reserve))
