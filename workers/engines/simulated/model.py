"""The simulated model: tokens and KV as pure functions of the tokens before them.

The hash of a history is the sum, modulo 2^64, of one mixed word per (token, position): it grows
by one addition per token, and a whole prompt is one vectorised pass.
"""

import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from workers.api.info import Fingerprint, Part
from workers.api.messages import Sampling, TokenLogprobs

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_POSITION = np.uint64(0xD1B54A32D192ED03)
_LAYER = 0x8CB92BA72F3D8DD7
_VALUE = 0xABC98388FB8FAC03
_MASK = (1 << 64) - 1
_NEAR_TIE = 0.05  # two best logits nearer than this may change places on another machine
# A bfloat16 with a random sign, three random exponent bits and a random mantissa, like real KV.
_KEPT_BITS = np.uint64(0x83FF_83FF_83FF_83FF)
_SET_BITS = np.uint64(0x3C00_3C00_3C00_3C00)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedModel:
    """What the model is like.

    `end_rate`: the share of positions that give end-of-text, if the request has a stop id.
    `divergence`: at one position in that many the two best tokens nearly tie, and engines with
    different `salt` choose differently; None: never.
    """

    name: str = "simulated"
    layers: int = 2
    kv_heads: int = 1
    head_size: int = 8
    vocab_size: int = 32_000
    max_context: int = 8192
    stop_ids: tuple[int, ...] = (2,)
    end_rate: float = 0.0
    divergence: int | None = None
    salt: int = 0

    @property
    def fingerprint(self) -> Fingerprint:
        return Fingerprint(
            tensors=f"simulated:{self.name}",
            tokenizer=f"simulated:{self.vocab_size}",
            kv_dtype="bfloat16",
            layers=self.layers,
            kv_heads=self.kv_heads,
            head_size=self.head_size,
            rope="none",
            windows=(None,) * self.layers,
        )

    @property
    def seed(self) -> int:
        return zlib.crc32(self.name.encode()) << 16


class Choice(NamedTuple):
    """One sampled token."""

    token: int
    margin: float
    logprob: float


class Wish(NamedTuple):
    """What a sequence's next token depends on, its history's hash and place included."""

    history: int
    place: int  # output index
    seed: int  # 0 when greedy
    stop_ids: tuple[int, ...]
    min_tokens: int


def grow_history(hashes: "array[int]", tokens: Sequence[int]) -> None:
    """Append to `hashes` (one per token, of all tokens up to it) those of `tokens`."""
    start = len(hashes)
    before = hashes[-1] if start else 0
    words = _words(np.array(tokens, dtype=np.uint64), start)
    hashes.frombytes((np.cumsum(words, dtype=np.uint64) + np.uint64(before)).tobytes())


def seed_word(sampling: Sampling) -> int:
    """What a sampled request adds to its history; 0 when greedy."""
    if sampling.temperature <= 0:
        return 0
    return int(_mix(np.array([sampling.seed & _MASK], dtype=np.uint64))[0]) | 1


def choose(model: SimulatedModel, wishes: Sequence[Wish]) -> list[Choice]:
    """The next token of each sequence, independent of who else is in the batch."""
    history = np.array([w.history for w in wishes], dtype=np.uint64)
    seeds = np.array([w.seed for w in wishes], dtype=np.uint64)
    first = _mix(history + seeds + np.uint64(model.seed))
    second = _mix(first + _GOLDEN)
    third = _mix(second + _GOLDEN)
    tokens = (first % np.uint64(model.vocab_size)).tolist()
    ends = (_unit(second) < model.end_rate).tolist()
    picks = (third >> np.uint64(32)).tolist()
    chances = _unit(third).tolist()
    if model.divergence is None:
        ties = [False] * len(wishes)
    else:
        ties = (_mix(third + _GOLDEN) % np.uint64(model.divergence) == 0).tolist()
    choices = []
    for wish, token, end, pick, chance, tie in zip(
        wishes, tokens, ends, picks, chances, ties, strict=True
    ):
        stops = wish.stop_ids
        margin = _NEAR_TIE * chance if tie else _NEAR_TIE + 4 * chance
        if end and stops and wish.place >= wish.min_tokens and not (tie and model.salt):
            token = stops[pick % len(stops)]
        else:
            token = (token + (model.salt if tie else 0)) % model.vocab_size
            while token in stops:
                token = (token + 1) % model.vocab_size
        choices.append(Choice(token, margin, -chance))
    return choices


def next_hashes(
    histories: Sequence[int], tokens: Sequence[int], positions: Sequence[int]
) -> list[int]:
    """The hash of each history after one more token, at its position."""
    at = np.array(positions, dtype=np.uint64)
    words = _mix(np.array(tokens, dtype=np.uint64) * _GOLDEN + (at + np.uint64(1)) * _POSITION)
    grown: list[int] = (np.array(histories, dtype=np.uint64) + words).tolist()
    return grown


def describe(model: SimulatedModel, choice: Choice, alternatives: int) -> TokenLogprobs:
    """The token's own log-probability and those of the best tokens, itself first."""
    others = (
        ((choice.token + i) % model.vocab_size, choice.logprob - choice.margin - (i - 1))
        for i in range(1, alternatives)
    )
    top = ((choice.token, choice.logprob), *others) if alternatives else ()
    return TokenLogprobs(logprob=choice.logprob, top=top)


def kv_bits(model: SimulatedModel, hashes: "array[int]", layer: int, part: Part) -> np.ndarray:
    """K or V of one layer for tokens with these history hashes.

    [tokens, kv_heads, head_size] uint16, bfloat16 bits.
    """
    width = model.kv_heads * model.head_size
    word = model.seed + _LAYER * (layer + 1) + (_VALUE if part is Part.VALUE else 0)
    lanes = _mix(np.arange(-(-width // 4), dtype=np.uint64) + np.uint64(word & _MASK))
    keys = _mix(np.frombuffer(hashes, dtype=np.uint64) ^ np.uint64(word & _MASK))
    bits = keys[:, None] ^ lanes[None, :]
    bits &= _KEPT_BITS
    bits |= _SET_BITS
    rows = bits.view("<u2")[:, :width]
    return np.ascontiguousarray(rows).reshape(len(keys), model.kv_heads, model.head_size)


def _words(tokens: np.ndarray, start: int) -> np.ndarray:
    positions = np.arange(start + 1, start + 1 + len(tokens), dtype=np.uint64)
    return _mix(tokens * _GOLDEN + positions * _POSITION)


def _mix(x: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def _unit(x: np.ndarray) -> np.ndarray:
    """[0, 1) as float64."""
    unit: np.ndarray = (x >> np.uint64(11)) * 2.0**-53
    return unit
