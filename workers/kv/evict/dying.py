"""Who dies now: a pool's orders and a sequence's state in, tokens out."""

from collections.abc import Callable
from zlib import crc32

import numpy as np

from workers.kv.evict.attention import Attention
from workers.kv.evict.config import Eviction
from workers.kv.evict.policies import POLICIES, View


def name_dying(
    eviction: Eviction,
    living: np.ndarray,
    tokens: int,
    prompt: int,
    *,
    name: str,
    attention: Attention | None = None,
    score: Callable[[np.ndarray], np.ndarray] | None = None,
) -> np.ndarray:
    """The tokens of `living`, ascending, of a sequence of `tokens`, that are to die; maybe none.

    `name` gives each sequence random numbers of its own, the same at every place.
    """
    count = len(living) - eviction.allowed(tokens, prompt)
    if count < eviction.slack:
        return living[:0]
    low = max(eviction.first, prompt if eviction.keep_prompt else 0)
    may_die = living[(living >= low) & (living < tokens - eviction.recent)]
    count = min(count, len(may_die))
    if count <= 0:
        return living[:0]
    key = crc32(f"{name} {tokens}".encode())
    return POLICIES[eviction.policy](View(may_die, attention, score, key), count)
