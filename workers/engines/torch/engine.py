"""The torch engine: sequences, batches and the one model that computes them."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from threading import Lock

import numpy as np
import torch
from transformers import PreTrainedModel

from workers.api.info import EngineInfo, Part
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
from workers.engines.sampler import draw
from workers.engines.torch.attention import PagedStep, Rows, running
from workers.engines.torch.batch import Entry, TorchStep, choose_batch
from workers.engines.torch.sequence import Incoming, SequenceState
from workers.engines.torch.store import KVStore
from workers.kv.pool import BlockPool, PoolFull
from workers.kv.prefix import CANONICAL_TOKENS, root_key


class _Cancelled(Exception):
    """Every sequence of the running step has been cancelled."""


class TorchEngine:
    """Implements `workers.engines.base.Engine`; see there for the verbs.

    One lock guards sequences and pool. `finish` computes without it: nobody but the engine's own
    thread frees memory, so what a step writes and reads stays where it is.
    """

    def __init__(
        self, model: PreTrainedModel, info: EngineInfo, store: KVStore, *, chunk_tokens: int
    ) -> None:
        self.info = info
        self.on_kv: KVListener | None = None
        self._model = model
        self._store = store
        self._block_size = info.block_size
        self._pool = BlockPool(info.kv_total_tokens // info.block_size, info.block_size)
        self._chunk_tokens = chunk_tokens
        self._fingerprint = json.dumps(asdict(info.fingerprint), sort_keys=True)
        self._layers = info.fingerprint.layers
        self._lock = Lock()
        self._sequences: dict[SeqId, SequenceState] = {}

    # ------------------------------------------------------------ opening and closing

    def open(self, seq: SeqId, spec: SequenceSpec, *, reuse: bool) -> int:
        self._check_tokens(spec.tokens, len(spec.tokens))
        if not 0 < spec.prompt_len <= len(spec.tokens):
            raise ValueError(f"a prompt of {spec.prompt_len} of {len(spec.tokens)} tokens")
        with self._lock:
            if seq in self._sequences:
                raise ValueError(f"{seq} is open already")
            state = SequenceState(
                id=seq,
                spec=spec,
                tokens=list(spec.tokens),
                root=root_key(self._fingerprint, spec.cache_salt),
                written=[0] * self._layers,
            )
            found = self._find(state, len(state.tokens) - 1) if reuse else []
            capacity = self._blocks_for(max(spec.reserve, len(state.tokens)))
            try:
                state.table = self._pool.open(capacity, found)
            except PoolFull as error:
                raise self._no_room(error) from error
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
            state.tokens.extend(ids)

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
                except PoolFull as error:
                    raise self._no_room(error) from error
                if copy is not None:
                    self._copy_block(copy.source, copy.target, length % self._block_size)
                state.set_computed(length)
                state.remembered = min(state.remembered, length // self._pool.unit_tokens)
            del state.tokens[length:]
            del state.chain[length // CANONICAL_TOKENS :]

    def close(self, seq: SeqId) -> None:
        with self._lock:
            state = self._sequences.pop(seq)
            if state.incoming is not None:
                self._remember(state, state.incoming.complete())
            self._pool.close(state.table)

    def cancel(self, seq: SeqId) -> None:
        with self._lock:
            self._sequences[seq].cancelled = True

    # ------------------------------------------------------------ asking

    def set_goal(self, seq: SeqId, length: int | None) -> None:
        with self._lock:
            self._sequences[seq].goal = length

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
        fingerprint = self.info.fingerprint
        shape = (kv.stop - kv.start, fingerprint.kv_heads, fingerprint.head_size)
        with self._lock:
            state = self._sequences[seq]
            incoming = state.incoming
            if incoming is None:
                raise ValueError(f"no import into {seq} is open")
            if not 0 <= kv.layer < self._layers:
                raise ValueError(f"layer {kv.layer} of {self._layers}")
            if not 0 <= kv.start < kv.stop <= incoming.tokens:
                raise ValueError(f"tokens [{kv.start}, {kv.stop}) of {incoming.tokens}")
            if kv.data.shape != shape or kv.data.dtype != self._store.bits_dtype:
                raise ValueError(
                    f"data {kv.data.dtype}{list(kv.data.shape)}, "
                    f"expected {self._store.bits_dtype.__name__}{list(shape)}"
                )
            if not np.array_equal(kv.positions, np.arange(kv.start, kv.stop)):
                raise ValueError(f"positions of tokens [{kv.start}, {kv.stop}) are not theirs")
            part = Part(kv.part)
            # What has arrived is left alone: a repeat may come while the blocks are shared.
            new = incoming.new_tokens(kv.layer, part, kv.start, kv.stop)
            if len(new):
                slots = state.slots(self._block_size, kv.start, kv.stop)[new - kv.start]
                self._store.write_bits(kv.layer, part, slots, kv.data[new - kv.start])
                incoming.mark(kv.layer, part, new)

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
            state.set_computed(max(state.computed, incoming.tokens))
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
            if not 0 <= layer < self._layers:
                raise ValueError(f"layer {layer} of {self._layers}")
            if not 0 <= start < stop <= state.written[layer]:
                raise ValueError(f"tokens [{start}, {stop}), {state.written[layer]} are there")
            slots = state.slots(self._block_size, start, stop)
            data = self._store.read_bits(layer, Part(part), slots)
        positions = np.arange(start, stop, dtype=np.int32)
        return KVSlice(
            layer=layer, part=Part(part), start=start, stop=stop, positions=positions, data=data
        )

    # ------------------------------------------------------------ steps

    def begin(self) -> TorchStep | None:
        with self._lock:
            entries = choose_batch(
                self._sequences.values(),
                context=self.info.max_context,
                block_size=self._block_size,
                chunk_tokens=self._chunk_tokens,
            )
            for entry in entries:
                self._pool.extend(entry.seq.table, self._blocks_for(entry.stop))
        return TorchStep(tuple(entries)) if entries else None

    def finish(self, step: Step) -> StepResult:
        assert isinstance(step, TorchStep), "a step comes from this engine's begin"
        with self._lock:
            entries = [entry for entry in step.entries if self._still_wanted(entry)]
            ids = [t for e in entries for t in e.seq.tokens[e.start : e.stop]]
            rows = self._rows(entries)
        if not entries:
            return StepResult(samples=(), computed={}, prefill_tokens=0)
        try:
            logits = self._run(entries, rows, ids)
        except _Cancelled:
            logits = None
        with self._lock:
            return self._finished(entries, logits)

    def _run(
        self, entries: Sequence[Entry], rows: Sequence[Rows], ids: Sequence[int]
    ) -> np.ndarray:
        """The logits of the entries that sample, in their order, [n, vocab] float32."""

        def after_write(layer: int) -> None:
            if all(entry.seq.cancelled for entry in entries):
                raise _Cancelled
            for entry, row in zip(entries, rows, strict=True):
                if entry.seq.cancelled or row.write_from >= entry.stop:
                    continue
                entry.seq.written[layer] = entry.stop
                if self.on_kv is not None:
                    self.on_kv(entry.seq.id, layer, row.write_from, entry.stop)

        positions = np.concatenate([np.arange(e.start, e.stop) for e in entries])
        lasts = [r.first + r.count - 1 for e, r in zip(entries, rows, strict=True) if e.sample]
        with torch.inference_mode(), running(PagedStep(self._store, rows, after_write)):
            output = self._model(
                input_ids=torch.tensor([ids]),
                position_ids=torch.from_numpy(positions).unsqueeze(0),
                use_cache=False,
                logits_to_keep=torch.tensor(lasts, dtype=torch.int64),
            )
        return output.logits[0].float().numpy()

    def _finished(self, entries: Sequence[Entry], logits: np.ndarray | None) -> StepResult:
        samples: list[Sample] = []
        computed: dict[SeqId, int] = {}
        sampled = 0
        for entry in entries:
            state = entry.seq
            if logits is None:
                state.set_computed(state.computed)
                continue
            state.set_computed(max(state.computed, entry.stop))
            self._remember(state, state.computed)
            computed[state.id] = state.computed
            if entry.sample:
                if not state.cancelled:
                    samples.append(self._sample(state, logits[sampled]))
                sampled += 1
        prefill = sum(e.stop - e.start - 1 for e in entries) if logits is not None else 0
        return StepResult(samples=tuple(samples), computed=computed, prefill_tokens=prefill)

    def _sample(self, state: SequenceState, logits: np.ndarray) -> Sample:
        spec = state.spec
        index = len(state.tokens) - spec.prompt_len
        banned = spec.stop_ids if index < spec.min_tokens else ()
        drawn = draw(logits, spec.sampling, state.tokens, spec.prompt_len, banned)
        state.tokens.append(drawn.token)
        return Sample(seq=state.id, token=drawn.token, logprobs=drawn.logprobs, margin=drawn.margin)

    def _rows(self, entries: Sequence[Entry]) -> list[Rows]:
        rows = []
        first = 0
        for entry in entries:
            slots = entry.seq.slots(self._block_size, 0, entry.stop)
            rows.append(Rows(first, entry.start, entry.stop, entry.seq.computed, slots))
            first += entry.stop - entry.start
        return rows

    def _still_wanted(self, entry: Entry) -> bool:
        """Whether nothing has happened to the sequence since `begin` that makes this part void."""
        state = entry.seq
        return (
            self._sequences.get(state.id) is state
            and not state.cancelled
            and state.incoming is None
            and entry.start <= state.computed
            and entry.stop <= len(state.tokens)
            and entry.stop <= len(state.table.blocks) * self._block_size
            and (not entry.sample or state.wants_token_at(entry.stop))
        )

    # ------------------------------------------------------------ helpers

    def _check_tokens(self, ids: Sequence[int], length: int) -> None:
        if length > self.info.max_context:
            raise ValueError(f"{length} tokens, the model's context holds {self.info.max_context}")
        if ids and not 0 <= min(ids) <= max(ids) < self.info.vocab_size:
            raise ValueError(f"a token id is outside the vocabulary of {self.info.vocab_size}")

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._block_size)

    def _no_room(self, error: PoolFull) -> NoRoom:
        return NoRoom(error.wanted * self._block_size, error.available * self._block_size)

    def _grow(self, state: SequenceState, tokens: int) -> None:
        try:
            self._pool.grow(state.table, self._blocks_for(tokens))
        except PoolFull as error:
            raise self._no_room(error) from error

    def _incoming(self, seq: SeqId) -> Incoming:
        incoming = self._sequences[seq].incoming
        if incoming is None:
            raise ValueError(f"no import into {seq} is open")
        return incoming

    def _find(self, state: SequenceState, tokens: int) -> list[int]:
        return self._pool.find(state.unit_names(self._pool.unit_tokens, tokens))

    def _take_over(self, state: SequenceState, blocks: int) -> None:
        state.set_computed(blocks * self._block_size)
        state.remembered = state.computed // self._pool.unit_tokens

    def _remember(self, state: SequenceState, tokens: int) -> None:
        """Offer the whole cache units of the first `tokens` tokens to the prefix cache."""
        whole = tokens // self._pool.unit_tokens
        if whole > state.remembered:
            names = state.unit_names(self._pool.unit_tokens, tokens)
            for unit in range(state.remembered, whole):
                self._pool.remember(state.table, unit, names[unit])
            state.remembered = whole

    def _copy_block(self, source: int, target: int, tokens: int) -> None:
        offsets = np.arange(tokens)
        self._store.copy_slots(
            source * self._block_size + offsets, target * self._block_size + offsets
        )
