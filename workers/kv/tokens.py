"""The token table of one sequence: which place of its block table holds which token, if any does.

After vToken (arXiv 2608.13263). A *row* is an entry of the sequence's block table, a *place* is
row x block size + offset. Policies only say which tokens die; a dead token leaves a hole, and what
gives memory back is a repack: survivors move together, after the forward pass, and whole rows go
free. Attention never sees any of this: it is given the slots of the tokens that live.

Nothing here touches memory: who owns the bytes copies them as a `Repack` says, then applies it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DEAD = -1


@dataclass(frozen=True, slots=True, eq=False)
class Repack:
    """Moves that free rows, planned on one snapshot of a table.

    The token in place `sources[i]` goes to place `targets[i]`; no target holds a living token, so
    the copies may be done in any order, and reading by the old table stays right until `apply`.
    `rows`: the table's rows afterwards, by their old numbers; numbers from the old count on are
    `fresh` rows that the owner must take first.
    """

    sources: np.ndarray
    targets: np.ndarray
    rows: tuple[int, ...]
    fresh: int
    version: int


class TokenTable:
    """See the module's docstring. `places`: [tokens] int64, DEAD for a token that is not kept."""

    def __init__(self, block_size: int, tokens: int = 0) -> None:
        self.block_size = block_size
        self._places = np.arange(max(tokens, 1), dtype=np.int64)
        self._tokens = tokens
        self._end = tokens  # the next token's place
        self._version = 0
        self.live = tokens
        self.in_place = tokens  # so many leading tokens are alive, each in the place of its number

    def __len__(self) -> int:
        return self._tokens

    @property
    def places(self) -> np.ndarray:
        return self._places[: self._tokens]

    @property
    def rows(self) -> int:
        """Rows in use."""
        return -(-self._end // self.block_size)

    @property
    def open_offset(self) -> int:
        """Places taken in the row that the next token goes to; 0: it starts a row."""
        return self._end % self.block_size

    @property
    def waste(self) -> float:
        """The share of the rows' places that holds no living token."""
        return 1 - self.live / (self.rows * self.block_size) if self._end else 0.0

    def living(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Tokens of [start, stop) that are alive, ascending."""
        return np.flatnonzero(self.places[start:stop] != DEAD) + start

    def rows_for(self, tokens: int) -> int:
        """Rows in use once the table has grown to `tokens` tokens."""
        return -(-(self._end + max(0, tokens - self._tokens)) // self.block_size)

    def reach(self, rows: int) -> int:
        """Tokens that the table can grow to within so many rows."""
        return self._tokens + rows * self.block_size - self._end

    def copy(self) -> "TokenTable":
        other = TokenTable(self.block_size)
        other._places = self._places.copy()
        other._tokens, other._end = self._tokens, self._end
        other.live, other.in_place = self.live, self.in_place
        return other

    # ------------------------------------------------------------ what happens to tokens

    def grow(self, tokens: int) -> None:
        """New tokens behind the last, up to `tokens` of them, in the next places."""
        count = tokens - self._tokens
        if count <= 0:
            return
        if tokens > len(self._places):
            room = np.empty(max(tokens, 2 * len(self._places)), dtype=np.int64)
            room[: self._tokens] = self.places
            self._places = room
        self._places[self._tokens : tokens] = np.arange(self._end, self._end + count)
        if self.in_place == self._tokens == self._end:
            self.in_place = tokens
        self._tokens, self._end = tokens, self._end + count
        self.live += count
        self._version += 1

    def kill(self, tokens: np.ndarray) -> None:
        """These tokens, each alive until now, are dead."""
        if not len(tokens):
            return
        if (self.places[tokens] == DEAD).any() or len(np.unique(tokens)) < len(tokens):
            raise ValueError("a token dies once")
        self._places[tokens] = DEAD
        self.live -= len(tokens)
        self.in_place = min(self.in_place, int(tokens.min()))
        self._version += 1

    def truncate(self, tokens: int) -> None:
        """Forget every token from `tokens` on; the next one comes behind the last that lives."""
        self._tokens = min(tokens, self._tokens)
        alive = self.places[self.places != DEAD]
        self.live = len(alive)
        self._end = int(alive.max()) + 1 if len(alive) else 0
        self.in_place = min(self.in_place, self._tokens)
        self._version += 1

    # ------------------------------------------------------------ what gives rows back

    def dead_rows(self) -> list[int]:
        """Rows without a living token, but for the one that the next token goes to."""
        counts = self._counts()
        open_row = self._end // self.block_size
        return [row for row in np.flatnonzero(counts == 0).tolist() if row != open_row]

    def drop(self, rows: Sequence[int]) -> None:
        """Rows without a living token are no longer there; those behind them move up."""
        if not rows:
            return
        stay = np.ones(self.rows, dtype=bool)
        stay[list(rows)] = False
        if (self._counts()[~stay] > 0).any():
            raise ValueError("a row with a living token cannot go")
        size = self.block_size
        shift = (np.cumsum(~stay) * size)[: self.rows]
        alive = self.places != DEAD
        places = self.places[alive]
        self._places[: self._tokens][alive] = places - shift[places // size]
        # A last row that is full or gone: the next token starts another.
        last = (self._end - 1) // size
        offset = self._end - last * size if stay[last] else 0
        kept = int(stay.sum())
        self._end = (kept - 1) * size + offset if offset else kept * size
        self._version += 1

    def plan(self, writable: Sequence[bool]) -> Repack | None:
        """Survivors into as few rows as may be; None: that would not lower the count of rows.

        `writable`, one per row: others do not read it. The rest is left alone where it is full and
        emptied where it is not.
        """
        size, counts = self.block_size, self._counts()
        may_write = np.asarray(writable, dtype=bool)
        fixed = (counts == size) & ~may_write
        fixed[: self.in_place // size] = True  # a prefix keeps its names
        rest = self.live - int(fixed.sum()) * size
        wanted = -(-rest // size)
        able = np.flatnonzero(may_write & ~fixed)
        fullest = able[np.argsort(-counts[able], kind="stable")][:wanted]
        fresh = wanted - len(fullest)
        order = [*np.flatnonzero(fixed).tolist(), *fullest.tolist()]
        order += range(self.rows, self.rows + fresh)
        if len(order) >= self.rows:
            return None
        region = (np.array(order, dtype=np.int64)[:, None] * size + np.arange(size)).ravel()
        region = region[: self.live]
        alive = self.places[self.places != DEAD]
        sources = np.setdiff1d(alive, region, assume_unique=True)
        targets = np.setdiff1d(region, alive, assume_unique=True)
        return Repack(sources, targets, tuple(order), fresh, self._version)

    def apply(self, repack: Repack) -> None:
        """The bytes are where the plan says. ValueError: the table has changed since the plan."""
        if repack.version != self._version:
            raise ValueError("planned on another snapshot of the table")
        size = self.block_size
        moved = np.arange((self.rows + repack.fresh) * size, dtype=np.int64)
        moved[repack.sources] = repack.targets
        number = np.full(self.rows + repack.fresh, DEAD, dtype=np.int64)
        number[list(repack.rows)] = np.arange(len(repack.rows))
        alive = self.places != DEAD
        places = moved[self.places[alive]]
        self._places[: self._tokens][alive] = number[places // size] * size + places % size
        self._end = self.live
        strays = np.flatnonzero(self.places != np.arange(self._tokens))
        self.in_place = int(strays[0]) if len(strays) else self._tokens
        self._version += 1

    def _counts(self) -> np.ndarray:
        """Living tokens of each row."""
        alive = self.places[self.places != DEAD]
        return np.bincount(alive // self.block_size, minlength=self.rows)
