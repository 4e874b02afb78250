"""Which tokens die: each policy is a function that names them and does nothing else.

A policy is given what may die, oldest first, and how many must. To add one, write it and add its
line to POLICIES.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from workers.kv.evict.attention import Attention


@dataclass(frozen=True, slots=True)
class View:
    """What a policy may look at.

    `tokens`: those that may die, ascending. `attention`: what they have been paid, None where no
    policy asks. `score`: what TriAttention expects of each. `key`: of the random numbers.
    """

    tokens: np.ndarray
    attention: Attention | None
    score: Callable[[np.ndarray], np.ndarray] | None
    key: int


Policy = Callable[[View, int], np.ndarray]


def h2o(view: View, count: int) -> np.ndarray:
    """Those that were paid the least attention in all (Zhang and others, arXiv 2306.14048)."""
    assert view.attention is not None, "an engine of this policy gathers attention"
    return _lowest(view.tokens, view.attention.mass[view.tokens], count)


def scissorhands(view: View, count: int) -> np.ndarray:
    """Those that mattered least often of late (Liu and others, arXiv 2305.17118)."""
    assert view.attention is not None, "an engine of this policy gathers attention"
    return _lowest(view.tokens, view.attention.hits[view.tokens], count)


def random(view: View, count: int) -> np.ndarray:
    """Any, all alike."""
    return np.random.Generator(np.random.Philox(view.key)).choice(view.tokens, count, replace=False)


def sink_recent(view: View, count: int) -> np.ndarray:
    """The oldest: first and recent tokens stay (Xiao and others, arXiv 2309.17453)."""
    return view.tokens[:count]


def triattention(view: View, count: int) -> np.ndarray:
    """Those that future queries are expected to heed least (arXiv 2604.04921).

    Each by its neighbours' scores too, which is not in the paper: where characters take several
    tokens, as in Chinese, single tokens' scores tear them apart.
    """
    assert view.score is not None, "an engine of this policy scores its keys"
    return _lowest(view.tokens, with_neighbours(view.score(view.tokens)), count)


def with_neighbours(worth: np.ndarray) -> np.ndarray:
    """The mean of each and of the one on either side of it; at the ends they count twice."""
    padded = np.pad(worth, 1, mode="edge")
    mean: np.ndarray = (padded[:-2] + padded[1:-1] + padded[2:]) / 3
    return mean


def _lowest(tokens: np.ndarray, worth: np.ndarray, count: int) -> np.ndarray:
    """The `count` tokens that are worth least; of equals the oldest."""
    return tokens[np.argsort(worth, kind="stable")[:count]]


POLICIES: Mapping[str, Policy] = {
    "h2o": h2o,
    "scissorhands": scissorhands,
    "random": random,
    "sink-recent": sink_recent,
    "triattention": triattention,
}
NEED_ATTENTION = frozenset({"h2o", "scissorhands"})
