"""The torch engine: batches of sequences, and the one model that computes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from workers.api.info import EngineInfo, Part
from workers.engines.base import (
    GrammarLost,
    Sample,
    SeqId,
    SequenceSpec,
    Step,
    StepResult,
)
from workers.engines.paged.batch import Entry
from workers.engines.paged.engine import PagedEngine
from workers.engines.paged.stored import StoredSequence
from workers.engines.sampler import draw
from workers.engines.torch.attention import PagedStep, Rows, running
from workers.engines.torch.store import KVStore
from workers.kv.evict.attention import Attention
from workers.kv.evict.config import Eviction, Heads
from workers.kv.evict.policies import POLICIES
from workers.kv.evict.triattention import Calibration, Scorer, combined

TorchEntry = Entry[StoredSequence]


class _Cancelled(Exception):
    """Every sequence of the running step has been cancelled."""


@dataclass(frozen=True, slots=True)
class TorchStep:
    """A chosen batch; see `Engine.begin`."""

    entries: tuple[TorchEntry, ...]

    @property
    def seqs(self) -> tuple[SeqId, ...]:
        return tuple(entry.seq.id for entry in self.entries)

    @property
    def duration_s(self) -> float | None:
        return None


class TorchEngine(PagedEngine[StoredSequence]):
    """transformers' model code over our pool.

    `finish` computes without the lock: nobody but the engine's own thread frees memory, so what a
    step writes and reads stays where it is.
    """

    policies = frozenset(POLICIES)

    def __init__(
        self,
        model: PreTrainedModel,
        info: EngineInfo,
        store: KVStore,
        *,
        chunk_tokens: int,
        tokenizer: Path,
        eviction: Eviction | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        super().__init__(info, chunk_tokens=chunk_tokens, tokenizer=tokenizer, eviction=eviction)
        self.costs = None
        self._calibration = calibration
        self._heads = Heads.UNION if eviction is None else eviction.heads
        self._model = model
        self._store = store

    def _sequence(self, seq: SeqId, spec: SequenceSpec, root: bytes) -> StoredSequence:
        return StoredSequence(id=seq, spec=spec, root=root, written=[0] * self._layers)

    # ------------------------------------------------------------ steps

    def begin(self) -> TorchStep | None:
        entries = self._begin()
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
            result = self._finished(entries, logits)
            if logits is not None:
                self._watch(rows, entries)
                self._settled(entries)
            return result

    def _run(
        self, entries: Sequence[TorchEntry], rows: Sequence[Rows], ids: Sequence[int]
    ) -> np.ndarray:
        """The logits of the entries that sample, in their order, [n, vocab] float32."""

        def after_write(layer: int) -> None:
            if all(entry.seq.cancelled for entry in entries):
                raise _Cancelled
            for entry, row in zip(entries, rows, strict=True):
                if entry.seq.cancelled or row.write_from >= entry.stop:
                    continue
                entry.seq.written[layer] = entry.stop
                if self.on_kv is not None and self._tells(entry.seq):
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

    def _finished(self, entries: Sequence[TorchEntry], logits: np.ndarray | None) -> StepResult:
        samples: list[Sample] = []
        computed: dict[SeqId, int] = {}
        lost: list[tuple[SeqId, str]] = []
        sampled = 0
        for entry in entries:
            state = entry.seq
            if logits is None:
                state.set_computed(state.computed)
                continue
            self._compute_to(state, entry.stop)
            computed[state.id] = state.computed
            if entry.sample:
                if not state.cancelled:
                    try:
                        samples.append(self._sample(state, logits[sampled]))
                    except GrammarLost as error:
                        lost.append((state.id, str(error)))
                sampled += 1
        prefill = sum(e.count - 1 for e in entries) if logits is not None else 0
        return StepResult(
            samples=tuple(samples), computed=computed, prefill_tokens=prefill, lost=tuple(lost)
        )

    def _sample(self, state: StoredSequence, logits: np.ndarray) -> Sample:
        spec, banned, allowed = state.spec, state.banned(), state.allowed()
        drawn = draw(logits, spec.sampling, state.tokens, spec.prompt_len, banned, allowed)
        state.tokens.append(drawn.token)
        return Sample(seq=state.id, token=drawn.token, logprobs=drawn.logprobs, margin=drawn.margin)

    def _rows(self, entries: Sequence[TorchEntry]) -> list[Rows]:
        rows = []
        first = 0
        for entry in entries:
            seq, stop = entry.seq, entry.stop
            positions, slots = seq.living(0, stop), seq.slots(self._block_size, 0, stop)
            paid = None
            if self._keeping.wants_attention:
                paid = torch.zeros((entry.count, len(slots)))
            rows.append(Rows(first, entry.start, stop, seq.computed, positions, slots, paid))
            first += entry.count
        return rows

    # ------------------------------------------------------------ what tokens are worth

    def _watch(self, rows: Sequence[Rows], entries: Sequence[TorchEntry]) -> None:
        """Add what the step's tokens paid the others, where a policy asks for it."""
        for row, entry in zip(rows, entries, strict=True):
            if row.paid is not None:
                state = entry.seq
                state.attention = state.attention or Attention()
                state.attention.add(row.positions, row.paid.numpy() / self._layers)

    def _attention(self, state: StoredSequence) -> Attention | None:
        return state.attention

    def _score(self, state: StoredSequence, tokens: np.ndarray) -> np.ndarray:
        assert self._calibration is not None, "loaded where the policy asks for it"
        scorer = Scorer(self._calibration, state.computed)
        slots = state.slots_of(self._block_size, state.places_of(tokens))
        score = scorer.shares if self._heads is Heads.SHARES else scorer.layer
        scores = [score(n, self._store.keys(n, slots)) for n in range(self._layers)]
        return combined(np.stack(scores), self._heads)

    # ------------------------------------------------------------ KV bytes

    def _read_bits(
        self, state: StoredSequence, layer: int, part: Part, tokens: np.ndarray
    ) -> np.ndarray:
        return self._store.read_bits(
            layer, part, state.slots_of(self._block_size, state.places_of(tokens))
        )

    def _write_bits(
        self, state: StoredSequence, layer: int, part: Part, tokens: np.ndarray, data: np.ndarray
    ) -> None:
        self._store.write_bits(
            layer, part, state.slots_of(self._block_size, state.places_of(tokens)), data
        )

    def _read_blocks(self, blocks: Sequence[int]) -> np.ndarray:
        first = np.array(blocks, dtype=np.int64)[:, None] * self._block_size
        return self._store.read_all_bits((first + np.arange(self._block_size)).ravel())

    def _copy_slots(self, sources: np.ndarray, targets: np.ndarray) -> None:
        self._store.copy_slots(sources, targets)
