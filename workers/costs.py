"""How long an engine's step takes: pure arithmetic, no engine needed. All times are seconds."""

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
        for name in ("prefill_tokens_per_s", "decode_step_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: must be > 0, got {getattr(self, name)}")
        for name in ("context_s", "sequence_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}: must be >= 0, got {getattr(self, name)}")

    def step_s(self, chunks: Sequence[Chunk], batch: int, context: int) -> float:
        seconds = sum(chunk.tokens for chunk in chunks) / self.prefill_tokens_per_s
        if batch:
            seconds += self.decode_step_s + self.sequence_s * batch + self.context_s * context
        return seconds
