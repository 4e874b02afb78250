"""What attention each token of a sequence has been paid: H2O's sums and Scissorhands' counts."""

from dataclasses import dataclass, field

import numpy as np

WINDOW = 256  # queries that Scissorhands looks back on; older ones fade out
_FADE = 1 - 1 / WINDOW


def _nothing() -> np.ndarray:
    return np.zeros(0, dtype=np.float32)


@dataclass(slots=True, eq=False)
class Attention:
    """By token: `mass`, the sum of the attention it was paid by all queries so far; `hits`, how
    many of the last queries paid it more than an even share, each faded by its age.
    """

    mass: np.ndarray = field(default_factory=_nothing)
    hits: np.ndarray = field(default_factory=_nothing)
    queries: int = 0

    def add(self, tokens: np.ndarray, paid: np.ndarray) -> None:
        """`paid`: [queries, keys], each row's sum 1, a mean over layers and heads; `tokens`: the
        keys', ascending. Queries come in order.
        """
        self._reach(int(tokens[-1]) + 1)
        queries = len(paid)
        self.queries += queries
        seen = np.count_nonzero(paid, axis=1)[:, None]
        ages = np.arange(queries - 1, -1, -1, dtype=np.float32)
        self.mass[tokens] += paid.sum(axis=0)
        self.hits *= _FADE**queries
        self.hits[tokens] += (_FADE**ages) @ (paid > 1 / np.maximum(seen, 1))

    def truncate(self, tokens: int) -> None:
        """Forget the tokens from `tokens` on, not what they paid."""
        self.mass, self.hits = self.mass[:tokens].copy(), self.hits[:tokens].copy()

    def _reach(self, tokens: int) -> None:
        short = tokens - len(self.mass)
        if short > 0:
            self.mass = np.append(self.mass, np.zeros(short, dtype=np.float32))
            self.hits = np.append(self.hits, np.zeros(short, dtype=np.float32))
