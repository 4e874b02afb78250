"""Drawing one token: a pure function of logits, settings, seed and output index.

Gumbel-max: the token with the best logit after noise. The noise of output index i comes from
Philox keyed by the seed with i in the counter's high word, so any worker that sees the same
logits draws the same token, whatever was drawn before and in whatever batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workers.api.messages import Sampling, TokenLogprobs

_NEVER = np.float32(-np.inf)
_ALONE = 1e6  # the lead, in logits, of a token that is the only one allowed
_SEED_MASK = (1 << 64) - 1
_BEST = 64  # logits whose noise is always looked at
_NUCLEUS_START = 64  # candidates tried first for top_p; grows eightfold until they suffice


@dataclass(frozen=True, slots=True)
class Draw:
    """One drawn token; `margin` is in logits."""

    token: int
    logprobs: TokenLogprobs | None
    margin: float | None


def draw(
    logits: np.ndarray,
    sampling: Sampling,
    tokens: Sequence[int],
    prompt_len: int,
    banned: Sequence[int] = (),
    allowed: np.ndarray | None = None,
) -> Draw:
    """Draw the token after `tokens`, of which the first `prompt_len` are the prompt.

    `logits`: the model's, [vocab] float32, not changed. `banned` ids cannot be drawn, nor any
    that is not `allowed`, [vocab] bool; one must be left. Penalties and biases work on the
    logits, then temperature, min_p, top_k and top_p choose the candidates, in this order, each on
    what the one before left. Logprobs are the model's own, before all of this.
    """
    adjusted = _penalised(logits, sampling, tokens, prompt_len)
    if adjusted is logits and (sampling.logit_bias or banned or allowed is not None):
        adjusted = logits.copy()
    for id, bias in sampling.logit_bias:
        adjusted[id] += np.float32(bias)
    if banned:
        adjusted[list(banned)] = _NEVER
    if allowed is not None:
        adjusted[~allowed] = _NEVER
    if sampling.temperature <= 0:
        token = int(adjusted.argmax())
        margin = _lead(adjusted) if sampling.margins else None
    else:
        token, margin = _noisy_best(adjusted, sampling, len(tokens) - prompt_len)
    logprobs = None
    if sampling.logprobs is not None:
        logprobs = _logprobs(logits, token, sampling.logprobs)
    return Draw(token, logprobs, margin)


def noise_words(seed: int, index: int, size: int) -> np.ndarray:
    """The random words of output `index`, one per token id, [size] uint64.

    Philox's raw words: numpy guarantees those for ever, unlike the streams of its distributions.
    """
    return np.random.Philox(key=seed & _SEED_MASK, counter=index << 192).random_raw(size)


def gumbel(words: np.ndarray) -> np.ndarray:
    """Standard Gumbel noise made of random words, float64."""
    uniform = ((words >> np.uint64(11)) + 0.5) * 2.0**-53
    return -np.log(-np.log(uniform))


def _noisy_best(adjusted: np.ndarray, sampling: Sampling, index: int) -> tuple[int, float | None]:
    """The drawn token, and its lead over the next best candidate, noise included, in logits.

    A single candidate has no noisy rival; its lead is then over the next best plain logit.
    """
    words = noise_words(sampling.seed, index, len(adjusted))
    ids = _candidates(adjusted, sampling)
    if ids is None:
        ids = _contenders(adjusted, sampling.temperature, words)
    noisy = adjusted[ids] + sampling.temperature * gumbel(words[ids])
    token = int(ids[noisy.argmax()])
    if not sampling.margins:
        return token, None
    return token, _lead(noisy if len(noisy) > 1 else adjusted)


def _contenders(adjusted: np.ndarray, temperature: float, words: np.ndarray) -> np.ndarray:
    """Ids, ascending, among which the two best noisy logits are, so that few need their noise.

    Whoever is not among the best logits must have drawn a noise that lifts the best of the rest
    over the second of the best.
    """
    vocab = len(adjusted)
    if vocab <= 2 * _BEST:
        return np.arange(vocab)
    best = np.argpartition(adjusted, vocab - _BEST)[vocab - _BEST :]
    if adjusted[best].min() == _NEVER:  # nobody else can be drawn
        return np.sort(best[adjusted[best] > _NEVER])
    noisy = adjusted[best] + temperature * gumbel(words[best])
    second = np.partition(noisy, _BEST - 2)[_BEST - 2]
    needed = (second - adjusted[best].min()) / temperature
    uniform = np.exp(-np.exp(-max(needed, -5.0)))  # below -5 practically every noise is enough
    # Rounded down generously: a contender too many costs nothing.
    lifted = np.flatnonzero(words >= np.uint64(uniform * (1 - 1e-9) * 2.0**64))
    return np.union1d(best, lifted)


def _lead(values: np.ndarray) -> float:
    best = np.partition(values, len(values) - 2)[-2:]
    return min(float(best[1] - best[0]), _ALONE)


def _penalised(
    logits: np.ndarray, sampling: Sampling, tokens: Sequence[int], prompt_len: int
) -> np.ndarray:
    additive = sampling.presence_penalty != 0 or sampling.frequency_penalty != 0
    if not additive and sampling.repetition_penalty == 1:
        return logits
    adjusted = logits.copy()
    if sampling.repetition_penalty != 1:
        seen = np.unique(np.asarray(tokens, dtype=np.int64))
        values = adjusted[seen]
        factor = np.float32(sampling.repetition_penalty)
        adjusted[seen] = np.where(values > 0, values / factor, values * factor)
    if additive and len(tokens) > prompt_len:
        ids, counts = np.unique(np.asarray(tokens[prompt_len:], np.int64), return_counts=True)
        penalty = sampling.frequency_penalty * counts + sampling.presence_penalty
        adjusted[ids] -= penalty.astype(np.float32)
    return adjusted


def _candidates(adjusted: np.ndarray, sampling: Sampling) -> np.ndarray | None:
    """Token ids that the filters leave, ascending; None when nothing filters."""
    vocab = len(adjusted)
    top_k = sampling.top_k if sampling.top_k and sampling.top_k < vocab else None
    if top_k is None and sampling.top_p >= 1 and sampling.min_p <= 0:
        return None
    best = adjusted.max()
    weights = np.exp((adjusted.astype(np.float64) - best) / sampling.temperature)
    kept = np.arange(vocab)
    if sampling.min_p > 0:
        kept = np.flatnonzero(weights >= sampling.min_p)  # the best one's weight is 1
    if top_k is not None and top_k < len(kept):
        # Whoever ties with the last one stays in: which of them went would be chance.
        last = np.partition(adjusted[kept], len(kept) - top_k)[len(kept) - top_k]
        kept = kept[adjusted[kept] >= last]
    if sampling.top_p < 1:
        kept = _nucleus(kept, weights[kept], sampling.top_p)
    return kept


def _nucleus(ids: np.ndarray, weights: np.ndarray, top_p: float) -> np.ndarray:
    """The fewest of `ids`, heaviest first, lower id first among equals, that reach `top_p`."""
    wanted = top_p * weights.sum()
    size = min(_NUCLEUS_START, len(ids))
    while True:
        if size < len(ids):
            last = np.partition(weights, len(ids) - size)[len(ids) - size]
            heavy = np.flatnonzero(weights >= last)
        else:
            heavy = np.arange(len(ids))
        order = heavy[np.argsort(-weights[heavy], kind="stable")]
        reached = np.cumsum(weights[order])
        if reached[-1] >= wanted or len(order) == len(ids):
            count = int(np.searchsorted(reached, wanted)) + 1
            return np.sort(ids[order[:count]])
        size = min(size * 8, len(ids))


def _logprobs(logits: np.ndarray, token: int, alternatives: int) -> TokenLogprobs:
    values = logits.astype(np.float64)
    best = values.max()
    values -= best + np.log(np.exp(values - best).sum())
    top: tuple[tuple[int, float], ...] = ()
    if alternatives > 0:
        count = min(alternatives, len(values))
        last = np.partition(values, len(values) - count)[len(values) - count]
        ids = np.flatnonzero(values >= last)
        ids = ids[np.argsort(-values[ids], kind="stable")][:count]
        top = tuple((int(i), float(values[i])) for i in ids)
    return TokenLogprobs(logprob=float(values[token]), top=top)
