"""A paged engine's KV: its blocks, what comes in and goes out, what sequences share.

The engine interface's half that moves KV; see `workers.engines.base` for the verbs.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from threading import Lock
from typing import Generic

import numpy as np

from workers.api.info import BYTES_PER_ELEMENT, EngineInfo, Part
from workers.engines.base import KVSlice, NoRoom, SeqId
from workers.engines.paged.batch import S
from workers.engines.paged.keeping import Keeping
from workers.engines.paged.sequence import Incoming
from workers.kv.evict.attention import Attention
from workers.kv.evict.config import WHOLE, Eviction
from workers.kv.pool import BlockPool, PoolFull
from workers.kv.tokens import TokenTable


class PagedMemory(ABC, Generic[S]):
    """One lock guards sequences and pool, since `put`, `read` and `cancel` come from other threads.

    `eviction`: what it keeps of its sequences; None: everything.
    """

    policies: frozenset[str] = frozenset()  # that the engine can keep by
    takes_gaps = True  # whether it attends over sequences that have lost tokens

    def __init__(self, info: EngineInfo, *, eviction: Eviction | None) -> None:
        if eviction is not None and eviction.policy not in self.policies:
            raise ValueError(f"the engine {info.engine} cannot evict by {eviction.policy}")
        if eviction is not None and eviction.heads not in WHOLE:
            raise ValueError(f"heads: {eviction.heads}: an engine's heads keep the same tokens")
        self.info = info
        self._lock = Lock()
        self._pool = BlockPool(info.kv_total_tokens // info.block_size, info.block_size)
        self._keeping = Keeping(
            self._pool, eviction, self._copy_slots, self._attention, self._score
        )
        self._sequences: dict[SeqId, S] = {}
        self._block_size = info.block_size
        self._layers = info.fingerprint.layers
        self._bits = np.dtype(f"u{BYTES_PER_ELEMENT[info.fingerprint.kv_dtype]}")

    # ------------------------------------------------------------ what an engine adds

    @abstractmethod
    def _read_bits(self, state: S, layer: int, part: Part, tokens: np.ndarray) -> np.ndarray:
        """A copy of the bits of kept tokens, ascending; [tokens, kv_heads, head_size]."""

    @abstractmethod
    def _write_bits(
        self, state: S, layer: int, part: Part, tokens: np.ndarray, data: np.ndarray
    ) -> None:
        """Keep the bits of `tokens`, ascending, each in its place. Raises ValueError."""

    @abstractmethod
    def _read_blocks(self, blocks: Sequence[int]) -> np.ndarray:
        """A copy of the bits of whole blocks, [layers, 2, tokens, kv_heads, head_size]."""

    @abstractmethod
    def _copy_slots(self, sources: np.ndarray, targets: np.ndarray) -> None:
        """Copy KV from slots to slots."""

    def _attention(self, state: S) -> Attention | None:
        """What its tokens were paid; for an engine with a policy that asks for it."""
        return None

    def _score(self, state: S, tokens: np.ndarray) -> np.ndarray:
        """What TriAttention expects of kept tokens, [tokens]; for an engine that has it.

        Raises ValueError for one that has not, whose `policies` do not name it either.
        """
        raise ValueError(f"{type(self).__name__} has no triattention: leave out evict in its pool")

    # ------------------------------------------------------------ KV in and out

    def open_import(self, seq: SeqId, tokens: int) -> int:
        with self._lock:
            state = self._sequences[seq]
            if state.incoming is not None:
                raise ValueError(f"an import into {seq} is open already")
            if not 0 < tokens <= len(state.tokens):
                raise ValueError(f"an import of {tokens} of {len(state.tokens)} tokens")
            held = len(state.table.blocks)
            if held * self._block_size == state.computed:  # nothing past the cached prefix yet
                found = self._find(state, tokens)[held:]
                self._pool.adopt(state.table, found)
                self._take_over(state, held + len(found))
            self._pool.extend(state.table, self._blocks_for(tokens))
            have = min(state.computed, tokens)
            state.incoming = Incoming.expect(self._layers, tokens, have)
            return have

    def put(self, seq: SeqId, kv: KVSlice) -> None:
        with self._lock:
            state = self._sequences[seq]
            incoming = self._incoming(state)
            self._check_slice(kv, incoming.tokens)
            part = Part(kv.part)
            if not self.takes_gaps and len(kv.positions) < kv.stop - kv.start:
                raise ValueError(f"the engine {self.info.engine} takes no KV with tokens missing")
            incoming.agree(kv.start, kv.stop, kv.positions)
            # What has arrived is left alone: a repeat may come while the blocks are shared.
            new = incoming.new_tokens(kv.layer, part, kv.start, kv.stop)
            if len(new):
                held = np.isin(kv.positions, new, assume_unique=True)
                self._write_bits(state, kv.layer, part, kv.positions[held], kv.data[held])
                incoming.mark(kv.layer, part, new)

    def missing(self, seq: SeqId) -> int:
        with self._lock:
            return self._incoming(self._sequences[seq]).missing

    def commit_import(self, seq: SeqId) -> None:
        with self._lock:
            state = self._sequences[seq]
            incoming = self._incoming(state)
            if incoming.missing:
                raise ValueError(f"{incoming.missing} slices-worth of tokens are missing")
            self._take_in(state, incoming, incoming.tokens)

    def imported(self, seq: SeqId) -> int:
        with self._lock:
            return self._incoming(self._sequences[seq]).complete()

    def keep_import(self, seq: SeqId) -> int:
        with self._lock:
            state = self._sequences[seq]
            incoming = self._incoming(state)
            depth = incoming.complete()
            self._pool.truncate(state.table, depth)  # the rest goes back to the reservation
            self._take_in(state, incoming, depth)
            return depth

    def share(self, source: SeqId, seq: SeqId, tokens: int) -> None:
        with self._lock:
            giver, taker = self._sequences[source], self._sequences[seq]
            if not 0 < tokens <= giver.computed:
                raise ValueError(f"{tokens} tokens wanted, {giver.computed} are computed")
            if giver.root != taker.root or giver.tokens[:tokens] != taker.tokens[:tokens]:
                raise ValueError(f"{source} and {seq} differ in their first {tokens} tokens")
            if taker.incoming is not None:
                # Only what was found in the cache stays; the rest goes back to the reservation.
                taker.incoming = None
                self._pool.truncate(taker.table, taker.computed)
            if taker.computed >= tokens:
                return
            if giver.kept is not None:
                self._share_kept(giver, taker, tokens)
                return
            begun = len(taker.table.blocks)
            if begun * self._block_size != taker.computed:
                raise ValueError(f"{seq} has computed more than what it found in the cache")
            whole, rest = divmod(tokens, self._block_size)
            self._pool.adopt(taker.table, giver.table.blocks[begun:whole])
            if rest:
                self._pool.extend(taker.table, whole + 1)
                self._copy_block(giver.table.blocks[whole], taker.table.blocks[whole])
            taker.set_computed(tokens)
            taker.remembered = whole * self._block_size // self._pool.unit_tokens

    def read(self, seq: SeqId, layer: int, part: Part, start: int, stop: int) -> KVSlice:
        with self._lock:
            state = self._sequences[seq]
            self._check_layer(layer)
            there = state.readable(layer)
            if not 0 <= start < stop <= there:
                raise ValueError(f"tokens [{start}, {stop}), {there} are there")
            tokens = state.living(start, stop)
            data = self._read_bits(state, layer, Part(part), tokens)
        positions = tokens.astype(np.int32)
        return KVSlice(
            layer=layer, part=Part(part), start=start, stop=stop, positions=positions, data=data
        )

    def read_cached(self, name: bytes) -> np.ndarray | None:
        with self._lock:
            blocks = self._pool.find((name,))
            return self._read_blocks(blocks) if blocks else None

    def _compute_to(self, state: S, stop: int) -> None:
        """The KV of tokens below `stop` is in the pool."""
        state.set_computed(max(state.computed, stop))
        kept = state.kept
        # What was computed after a token had died is not what its name would say.
        pure = state.computed if kept is None else min(kept.in_place, state.computed)
        self._remember(state, pure)

    # ------------------------------------------------------------ tables with dead tokens

    def _release(self, state: S) -> None:
        """Give a closed sequence's blocks back."""
        self._pool.close(state.table)

    def _cut_table(self, state: S, length: int) -> None:
        """Give back the blocks past `length` tokens, and past dead ones before them.

        Raises NoRoom and changes nothing then.
        """
        pool, table, kept = self._pool, state.table, state.kept
        try:
            if kept is None:
                copy = pool.truncate(table, length)
            else:
                kept = kept.copy()
                kept.truncate(length if len(kept.living(length - 1, length)) else length - 1)
                copy = pool.make_writable(table, kept.rows - 1) if kept.open_offset else None
                pool.truncate(table, kept.rows * self._block_size)
        except PoolFull as full:
            raise self._no_room(full) from full
        if copy is not None:
            self._copy_block(copy.source, copy.target)
        state.kept = kept
        if state.attention is not None:
            state.attention.truncate(length)

    def _take_in(self, state: S, incoming: Incoming, tokens: int) -> None:
        """An import ends with its first `tokens` tokens."""
        state.incoming = None
        state.settled = tokens >= state.spec.prompt_len
        if not incoming.kept[:tokens].all():
            state.kept = TokenTable(self._block_size, tokens)
            state.kept.kill(np.flatnonzero(~incoming.kept[:tokens]))
        self._compute_to(state, tokens)
        if state.kept is not None:
            self._keeping.repack(state)

    def _share_kept(self, giver: S, taker: S, tokens: int) -> None:
        """`share` of a sequence that has lost tokens: its rows as they are, but for an open one."""
        kept = giver.kept
        assert kept is not None, "some token is dead"
        kept = kept.copy()
        kept.truncate(tokens)
        self._pool.truncate(taker.table, 0)
        self._grow_blocks(taker, kept.rows)
        whole = kept.rows - (kept.open_offset > 0)
        self._pool.adopt(taker.table, giver.table.blocks[:whole])
        if whole < kept.rows:
            self._pool.extend(taker.table, kept.rows)
            self._copy_block(giver.table.blocks[whole], taker.table.blocks[whole])
        taker.kept = kept
        taker.set_computed(tokens)
        taker.remembered = kept.in_place // self._pool.unit_tokens
        taker.settled = tokens >= taker.spec.prompt_len

    # ------------------------------------------------------------ helpers

    def _check_layer(self, layer: int) -> None:
        if not 0 <= layer < self._layers:
            raise ValueError(f"layer {layer} of {self._layers}")

    def _check_slice(self, kv: KVSlice, tokens: int) -> None:
        self._check_layer(kv.layer)
        if not 0 <= kv.start < kv.stop <= tokens:
            raise ValueError(f"tokens [{kv.start}, {kv.stop}) of {tokens}")
        fingerprint = self.info.fingerprint
        shape = (len(kv.positions), fingerprint.kv_heads, fingerprint.head_size)
        if kv.data.shape != shape or kv.data.dtype != self._bits:
            raise ValueError(
                f"data {kv.data.dtype}{list(kv.data.shape)}, expected {self._bits}{list(shape)}"
            )
        positions = kv.positions
        if len(positions) and not (
            kv.start <= positions[0]
            and positions[-1] < kv.stop
            and (positions[1:] > positions[:-1]).all()
        ):
            raise ValueError(f"positions of tokens [{kv.start}, {kv.stop}) are not theirs")

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._block_size)

    def _no_room(self, full: PoolFull) -> NoRoom:
        return NoRoom(full.wanted * self._block_size, full.available * self._block_size)

    def _grow(self, state: S, tokens: int) -> None:
        self._grow_blocks(state, self._keeping.capacity(state, tokens))
        state.reserve = max(state.reserve, tokens)

    def _grow_blocks(self, state: S, blocks: int) -> None:
        try:
            self._pool.grow(state.table, blocks)
        except PoolFull as full:
            raise self._no_room(full) from full

    def _copy_block(self, source: int, target: int) -> None:
        """What lies behind a block's tokens may be copied with them: it is written before read."""
        offsets = np.arange(self._block_size)
        self._copy_slots(source * self._block_size + offsets, target * self._block_size + offsets)

    def _incoming(self, state: S) -> Incoming:
        if state.incoming is None:
            raise ValueError(f"no import into {state.id} is open")
        return state.incoming

    def _find(self, state: S, tokens: int) -> list[int]:
        return self._pool.find(state.unit_names(self._pool.unit_tokens, tokens))

    def _take_over(self, state: S, blocks: int) -> None:
        state.set_computed(blocks * self._block_size)
        state.remembered = state.computed // self._pool.unit_tokens

    def _remember(self, state: S, tokens: int) -> None:
        """Offer the whole cache units of the first `tokens` tokens to the prefix cache."""
        whole = tokens // self._pool.unit_tokens
        if whole > state.remembered:
            names = state.unit_names(self._pool.unit_tokens, tokens)
            for unit in range(state.remembered, whole):
                self._pool.remember(state.table, unit, names[unit])
            state.remembered = whole
