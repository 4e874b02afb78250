"""The simulated model: tokens and KV as pure functions of the tokens before them.

The hash of a history is the sum, modulo 2^64, of one mixed word per (token, position): it grows
by one addition per token, and a whole prompt is one vectorised pass. What concerns one token is
computed in plain integers, which takes a tenth of what arrays of one element do.
"""

import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from workers.api.info import Fingerprint, Part
from workers.api.messages import Sampling, TokenLogprobs

_GOLDEN = 0x9E3779B97F4A7C15
_POSITION = 0xD1B54A32D192ED03
_LAYER = 0x8CB92BA72F3D8DD7
_VALUE = 0xABC98388FB8FAC03
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # splitmix64's factors
_FIRST_U64, _SECOND_U64 = np.uint64(_FIRST), np.uint64(_SECOND)
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)
_MASK = (1 << 64) - 1
_FEW_TOKENS = 16  # up to here token by token is faster than one pass over an array
_NEAR_TIE = 0.05  # two best logits nearer than this may change places on another machine
# A bfloat16 with a random sign, three random exponent bits and a random mantissa, like real KV.
_KEPT_BITS = np.uint64(0x83FF_83FF_83FF_83FF)
_SET_BITS = np.uint64(0x3C00_3C00_3C00_3C00)
_BFLOAT16 = np.dtype("<u2")


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
        return _name_word(self.name)


@lru_cache(maxsize=1024)
def _name_word(name: str) -> int:
    return zlib.crc32(name.encode()) << 16


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


def next_hash(history: int, token: int, position: int) -> int:
    """The hash of a history after one more token, at its position in the sequence."""
    word = _mix((token * _GOLDEN + (position + 1) * _POSITION) & _MASK)
    return (history + word) & _MASK


def grow_history(hashes: "array[int]", tokens: Sequence[int]) -> None:
    """Append to `hashes` (one per token, of all tokens up to it) those of `tokens`."""
    start = len(hashes)
    before = hashes[-1] if start else 0
    if len(tokens) <= _FEW_TOKENS:
        for position, token in enumerate(tokens, start):
            before = next_hash(before, token, position)
            hashes.append(before)
        return
    positions = np.arange(start + 1, start + 1 + len(tokens), dtype=np.uint64)
    ids = np.frombuffer(array("Q", tokens), dtype=np.uint64)
    words = _mix_all(ids * np.uint64(_GOLDEN) + positions * np.uint64(_POSITION))
    hashes.frombytes((words.cumsum() + np.uint64(before)).tobytes())


def seed_word(sampling: Sampling) -> int:
    """What a sampled request adds to its history; 0 when greedy."""
    return 0 if sampling.temperature <= 0 else _mix(sampling.seed & _MASK) | 1


def choose(model: SimulatedModel, wish: Wish) -> Choice:
    """The next token of a sequence, independent of who else is in the batch."""
    first = _mix((wish.history + wish.seed + model.seed) & _MASK)
    second = _mix((first + _GOLDEN) & _MASK)
    third = _mix((second + _GOLDEN) & _MASK)
    chance = _unit(third)
    tie = model.divergence is not None and _mix((third + _GOLDEN) & _MASK) % model.divergence == 0
    margin = _NEAR_TIE * chance if tie else _NEAR_TIE + 4 * chance
    stops = wish.stop_ids
    end = bool(stops) and wish.place >= wish.min_tokens and _unit(second) < model.end_rate
    if end and not (tie and model.salt):
        token = stops[(third >> 32) % len(stops)]
    else:
        token = (first % model.vocab_size + (model.salt if tie else 0)) % model.vocab_size
        while token in stops:
            token = (token + 1) % model.vocab_size
    return Choice(token, margin, -chance)


def describe(model: SimulatedModel, choice: Choice, alternatives: int) -> TokenLogprobs:
    """The token's own log-probability and those of the best tokens, itself first."""
    others = (
        ((choice.token + i) % model.vocab_size, choice.logprob - choice.margin - (i - 1))
        for i in range(1, alternatives)
    )
    top = ((choice.token, choice.logprob), *others) if alternatives else ()
    return TokenLogprobs(logprob=choice.logprob, top=top)


def importance(hashes: np.ndarray) -> np.ndarray:
    """What tokens with these history hashes are worth to later queries, [tokens] float64.

    A few are worth much more than the rest, and which is left to chance: above 1 is one in e.
    """
    chance = (_mix_all(hashes ^ np.uint64(_LAYER)) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return -np.log1p(-chance)


def kv_bits(
    model: SimulatedModel, hashes: "array[int] | np.ndarray", layer: int, part: Part
) -> np.ndarray:
    """K or V of one layer for tokens with these history hashes.

    [tokens, kv_heads, head_size] uint16, bfloat16 bits.
    """
    width = model.kv_heads * model.head_size
    word = (model.seed + _LAYER * (layer + 1) + (_VALUE if part is Part.VALUE else 0)) & _MASK
    keys = _mix_all(np.frombuffer(hashes, dtype=np.uint64) ^ np.uint64(word))
    keys &= _KEPT_BITS
    rows = (keys[:, None] ^ _lanes(-(-width // 4), word)).view(_BFLOAT16)[:, :width]
    return np.ascontiguousarray(rows).reshape(len(keys), model.kv_heads, model.head_size)


@lru_cache(maxsize=1024)
def _lanes(count: int, word: int) -> np.ndarray:
    """What tells the lanes of four elements of one token's KV apart. [count] uint64, read-only."""
    lanes = _mix_all(np.arange(count, dtype=np.uint64) + np.uint64(word)) & _KEPT_BITS | _SET_BITS
    lanes.flags.writeable = False
    return lanes


def _mix(x: int) -> int:
    """splitmix64's finaliser, of a number below 2^64."""
    x = (x ^ (x >> 30)) * _FIRST & _MASK
    x = (x ^ (x >> 27)) * _SECOND & _MASK
    return x ^ (x >> 31)


def _mix_all(x: np.ndarray) -> np.ndarray:
    """`_mix` of each element of a uint64 array."""
    x = x ^ (x >> _30)
    x *= _FIRST_U64
    x ^= x >> _27
    x *= _SECOND_U64
    x ^= x >> _31
    return x


def _unit(x: int) -> float:
    """[0, 1)."""
    return (x >> 11) * 2.0**-53
