"""How long an engine's step takes: pure arithmetic, no engine needed. All times are seconds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Chunk(NamedTuple):
    """Part of a prefill: `tokens` are computed after `context` tokens that are there already."""

    tokens: int
    context: int


class DecodeLine(NamedTuple):
    """A decode step of so many sequences: max(fixed + per_context S, least) seconds.

    S: tokens of context of all of them together.
    """

    fixed_s: float
    per_context_s: float
    least_s: float = 0.0


class Costs(Protocol):
    """Seconds per step of one worker. A step is the sum of what it decodes and what it prefills."""

    @property
    def prefill_tokens_per_s(self) -> float:
        """Of a short prompt; what a worker tells of itself."""

    def step_s(self, chunks: Sequence[Chunk], batch: int, context: int) -> float:
        """One step: prefill `chunks`, decode a token each for `batch` sequences.

        `context`: tokens of context of all decoding sequences together. An empty step takes 0.
        """

    def decode_line(self, batch: int, prefilled: int = 0) -> DecodeLine:
        """What a step takes that decodes `batch` sequences, beside the chunks it prefills.

        `prefilled`: tokens of those chunks.
        """

    def chunk_s(self, tokens: int, context: int) -> float:
        """What prefilling `tokens` behind `context` adds to a step; linear in `context`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCosts:
    """A machine that was measured: a prefill rate, a decode step and its slope.

    `context_s`: seconds that each token of context in the batch adds to a decode step;
    `sequence_s`: seconds that each sequence adds. `chunk_step_s`: seconds of a step that only
    prefills, beside its tokens.
    """

    prefill_tokens_per_s: float
    decode_step_s: float
    context_s: float = 0.0
    sequence_s: float = 0.0
    chunk_step_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("prefill_tokens_per_s", "decode_step_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: must be > 0, got {getattr(self, name)}")
        for name in ("context_s", "sequence_s", "chunk_step_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}: must be >= 0, got {getattr(self, name)}")

    def step_s(self, chunks: Sequence[Chunk], batch: int, context: int) -> float:
        return _step_s(self, chunks, batch, context)

    def decode_line(self, batch: int, prefilled: int = 0) -> DecodeLine:
        if not batch:
            return DecodeLine(self.chunk_step_s if prefilled else 0.0, 0.0)
        return DecodeLine(self.decode_step_s + self.sequence_s * batch, self.context_s)

    def chunk_s(self, tokens: int, context: int) -> float:
        return tokens / self.prefill_tokens_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineCosts:
    """Chips and a model by their figures: what is slower, arithmetic or memory.

    With F, BW what all the worker's chips really do together (peak x MFU, x MBU):

        prefill of n behind c:  2 P n / F + 2 L d n (2 c + n) / F + t n
        decode of b:            a + max((W + S kv) / BW, 2 P b / F) + e b

    P: `active_params`, L d: `attention_width` (layers x heads x head size), S: contexts, kv:
    `kv_bytes_per_token`, a: `overhead_s` of every step, t and e: `token_s` and `sequence_s`, what
    each token adds beside, W: bytes of weights that b tokens touch. Of `experts` alike,
    `experts_per_token` drawn at random for each token, b tokens touch E (1 - (1 - k / E)^b): W lies
    between `shared_bytes` and `weight_bytes`; `alike` workers that each decode as many share them.
    `serial`: the part of the shorter of the two that the longer does not hide. A step that does
    both has one reading of W for all its tokens, and reads contexts after it. Formulas as in LLM
    inference's roofline analyses (Yuan and others, arXiv 2402.16363).
    """

    flops: float  # per second
    memory_bytes_per_s: float
    active_params: float
    attention_width: float
    kv_bytes_per_token: float
    weight_bytes: float
    shared_bytes: float = 0.0
    experts: int = 0
    experts_per_token: int = 0
    overhead_s: float = 0.0
    sequence_s: float = 0.0
    token_s: float = 0.0
    serial: float = 0.0
    alike: int = 1

    def __post_init__(self) -> None:
        for name in ("flops", "memory_bytes_per_s", "active_params", "weight_bytes"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: must be > 0, got {getattr(self, name)}")
        if self.experts and not 0 < self.experts_per_token <= self.experts:
            raise ValueError(f"experts_per_token: {self.experts_per_token} of {self.experts}")

    @property
    def prefill_tokens_per_s(self) -> float:
        return 1 / (2 * self.active_params / self.flops + self.token_s)

    def step_s(self, chunks: Sequence[Chunk], batch: int, context: int) -> float:
        return _step_s(self, chunks, batch, context)

    def decode_line(self, batch: int, prefilled: int = 0) -> DecodeLine:
        each_s = self.overhead_s + self.sequence_s * batch
        reading_s = self.touched_bytes(batch + prefilled) / self.memory_bytes_per_s
        context_s = self.kv_bytes_per_token / self.memory_bytes_per_s
        token_s = 2 * self.active_params / self.flops
        if not prefilled:
            return DecodeLine(
                fixed_s=each_s + reading_s + self.serial * token_s * batch,
                per_context_s=context_s,
                least_s=each_s + token_s * batch + self.serial * reading_s,
            )
        computing_s = token_s * (batch + prefilled)
        longer_s, shorter_s = max(reading_s, computing_s), min(reading_s, computing_s)
        chunk_s = token_s * prefilled  # which `chunk_s` counts
        return DecodeLine(each_s + longer_s + self.serial * shorter_s - chunk_s, context_s)

    def chunk_s(self, tokens: int, context: int) -> float:
        attended = tokens * (2 * context + tokens)
        flop = 2 * self.active_params * tokens + 2 * self.attention_width * attended
        return flop / self.flops + self.token_s * tokens

    def touched_bytes(self, tokens: int) -> float:
        """Bytes of weights that one step of so many tokens reads."""
        if not self.experts:
            return self.weight_bytes
        part = 1 - (1 - self.experts_per_token / self.experts) ** (tokens * self.alike)
        return self.shared_bytes + part * (self.weight_bytes - self.shared_bytes)


def _step_s(costs: Costs, chunks: Sequence[Chunk], batch: int, context: int) -> float:
    if not batch and not chunks:
        return 0.0
    line = costs.decode_line(batch, sum(chunk.tokens for chunk in chunks))
    seconds = max(line.fixed_s + line.per_context_s * context, line.least_s)
    return seconds + sum(costs.chunk_s(*chunk) for chunk in chunks)
