"""How long an engine's step takes: pure arithmetic, no engine needed.

Sources: FLOPs and bytes of a decoder-only transformer; a step is bound by whichever of memory
and arithmetic is slower, plus a fixed overhead. All times are seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Chunk(NamedTuple):
    """Part of a prefill: `tokens` are computed after `context` tokens that are there already."""

    tokens: int
    context: int


class Costs(Protocol):
    """Seconds per step of one worker."""

    def step_s(self, chunks: Sequence[Chunk], batch: int, context: int) -> float:
        """One step: prefill `chunks`, decode a token each for `batch` sequences.

        `context`: tokens of context of all decoding sequences together. An empty step takes 0.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCosts:
    """A machine that was measured: a prefill rate, a decode step and its slope.

    `context_s`: seconds that each token of context in the batch adds to a decode step;
    `sequence_s`: seconds that each sequence adds.
    """

    prefill_tokens_per_s: float
    decode_step_s: float
    context_s: float = 0.0
    sequence_s: float = 0.0

    def __post_init__(self) -> None:
        _positive(self, "prefill_tokens_per_s", "decode_step_s")
        _not_negative(self, "context_s", "sequence_s")

    def step_s(self, chunks: Sequence[Chunk], batch: int, context: int) -> float:
        seconds = sum(chunk.tokens for chunk in chunks) / self.prefill_tokens_per_s
        if batch:
            seconds += self.decode_step_s + self.sequence_s * batch + self.context_s * context
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One accelerator: peak rates and the share of them that is reached."""

    flops_per_s: float  # dense, in the dtype of the weights
    bytes_per_s: float
    prefill_utilisation: float = 0.42  # of flops_per_s
    memory_utilisation: float = 0.7  # of bytes_per_s

    def __post_init__(self) -> None:
        _positive(self, "flops_per_s", "bytes_per_s", "prefill_utilisation", "memory_utilisation")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What a model's size means for a step.

    `attention_width`: query heads x head size. `experts` of each layer, `experts_per_token` of
    them used by one token; None for a dense model.
    """

    parameters: float
    active_parameters: float
    weight_bytes: float
    layers: int
    attention_width: int
    kv_bytes_per_token: int
    experts: int | None = None
    experts_per_token: int | None = None

    def __post_init__(self) -> None:
        _positive(self, "parameters", "active_parameters", "weight_bytes", "layers")
        _not_negative(self, "attention_width", "kv_bytes_per_token")
        if (self.experts is None) != (self.experts_per_token is None):
            raise ValueError("experts and experts_per_token belong together: give both or none")

    def touched_bytes(self, batch: int) -> float:
        """Weights that a decode step of `batch` sequences reads.

        With k of E experts per token, chosen evenly, a share 1 - (1 - k/E)^batch is hit. The
        experts' share of the weights follows from active = dense + (k/E) x experts.
        """
        if self.experts is None or self.experts_per_token is None:
            return self.weight_bytes
        used = self.experts_per_token / self.experts
        idle = self.parameters - self.active_parameters
        expert_share = min(1.0, idle / (1 - used) / self.parameters) if used < 1 else 0.0
        hit = 1 - (1 - used) ** batch
        return self.weight_bytes * (1 - expert_share * (1 - hit))


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineCosts:
    """A model on `parallel` chips.

    prefill = a + (2 P n + 2 L d n^2) / (TP F MFU);
    decode = a + max((W + context kvB) / (TP BW MBU), 2 P b / (TP F MFU)) + parallel overhead,
    with P active parameters, L layers, d attention width, W weights touched.
    """

    chip: Chip
    model: ModelShape
    parallel: int = 1
    overhead_s: float = 2e-3  # a: launch and scheduling, per step
    parallel_overhead_s: float = 0.0  # collectives of a decode step

    def __post_init__(self) -> None:
        _positive(self, "parallel")
        _not_negative(self, "overhead_s", "parallel_overhead_s")

    def step_s(self, chunks: Sequence[Chunk], batch: int, context: int) -> float:
        if not chunks and not batch:
            return 0.0
        decode = self._decode_s(batch, context) if batch else 0.0
        return self.overhead_s + self._chunks_s(chunks) + decode

    @property
    def _flops_per_s(self) -> float:
        return self.parallel * self.chip.flops_per_s * self.chip.prefill_utilisation

    def _chunks_s(self, chunks: Sequence[Chunk]) -> float:
        linear = sum(chunk.tokens for chunk in chunks)
        square = sum((c.context + c.tokens) ** 2 - c.context**2 for c in chunks)
        m = self.model
        flops = 2 * m.active_parameters * linear + 2 * m.layers * m.attention_width * square
        return flops / self._flops_per_s

    def _decode_s(self, batch: int, context: int) -> float:
        m, chip = self.model, self.chip
        read = m.touched_bytes(batch) + context * m.kv_bytes_per_token
        memory_s = read / (self.parallel * chip.bytes_per_s * chip.memory_utilisation)
        arithmetic_s = 2 * m.active_parameters * batch / self._flops_per_s
        return max(memory_s, arithmetic_s) + self.parallel_overhead_s


def _positive(costs: object, *names: str) -> None:
    for name in names:
        if not getattr(costs, name) > 0:
            raise ValueError(f"{name}: must be > 0, got {getattr(costs, name)}")


def _not_negative(costs: object, *names: str) -> None:
    for name in names:
        if not getattr(costs, name) >= 0:
            raise ValueError(f"{name}: must be >= 0, got {getattr(costs, name)}")
