"""An engine's sequences over its block pool: all of the engine interface but the computing."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Generic

import numpy as np

from workers.api.info import BYTES_PER_ELEMENT, EngineInfo, Part
from workers.engines.base import KVListener, KVSlice, NoRoom, SeqId, SequenceSpec
from workers.engines.grammar import Grammars
from workers.engines.paged.batch import Entry, S, choose_batch
from workers.engines.paged.sequence import Incoming
from workers.kv.pool import BlockPool, PoolFull
from workers.kv.prefix import root_key


class PagedEngine(ABC, Generic[S]):
    """Implements `workers.engines.base.Engine`, see there for the verbs, but `begin` and `finish`.

    An engine adds these two, what a sequence of its kind is, and how KV bytes are kept. One lock
    guards sequences and pool, since `put`, `read` and `cancel` come from other threads.
    `tokenizer`: the model's tokenizer.json; None: it takes no grammars.
    """

    def __init__(self, info: EngineInfo, *, chunk_tokens: int, tokenizer: Path | None) -> None:
        self.info = info
        self._grammars = Grammars(tokenizer, info.vocab_size, info.stop_ids)
        self.on_kv: KVListener | None = None
        self._lock = Lock()
        self._pool = BlockPool(info.kv_total_tokens // info.block_size, info.block_size)
        self._sequences: dict[SeqId, S] = {}
        self._aimed: dict[SeqId, S] = {}  # those with a goal
        self._block_size = info.block_size
        self._chunk_tokens = chunk_tokens
        self._layers = info.fingerprint.layers
        self._fingerprint = info.fingerprint.canonical
        self._bits = np.dtype(f"u{BYTES_PER_ELEMENT[info.fingerprint.kv_dtype]}")

    # ------------------------------------------------------------ what an engine adds

    @abstractmethod
    def _sequence(self, seq: SeqId, spec: SequenceSpec, root: bytes) -> S:
        """A sequence without its tokens, which `extend` brings."""

    @abstractmethod
    def _read_bits(self, state: S, layer: int, part: Part, start: int, stop: int) -> np.ndarray:
        """A copy of the bits of tokens [start, stop), [tokens, kv_heads, head_size]."""

    @abstractmethod
    def _write_bits(self, state: S, kv: KVSlice, tokens: np.ndarray) -> None:
        """Keep the bits of `tokens`, a part of the slice's. Raises ValueError."""

    @abstractmethod
    def _read_blocks(self, blocks: Sequence[int]) -> np.ndarray:
        """A copy of the bits of whole blocks, [layers, 2, tokens, kv_heads, head_size]."""

    @abstractmethod
    def _copy_block(self, source: int, target: int, tokens: int) -> None:
        """Copy the KV of the first `tokens` tokens of a block onto another block."""

    # ------------------------------------------------------------ opening and closing

    def open(self, seq: SeqId, spec: SequenceSpec, *, reuse: bool) -> int:
        self._check_tokens(spec.tokens, len(spec.tokens))
        if not 0 < spec.prompt_len <= len(spec.tokens):
            raise ValueError(f"a prompt of {spec.prompt_len} of {len(spec.tokens)} tokens")
        grammar = spec.sampling.grammar
        constraint = None if grammar is None else self._grammars.constraint(grammar)
        with self._lock:
            if seq in self._sequences:
                raise ValueError(f"{seq} is open already")
            state = self._sequence(seq, spec, root_key(self._fingerprint, spec.cache_salt))
            state.constraint = constraint
            state.extend(spec.tokens)
            found = self._find(state, len(state.tokens) - 1) if reuse else []
            capacity = self._blocks_for(max(spec.reserve, len(state.tokens)))
            try:
                state.table = self._pool.open(capacity, found)
            except PoolFull as full:
                raise self._no_room(full) from full
            self._take_over(state, len(found))
            self._sequences[seq] = state
            return state.computed

    def grow(self, seq: SeqId, reserve: int) -> None:
        with self._lock:
            self._grow(self._sequences[seq], reserve)

    def append(self, seq: SeqId, ids: Sequence[int]) -> None:
        with self._lock:
            state = self._sequences[seq]
            self._check_tokens(ids, len(state.tokens) + len(ids))
            self._grow(state, len(state.tokens) + len(ids))
            state.extend(ids)

    def truncate(self, seq: SeqId, length: int) -> None:
        with self._lock:
            state = self._sequences[seq]
            if not 0 < length <= len(state.tokens):
                raise ValueError(f"cannot cut {len(state.tokens)} tokens to {length}")
            if state.incoming is not None and length < state.incoming.tokens:
                raise ValueError(f"an import of {state.incoming.tokens} tokens is open")
            if length < state.computed:
                try:
                    copy = self._pool.truncate(state.table, length)
                except PoolFull as full:
                    raise self._no_room(full) from full
                if copy is not None:
                    self._copy_block(copy.source, copy.target, length % self._block_size)
                state.set_computed(length)
                state.remembered = min(state.remembered, length // self._pool.unit_tokens)
            state.truncate(length)

    def close(self, seq: SeqId) -> None:
        with self._lock:
            state = self._sequences.pop(seq)
            self._aimed.pop(seq, None)
            if state.incoming is not None:
                self._remember(state, state.incoming.complete())
            self._pool.close(state.table)

    def cancel(self, seq: SeqId) -> None:
        with self._lock:
            self._sequences[seq].cancelled = True

    # ------------------------------------------------------------ asking

    def set_goal(self, seq: SeqId, length: int | None) -> None:
        with self._lock:
            state = self._sequences[seq]
            state.goal = length
            if length is None:
                self._aimed.pop(seq, None)
            else:
                self._aimed[seq] = state

    def length(self, seq: SeqId) -> int:
        with self._lock:
            return len(self._sequences[seq].tokens)

    def computed(self, seq: SeqId) -> int:
        with self._lock:
            return self._sequences[seq].computed

    def kv_free_tokens(self) -> int:
        with self._lock:
            return self._pool.available * self._block_size

    def kv_held_tokens(self) -> int:
        with self._lock:
            return self._pool.held * self._block_size

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
            # What has arrived is left alone: a repeat may come while the blocks are shared.
            new = incoming.new_tokens(kv.layer, part, kv.start, kv.stop)
            if len(new):
                self._write_bits(state, kv, new)
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
            state.incoming = None
            self._compute_to(state, incoming.tokens)

    def imported(self, seq: SeqId) -> int:
        with self._lock:
            return self._incoming(self._sequences[seq]).complete()

    def keep_import(self, seq: SeqId) -> int:
        with self._lock:
            state = self._sequences[seq]
            depth = self._incoming(state).complete()
            state.incoming = None
            self._pool.truncate(state.table, depth)  # the rest goes back to the reservation
            self._compute_to(state, depth)
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
            begun = len(taker.table.blocks)
            if begun * self._block_size != taker.computed:
                raise ValueError(f"{seq} has computed more than what it found in the cache")
            whole, rest = divmod(tokens, self._block_size)
            self._pool.adopt(taker.table, giver.table.blocks[begun:whole])
            if rest:
                self._pool.extend(taker.table, whole + 1)
                self._copy_block(giver.table.blocks[whole], taker.table.blocks[whole], rest)
            taker.set_computed(tokens)
            taker.remembered = whole * self._block_size // self._pool.unit_tokens

    def read(self, seq: SeqId, layer: int, part: Part, start: int, stop: int) -> KVSlice:
        with self._lock:
            state = self._sequences[seq]
            self._check_layer(layer)
            there = state.readable(layer)
            if not 0 <= start < stop <= there:
                raise ValueError(f"tokens [{start}, {stop}), {there} are there")
            data = self._read_bits(state, layer, Part(part), start, stop)
        positions = np.arange(start, stop, dtype=np.int32)
        return KVSlice(
            layer=layer, part=Part(part), start=start, stop=stop, positions=positions, data=data
        )

    def read_cached(self, name: bytes) -> np.ndarray | None:
        with self._lock:
            blocks = self._pool.find((name,))
            return self._read_blocks(blocks) if blocks else None

    # ------------------------------------------------------------ steps

    def _begin(self) -> list[Entry[S]]:
        """The next batch, its blocks taken; sequences in the order in which they got a goal."""
        with self._lock:
            entries = choose_batch(
                self._aimed.values(),
                context=self.info.max_context,
                block_size=self._block_size,
                chunk_tokens=self._chunk_tokens,
            )
            for entry in entries:
                self._pool.extend(entry.seq.table, self._blocks_for(entry.stop))
        return entries

    def _still_wanted(self, entry: Entry[S]) -> bool:
        """Whether nothing has happened to the sequence since `begin` that makes this part void."""
        state = entry.seq
        return (
            self._sequences.get(state.id) is state
            and not state.cancelled
            and state.incoming is None
            and entry.start <= state.computed
            and entry.stop <= len(state.tokens)
            and entry.stop <= len(state.table.blocks) * self._block_size
            and (not entry.sample or state.samples_at(entry.stop))
        )

    def _compute_to(self, state: S, stop: int) -> None:
        """The KV of tokens below `stop` is in the pool."""
        state.set_computed(max(state.computed, stop))
        self._remember(state, state.computed)

    # ------------------------------------------------------------ helpers

    def _check_tokens(self, ids: Sequence[int], length: int) -> None:
        if length > self.info.max_context:
            raise ValueError(f"{length} tokens, the model's context holds {self.info.max_context}")
        if ids and not 0 <= min(ids) <= max(ids) < self.info.vocab_size:
            raise ValueError(f"a token id is outside the vocabulary of {self.info.vocab_size}")

    def _check_layer(self, layer: int) -> None:
        if not 0 <= layer < self._layers:
            raise ValueError(f"layer {layer} of {self._layers}")

    def _check_slice(self, kv: KVSlice, tokens: int) -> None:
        self._check_layer(kv.layer)
        if not 0 <= kv.start < kv.stop <= tokens:
            raise ValueError(f"tokens [{kv.start}, {kv.stop}) of {tokens}")
        fingerprint = self.info.fingerprint
        shape = (kv.stop - kv.start, fingerprint.kv_heads, fingerprint.head_size)
        if kv.data.shape != shape or kv.data.dtype != self._bits:
            raise ValueError(
                f"data {kv.data.dtype}{list(kv.data.shape)}, expected {self._bits}{list(shape)}"
            )
        expected = np.arange(kv.start, kv.stop)
        if kv.positions.shape != expected.shape or (kv.positions != expected).any():
            raise ValueError(f"positions of tokens [{kv.start}, {kv.stop}) are not theirs")

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._block_size)

    def _no_room(self, full: PoolFull) -> NoRoom:
        return NoRoom(full.wanted * self._block_size, full.available * self._block_size)

    def _grow(self, state: S, tokens: int) -> None:
        try:
            self._pool.grow(state.table, self._blocks_for(tokens))
        except PoolFull as full:
            raise self._no_room(full) from full

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
