"""The simulated engine: see `workers.engines.base.Engine` for the verbs."""

import json
from collections.abc import Sequence as Tokens
from dataclasses import asdict
from threading import Lock
from typing import NamedTuple

import numpy as np

from workers.api.info import EngineInfo, Part
from workers.costs import Chunk, Costs
from workers.engines.base import (
    KVListener,
    KVSlice,
    NoRoom,
    Sample,
    SeqId,
    SequenceSpec,
    Step,
    StepResult,
)
from workers.engines.simulated.model import (
    Choice,
    SimulatedModel,
    Wish,
    choose,
    describe,
    kv_bits,
    next_hashes,
    seed_word,
)
from workers.engines.simulated.sequence import Incoming, Sequence
from workers.kv.pool import BlockPool, PoolFull
from workers.kv.prefix import root_key


class _Entry(NamedTuple):
    """One sequence's part of a step: compute tokens [start, stop), then perhaps sample."""

    seq: Sequence
    start: int
    stop: int
    sample: bool


class SimulatedStep:
    """A chosen batch and the time it is modelled to take."""

    def __init__(self, entries: Tokens[_Entry], duration_s: float) -> None:
        self.entries = entries
        self.seqs = tuple(entry.seq.id for entry in entries)
        self.duration_s: float | None = duration_s


class SimulatedEngine:
    """Tokens and KV of `SimulatedModel`, time from `costs`, memory from a real block pool.

    KV bytes are not kept: they are computed when read, and what is put must be equal to them.
    One lock guards sequences and pool, since `put`, `read` and `cancel` come from other threads.
    """

    def __init__(
        self,
        model: SimulatedModel,
        costs: Costs,
        *,
        kv_total_tokens: int,
        block_size: int = 16,
        chunk_tokens: int = 512,
    ) -> None:
        self.on_kv: KVListener | None = None
        self.info = EngineInfo(
            engine="simulated",
            model=model.name,
            fingerprint=model.fingerprint,
            block_size=block_size,
            kv_total_tokens=kv_total_tokens // block_size * block_size,
            max_context=model.max_context,
            vocab_size=model.vocab_size,
            stop_ids=model.stop_ids,
        )
        self._model = model
        self._costs = costs
        self._chunk_tokens = chunk_tokens
        self._block_size = block_size
        self._pool = BlockPool(kv_total_tokens // block_size, block_size)
        self._fingerprint = json.dumps(asdict(self.info.fingerprint), sort_keys=True)
        self._sequences: dict[SeqId, Sequence] = {}
        self._aimed: dict[SeqId, Sequence] = {}  # those with a goal
        self._lock = Lock()

    # ---------------------------------------------------------------- opening and closing

    def open(self, seq: SeqId, spec: SequenceSpec, *, reuse: bool) -> int:
        self._check_tokens(spec.tokens, len(spec.tokens))
        if not 0 < spec.prompt_len <= len(spec.tokens):
            raise ValueError(f"a prompt of {spec.prompt_len} of {len(spec.tokens)} tokens")
        with self._lock:
            if seq in self._sequences:
                raise ValueError(f"{seq} is open already")
            state = Sequence(
                id=seq,
                spec=spec,
                seed=seed_word(spec.sampling),
                root=root_key(self._fingerprint, spec.cache_salt),
                table=self._pool.open(0, ()),
            )
            state.extend(list(spec.tokens))
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

    def append(self, seq: SeqId, ids: Tokens[int]) -> None:
        with self._lock:
            state = self._sequences[seq]
            self._check_tokens(ids, len(state.tokens) + len(ids))
            self._grow(state, len(state.tokens) + len(ids))
            state.extend(list(ids))

    def truncate(self, seq: SeqId, length: int) -> None:
        with self._lock:
            state = self._sequences[seq]
            if not 0 < length <= len(state.tokens):
                raise ValueError(f"cannot cut {len(state.tokens)} tokens to {length}")
            if state.incoming is not None and length < state.incoming.tokens:
                raise ValueError(f"an import of {state.incoming.tokens} tokens is open")
            if length < state.computed:
                try:
                    self._pool.truncate(state.table, length)
                except PoolFull as full:
                    raise self._no_room(full) from full
            state.truncate(length, self._pool.unit_tokens)

    def close(self, seq: SeqId) -> None:
        with self._lock:
            state = self._sequences.pop(seq)
            self._aimed.pop(seq, None)
            if state.incoming is not None:
                self._remember(state, state.incoming.complete)
            self._pool.close(state.table)

    def cancel(self, seq: SeqId) -> None:
        with self._lock:
            self._sequences[seq].cancelled = True

    # ---------------------------------------------------------------- asking

    def set_goal(self, seq: SeqId, length: int | None) -> None:
        with self._lock:
            state = self._sequences[seq]
            state.goal = length
            if length is None:
                self._aimed.pop(seq, None)
            else:
                self._aimed[seq] = state

    def length(self, seq: SeqId) -> int:
        return len(self._sequences[seq].tokens)

    def computed(self, seq: SeqId) -> int:
        return self._sequences[seq].computed

    def kv_free_tokens(self) -> int:
        with self._lock:
            return self._pool.available * self._block_size

    def kv_held_tokens(self) -> int:
        with self._lock:
            return self._pool.held * self._block_size

    # ---------------------------------------------------------------- KV in and out

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
            state.incoming = Incoming.expect(self._model.layers, tokens, have)
            return have

    def put(self, seq: SeqId, kv: KVSlice) -> None:
        with self._lock:
            state = self._sequences[seq]
            incoming = state.incoming
            if incoming is None:
                raise ValueError(f"no import into {seq} is open")
            if not 0 <= kv.layer < self._model.layers:
                raise ValueError(f"layer {kv.layer} of {self._model.layers}")
            if not 0 <= kv.start < kv.stop <= incoming.tokens:
                raise ValueError(f"tokens [{kv.start}, {kv.stop}) of {incoming.tokens}")
            hashes = state.hashes[kv.start : kv.stop]
        if not np.array_equal(kv.positions, np.arange(kv.start, kv.stop)):
            raise ValueError(f"positions of tokens [{kv.start}, {kv.stop}) are not theirs")
        part = Part(kv.part)
        own = kv_bits(self._model, hashes, kv.layer, part)
        if kv.data.dtype != own.dtype or not np.array_equal(kv.data, own):
            raise ValueError(
                f"{part} of layer {kv.layer}, tokens [{kv.start}, {kv.stop}): not what this "
                "engine would have computed"
            )
        with self._lock:
            incoming.mark(kv.layer, part, kv.start, kv.stop)

    def missing(self, seq: SeqId) -> int:
        with self._lock:
            return self._incoming(seq).missing

    def commit_import(self, seq: SeqId) -> None:
        with self._lock:
            incoming = self._incoming(seq)
            if incoming.missing:
                raise ValueError(f"{incoming.missing} slices-worth of tokens are missing")
            state = self._sequences[seq]
            state.incoming = None
            state.computed = max(state.computed, incoming.tokens)
            self._remember(state, state.computed)

    def share(self, source: SeqId, seq: SeqId, tokens: int) -> None:
        with self._lock:
            giver, taker = self._sequences[source], self._sequences[seq]
            if not 0 < tokens <= giver.computed:
                raise ValueError(f"{tokens} tokens wanted, {giver.computed} are computed")
            if taker.incoming is not None:
                raise ValueError(f"an import into {seq} is open")
            if giver.root != taker.root or giver.tokens[:tokens] != taker.tokens[:tokens]:
                raise ValueError(f"{source} and {seq} differ in their first {tokens} tokens")
            if taker.computed >= tokens:
                return
            self._pool.truncate(taker.table, 0)
            whole = tokens // self._block_size
            self._pool.adopt(taker.table, giver.table.blocks[:whole])
            self._pool.extend(taker.table, self._blocks_for(tokens))
            taker.computed = tokens
            taker.remembered = whole * self._block_size // self._pool.unit_tokens

    def read(self, seq: SeqId, layer: int, part: Part, start: int, stop: int) -> KVSlice:
        with self._lock:
            state = self._sequences[seq]
            if not 0 <= layer < self._model.layers:
                raise ValueError(f"layer {layer} of {self._model.layers}")
            if not 0 <= start < stop <= state.computed:
                raise ValueError(f"tokens [{start}, {stop}), {state.computed} are there")
            hashes = state.hashes[start:stop]
        return KVSlice(
            layer=layer,
            part=Part(part),
            start=start,
            stop=stop,
            positions=np.arange(start, stop, dtype=np.int32),
            data=kv_bits(self._model, hashes, layer, Part(part)),
        )

    # ---------------------------------------------------------------- steps

    def begin(self) -> SimulatedStep | None:
        """Decodes, then extends, then prompts within a budget; each in the order of their goals.

        Extends go before prompts because somebody is waiting in the middle of an answer.
        """
        decodes: list[_Entry] = []
        extends: list[_Entry] = []
        prompts: list[_Entry] = []
        with self._lock:
            for state in self._aimed.values():
                work = state.work(state.table.capacity * self._block_size)
                if work is None:
                    continue
                start, stop = work
                entry = _Entry(state, start, stop, state.samples_at(stop))
                if stop - start == 1:
                    decodes.append(entry)
                elif len(state.tokens) > state.spec.prompt_len:
                    extends.append(entry)
                else:
                    prompts.append(entry)
            chunked = _within_budget(extends + prompts, self._chunk_tokens)
            entries = decodes + chunked
            for entry in entries:
                self._pool.extend(entry.seq.table, self._blocks_for(entry.stop))
        if not entries:
            return None
        duration_s = self._costs.step_s(
            [Chunk(e.stop - e.start, e.start) for e in chunked],
            len(decodes),
            sum(e.stop for e in decodes),
        )
        return SimulatedStep(entries, duration_s)

    def finish(self, step: Step) -> StepResult:
        assert isinstance(step, SimulatedStep), "a step comes from this engine's begin"
        computed: dict[SeqId, int] = {}
        written: list[tuple[SeqId, int, int]] = []
        sampling: list[Sequence] = []
        prefill_tokens = 0
        with self._lock:
            for state, start, stop, sample in step.entries:
                if self._sequences.get(state.id) is not state or state.cancelled:
                    continue
                if start > state.computed or stop > len(state.tokens):
                    continue  # truncated since: void
                prefill_tokens += stop - start - 1
                if stop > state.computed:
                    written.append((state.id, state.computed, stop))
                    state.computed = stop
                    self._remember(state, stop)
                computed[state.id] = state.computed
                if sample and state.samples_at(stop):
                    sampling.append(state)
            samples = self._sample(sampling) if sampling else ()
        if self.on_kv is not None:
            for layer in range(self._model.layers):
                for seq, start, stop in written:
                    self.on_kv(seq, layer, start, stop)
        return StepResult(samples=samples, computed=computed, prefill_tokens=prefill_tokens)

    def _sample(self, states: list[Sequence]) -> tuple[Sample, ...]:
        wishes = [
            Wish(
                state.hashes[-1],
                len(state.tokens) - state.spec.prompt_len,
                state.seed,
                state.spec.stop_ids,
                state.spec.min_tokens,
            )
            for state in states
        ]
        choices = choose(self._model, wishes)
        hashes = next_hashes(
            [wish.history for wish in wishes],
            [choice.token for choice in choices],
            [len(state.tokens) for state in states],
        )
        samples = []
        for state, choice, history in zip(states, choices, hashes, strict=True):
            state.tokens.append(choice.token)
            state.hashes.append(history)
            samples.append(self._described(state, choice))
        return tuple(samples)

    def _described(self, state: Sequence, choice: Choice) -> Sample:
        wanted = state.spec.sampling
        logprobs = None
        if wanted.logprobs is not None:
            logprobs = describe(self._model, choice, wanted.logprobs)
        margin = choice.margin if wanted.margins else None
        return Sample(seq=state.id, token=choice.token, logprobs=logprobs, margin=margin)

    # ---------------------------------------------------------------- helpers

    def _check_tokens(self, ids: Tokens[int], length: int) -> None:
        if length > self.info.max_context:
            raise ValueError(f"{length} tokens, the model's context holds {self.info.max_context}")
        if ids and not 0 <= min(ids) <= max(ids) < self.info.vocab_size:
            raise ValueError(f"a token id is outside the vocabulary of {self.info.vocab_size}")

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._block_size)

    def _no_room(self, full: PoolFull) -> NoRoom:
        return NoRoom(full.wanted * self._block_size, full.available * self._block_size)

    def _grow(self, state: Sequence, tokens: int) -> None:
        try:
            self._pool.grow(state.table, self._blocks_for(tokens))
        except PoolFull as full:
            raise self._no_room(full) from full

    def _incoming(self, seq: SeqId) -> Incoming:
        incoming = self._sequences[seq].incoming
        if incoming is None:
            raise ValueError(f"no import into {seq} is open")
        return incoming

    def _find(self, state: Sequence, tokens: int) -> list[int]:
        return self._pool.find(state.unit_names(self._pool.unit_tokens, tokens))

    def _take_over(self, state: Sequence, blocks: int) -> None:
        state.computed = blocks * self._block_size
        state.remembered = state.computed // self._pool.unit_tokens

    def _remember(self, state: Sequence, tokens: int) -> None:
        """Offer the whole cache units of the first `tokens` tokens to the prefix cache."""
        whole = tokens // self._pool.unit_tokens
        if whole > state.remembered:
            names = state.unit_names(self._pool.unit_tokens, tokens)
            for unit in range(state.remembered, whole):
                self._pool.remember(state.table, unit, names[unit])
            state.remembered = whole


def _within_budget(entries: Tokens[_Entry], budget: int) -> list[_Entry]:
    """The first entries whose tokens fit in `budget`; the last one may be cut to a chunk."""
    chosen = []
    for state, start, stop, sample in entries:
        if budget == 0:
            break
        count = min(stop - start, budget)
        whole = count == stop - start
        chosen.append(_Entry(state, start, start + count, sample and whole))
        budget -= count
    return chosen
