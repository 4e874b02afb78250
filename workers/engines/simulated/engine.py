"""The simulated engine: modelled tokens, KV and time over a real block pool."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workers.api.info import EngineInfo, Part
from workers.costs import Chunk, Costs
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
from workers.engines.simulated.model import (
    Choice,
    SimulatedModel,
    Wish,
    choose,
    describe,
    importance,
    kv_bits,
    next_hash,
    seed_word,
)
from workers.engines.simulated.sequence import SimulatedSequence
from workers.engines.simulated.steering import steer
from workers.kv.evict.attention import WINDOW, Attention
from workers.kv.evict.config import Eviction
from workers.kv.evict.policies import POLICIES


class WrongKV(ValueError):
    """KV came that the model would not have computed for these tokens."""


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """A chosen batch and the time it is modelled to take; see `Engine.begin`."""

    entries: tuple[Entry[SimulatedSequence], ...]
    duration_s: float | None

    @property
    def seqs(self) -> tuple[SeqId, ...]:
        return tuple(entry.seq.id for entry in self.entries)


class SimulatedEngine(PagedEngine[SimulatedSequence]):
    """Tokens and KV of `SimulatedModel`, time from `costs`, memory accounted for as if it were.

    KV bytes are not kept: they are computed when read, and what is put must be equal to them. Kept
    are the histories of what is in the prefix cache, [slots] uint64, which may lose its sequence.
    `tokenizer`: the tokenizer.json of whom it plays, for grammars; None: it takes none.
    """

    policies = frozenset(POLICIES)

    def __init__(
        self,
        model: SimulatedModel,
        costs: Costs,
        *,
        kv_total_tokens: int,
        block_size: int = 16,
        chunk_tokens: int = 512,
        tokenizer: Path | None = None,
        eviction: Eviction | None = None,
    ) -> None:
        info = EngineInfo(
            engine="simulated",
            model=model.name,
            fingerprint=model.fingerprint,
            block_size=block_size,
            kv_total_tokens=kv_total_tokens // block_size * block_size,
            max_context=model.max_context,
            vocab_size=model.vocab_size,
            stop_ids=model.stop_ids,
        )
        super().__init__(info, chunk_tokens=chunk_tokens, tokenizer=tokenizer, eviction=eviction)
        self._model = model
        self.costs = costs
        self._histories = np.zeros(info.kv_total_tokens, dtype=np.uint64)
        self._moved = 0  # tokens whose packing has been paid for

    def _sequence(self, seq: SeqId, spec: SequenceSpec, root: bytes) -> SimulatedSequence:
        return SimulatedSequence(id=seq, spec=spec, root=root, seed=seed_word(spec.sampling))

    # ------------------------------------------------------------ steps

    def begin(self) -> SimulatedStep | None:
        entries = self._begin()
        if not entries:
            return None
        chunks: list[Chunk] = []
        batch = context = 0
        for entry in entries:
            count = entry.count
            if count > 1:
                chunks.append(Chunk(count, entry.start))
            else:
                batch += 1
                kept = entry.seq.kept
                context += entry.stop if kept is None else kept.live
        # What has been packed since the last step was read and written, which takes as long as
        # twice reading it.
        moved = self._keeping.counts.moved_tokens
        if batch:
            context += 2 * (moved - self._moved)
            self._moved = moved
        return SimulatedStep(tuple(entries), self.costs.step_s(chunks, batch, context))

    def finish(self, step: Step) -> StepResult:
        assert isinstance(step, SimulatedStep), "a step comes from this engine's begin"
        samples: list[Sample] = []
        computed: dict[SeqId, int] = {}
        written: list[tuple[SeqId, int, int]] = []
        lost: list[tuple[SeqId, str]] = []
        prefill = 0
        with self._lock:
            for entry in step.entries:
                if not self._still_wanted(entry):
                    continue
                state = entry.seq
                if state.computed < entry.stop:
                    written.append((state.id, state.computed, entry.stop))
                self._compute_to(state, entry.stop)
                computed[state.id] = state.computed
                prefill += entry.count - 1
                if entry.sample:
                    try:
                        samples.append(self._sample(state))
                    except GrammarLost as error:
                        lost.append((state.id, str(error)))
            written = [part for part in written if self._tells(self._sequences[part[0]])]
            self._settled(step.entries)
        if self.on_kv is not None:
            for layer in range(self._layers):
                for seq, start, stop in written:
                    self.on_kv(seq, layer, start, stop)
        return StepResult(
            samples=tuple(samples), computed=computed, prefill_tokens=prefill, lost=tuple(lost)
        )

    def _sample(self, state: SimulatedSequence) -> Sample:
        spec, history, position = state.spec, state.hashes[-1], len(state.tokens)
        place = position - spec.prompt_len
        wish = Wish(history, place, state.seed, spec.stop_ids, spec.min_tokens)
        choice = choose(self._model, wish)
        if spec.sampling.logit_bias or state.constraint is not None:
            bias = dict(spec.sampling.logit_bias)
            choice = steer(self._model, wish, choice, bias, state.allowed())
        state.tokens.append(choice.token)
        state.hashes.append(next_hash(history, choice.token, position))
        return self._described(state, choice)

    def _described(self, state: SimulatedSequence, choice: Choice) -> Sample:
        wanted = state.spec.sampling
        logprobs = None
        if wanted.logprobs is not None:
            logprobs = describe(self._model, choice, wanted.logprobs)
        margin = choice.margin if wanted.margins else None
        return Sample(seq=state.id, token=choice.token, logprobs=logprobs, margin=margin)

    # ------------------------------------------------------------ KV bytes, kept nowhere

    def _read_bits(
        self, state: SimulatedSequence, layer: int, part: Part, tokens: np.ndarray
    ) -> np.ndarray:
        return kv_bits(self._model, np.array(state.hashes, dtype=np.uint64)[tokens], layer, part)

    def _write_bits(
        self, state: SimulatedSequence, layer: int, part: Part, tokens: np.ndarray, data: np.ndarray
    ) -> None:
        own = self._read_bits(state, layer, part, tokens)
        if data.tobytes() != own.tobytes():
            raise WrongKV(
                f"{part} of layer {layer}, tokens {tokens.min()} to {tokens.max()}: not what this "
                "engine would have computed"
            )

    def _read_blocks(self, blocks: Sequence[int]) -> np.ndarray:
        slots = (np.array(blocks)[:, None] * self._block_size + np.arange(self._block_size)).ravel()
        hashes = array("Q", self._histories[slots].tobytes())
        return np.stack(
            [
                np.stack([kv_bits(self._model, hashes, layer, part) for part in Part])
                for layer in range(self._layers)
            ]
        )

    def _remember(self, state: SimulatedSequence, tokens: int) -> None:
        begun, unit = state.remembered, self._pool.unit_tokens
        super()._remember(state, tokens)
        for block in range(
            begun * unit // self._block_size, state.remembered * unit // self._block_size
        ):
            first, slot = block * self._block_size, state.table.blocks[block] * self._block_size
            history = state.hashes[first : first + self._block_size]
            self._histories[slot : slot + self._block_size] = history

    def _copy_slots(self, sources: np.ndarray, targets: np.ndarray) -> None:
        """Nothing is kept, so nothing is copied."""

    # ------------------------------------------------------------ what tokens are worth

    def _attention(self, state: SimulatedSequence) -> Attention:
        """Every query pays each token before it by its modelled importance."""
        worth = importance(np.array(state.hashes[: state.computed], dtype=np.uint64))
        queries = np.arange(len(worth), 0, -1)
        return Attention(
            mass=worth * queries, hits=(worth > 1) * np.minimum(queries, WINDOW), queries=len(worth)
        )

    def _score(self, state: SimulatedSequence, tokens: np.ndarray) -> np.ndarray:
        return importance(np.array(state.hashes, dtype=np.uint64)[tokens])
