"""Which run has which row of the pool, and when what a run could write is nobody's again."""

import numpy as np

from workers.engines.vllm.pool import NOBODY, SharedPool, fence


class Rows:
    """See the rules in `pool`. A row is free, a run's, or revoked and not settled yet."""

    def __init__(self, pool: SharedPool) -> None:
        self._pool = pool
        self._free = list(range(pool.shape.rows))
        self._revoked: dict[int, np.ndarray] = {}  # row -> the ranks' epochs then

    def take(self, run: int) -> int | None:
        """A row for a run; None: all are taken."""
        if not self._free:
            return None
        row = self._free.pop()
        self._pool.saved[row] = 0
        self._pool.margins[row] = np.nan
        fence()
        self._pool.claims[row] = run
        return row

    def revoke(self, row: int) -> None:
        """The run ends: from its next step on it writes nothing."""
        self._pool.claims[row] = NOBODY
        fence()
        self._revoked[row] = self._pool.epochs.copy()

    def settled(self) -> list[int]:
        """Rows whose runs can write nothing any more, not in a running step either; free now.

        A rank was between two steps when the claim was taken back, or has left that step since.
        """
        now = self._pool.epochs
        done = [
            row for row, then in self._revoked.items() if ((then % 2 == 0) | (now != then)).all()
        ]
        for row in done:
            del self._revoked[row]
            self._free.append(row)
        return done
