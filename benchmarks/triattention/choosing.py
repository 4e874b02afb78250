"""Which tokens of a context each policy keeps: those of the engines, and two that only bench."""

from collections.abc import Callable, Mapping

import numpy as np

from benchmarks.triattention.reading import Paid, Reading
from workers.kv.evict.attention import Attention
from workers.kv.evict.config import Eviction, Heads
from workers.kv.evict.dying import name_dying
from workers.kv.evict.triattention import Calibration, Scorer, combined

RECENT, FIRST = 128, 4
POOLED = 7  # neighbours over which SnapKV smooths

Choice = Callable[["Context", float], np.ndarray]


class Context:
    """The first `tokens` tokens of a reading, and what policies look at."""

    def __init__(self, reading: Reading, tokens: int, calibration: Calibration) -> None:
        self.reading = reading
        self.tokens = tokens
        self.paid: Paid = reading.paid[tokens]
        scorer, every = Scorer(calibration, tokens), np.arange(tokens)
        layers = range(len(reading.loaded.windows))
        keys = reading.store.keys
        self.scores = np.stack([scorer.layer(n, keys(n, every)) for n in layers])
        shares = np.stack([scorer.shares(n, keys(n, every)) for n in layers])
        self.worth = {
            Heads.UNION: combined(self.scores, Heads.UNION),
            Heads.SHARES: combined(shares, Heads.SHARES),
        }

    @property
    def heads(self) -> tuple[int, int]:
        layers, kv_heads, _ = self.scores.shape
        return layers, kv_heads


def eviction(policy: str, share: float) -> Eviction:
    """The budgets of the bench: nothing is kept beyond the share, tokens die at once."""
    return Eviction(policy=policy, budget=share, slack=1, recent=RECENT, first=FIRST)


def whole(
    policy: str,
    attention: Callable[[Context], Attention] | None = None,
    heads: Heads = Heads.UNION,
) -> Choice:
    """An engine's policy: all heads keep the same tokens."""

    def choose(context: Context, share: float) -> np.ndarray:
        every = np.arange(context.tokens)
        worth = context.worth[heads]
        dying = name_dying(
            eviction(policy, share),
            every,
            context.tokens,
            0,
            name=context.reading.name,
            attention=context.paid.all if attention is None else attention(context),
            score=lambda tokens: worth[tokens],
        )
        kept = np.setdiff1d(every, dying)
        return np.broadcast_to(kept, (*context.heads, len(kept))).copy()

    return choose


def _alone(context: Context, share: float) -> np.ndarray:
    """TriAttention's union as in the paper: each token by its own score alone."""
    count = eviction("triattention", share).allowed(context.tokens, 0)
    kept = _best(context.worth[Heads.UNION][None, None], count)[0, 0]
    return np.broadcast_to(kept, (*context.heads, count)).copy()


def own(heads: Heads) -> Choice:
    """TriAttention with heads that keep tokens of their own."""

    def choose(context: Context, share: float) -> np.ndarray:
        count = eviction("triattention", share).allowed(context.tokens, 0)
        scores = np.broadcast_to(combined(context.scores, heads), context.scores.shape)
        return _best(scores, count)

    return choose


def _best(scores: np.ndarray, count: int) -> np.ndarray:
    """[..., tokens] to [..., count]: those of the highest scores, the first and recent ones too."""
    scores = scores.copy()
    scores[..., :FIRST] = scores[..., -RECENT:] = np.inf
    best = np.argsort(-scores, axis=-1, kind="stable")[..., :count]
    return np.sort(best, axis=-1)


def _snapkv(context: Context) -> Attention:
    """What the last queries paid, smoothed (Li and others, arXiv 2404.14469)."""
    smooth = np.convolve(context.paid.last, np.ones(POOLED) / POOLED, mode="same")
    return Attention(mass=smooth, hits=smooth, queries=context.tokens)


CHOICES: Mapping[str, Choice] = {
    "random": whole("random"),
    "sink-recent": whole("sink-recent"),
    "h2o": whole("h2o"),
    "scissorhands": whole("scissorhands"),
    "snapkv-like": whole("h2o", _snapkv),
    "triattention": whole("triattention"),
    "triattention/alone": _alone,
    "triattention/shares": whole("triattention", heads=Heads.SHARES),
    "triattention/per-head": own(Heads.PER_HEAD),
    "triattention/per-layer-head": own(Heads.PER_LAYER_HEAD),
}


def freed_ratio(kept: np.ndarray, tokens: int) -> float:
    """How many times less KV memory is held: a token's place is free when no head keeps it."""
    return tokens / len(np.unique(kept))
