"""An engine's sequences over its block pool: all of the engine interface but the computing."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from workers.api.info import EngineInfo
from workers.engines.base import KeptTokens, KVListener, SeqId, SequenceSpec
from workers.engines.grammar import Grammars
from workers.engines.paged.batch import Entry, S, choose_batch
from workers.engines.paged.memory import PagedMemory
from workers.kv.evict.config import Eviction
from workers.kv.pool import PoolFull
from workers.kv.prefix import root_key


class PagedEngine(PagedMemory[S]):
    """Implements `workers.engines.base.Engine`, see there for the verbs, but `begin` and `finish`.

    An engine adds these two, what a sequence of its kind is, and how KV bytes are kept.
    `tokenizer`: the model's tokenizer.json; None: it takes no grammars.
    """

    def __init__(
        self,
        info: EngineInfo,
        *,
        chunk_tokens: int,
        tokenizer: Path | None,
        eviction: Eviction | None = None,
    ) -> None:
        super().__init__(info, eviction=eviction)
        self.on_kv: KVListener | None = None
        self.on_lost: Callable[[], None] | None = None
        self._grammars = Grammars(tokenizer, info.vocab_size, info.stop_ids)
        self._aimed: dict[SeqId, S] = {}  # those with a goal
        self._chunk_tokens = chunk_tokens
        self._fingerprint = info.fingerprint.canonical

    @abstractmethod
    def _sequence(self, seq: SeqId, spec: SequenceSpec, root: bytes) -> S:
        """A sequence without its tokens, which `extend` brings."""

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
            state.reserve = max(spec.reserve, len(state.tokens))
            capacity = self._blocks_for(state.reserve)
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
                self._cut_table(state, length)
                # Of dead tokens the last is computed anew, for its logits are wanted.
                state.set_computed(length if state.kept is None else len(state.kept))
                state.remembered = min(state.remembered, length // self._pool.unit_tokens)
            state.truncate(length)

    def close(self, seq: SeqId) -> None:
        with self._lock:
            state = self._sequences.pop(seq)
            self._aimed.pop(seq, None)
            if state.incoming is not None:
                self._remember(state, state.incoming.whole())
            self._release(state)

    def cancel(self, seq: SeqId) -> None:
        with self._lock:
            self._sequences[seq].cancelled = True

    def shutdown(self) -> None:
        """All it has is this process's own."""

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

    def sendable(self, seq: SeqId) -> int:
        with self._lock:
            return self._sendable(self._sequences[seq])

    def pin(self, seq: SeqId) -> None:
        with self._lock:
            self._sequences[seq].pins += 1

    def unpin(self, seq: SeqId) -> None:
        with self._lock:
            state = self._sequences.get(seq)
            if state is not None:
                state.pins -= 1

    def kept(self) -> KeptTokens:
        with self._lock:
            counts = self._keeping.counts
            tables = [s.kept for s in self._sequences.values() if s.kept is not None]
            return KeptTokens(
                evicted_tokens=counts.evicted_tokens,
                freed_blocks=counts.freed_blocks,
                living_tokens=sum(table.live for table in tables),
                places=sum(table.rows for table in tables) * self._block_size,
            )

    def kv_free_tokens(self) -> int:
        with self._lock:
            return self._pool.available * self._block_size

    def kv_held_tokens(self) -> int:
        with self._lock:
            return self._pool.held * self._block_size

    # ------------------------------------------------------------ steps

    def _begin(self) -> list[Entry[S]]:
        """The next batch, its blocks taken; sequences in the order in which they got a goal."""
        with self._lock:
            for state in self._aimed.values():
                if state.kept is not None and state.incoming is None:
                    self._keeping.make_room(state, min(len(state.tokens), state.computed + 1))
            entries = choose_batch(
                self._aimed.values(),
                context=self.info.max_context,
                block_size=self._block_size,
                chunk_tokens=self._chunk_tokens,
            )
            for entry in entries:
                state = entry.seq
                if state.kept is not None:
                    state.kept.grow(entry.stop)
                self._pool.extend(state.table, state.rows_for(self._block_size, entry.stop))
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
            and state.rows_for(self._block_size, entry.stop) <= len(state.table.blocks)
            and (not entry.sample or state.samples_at(entry.stop))
        )

    def _settled(self, entries: Sequence[Entry[S]]) -> None:
        """The step is over: what is to die of its sequences dies, and some blocks come back."""
        self._keeping.settle(
            entry.seq for entry in entries if self._sequences.get(entry.seq.id) is entry.seq
        )
        self._keeping.repack_some(self._sequences.values())

    def _sendable(self, state: S) -> int:
        if not state.settled and self._keeping.prunes_prompt(state):
            return 0
        return state.computed

    def _tells(self, state: S) -> bool:
        """Whether what a step computes of it may be sent while the step runs."""
        return self.on_kv is not None and (state.settled or not self._keeping.prunes_prompt(state))

    # ------------------------------------------------------------ helpers

    def _check_tokens(self, ids: Sequence[int], length: int) -> None:
        if length > self.info.max_context:
            raise ValueError(f"{length} tokens, the model's context holds {self.info.max_context}")
        if ids and not 0 <= min(ids) <= max(ids) < self.info.vocab_size:
            raise ValueError(f"a token id is outside the vocabulary of {self.info.vocab_size}")
