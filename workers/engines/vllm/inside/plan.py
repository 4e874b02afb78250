"""What the connector does in each step, worked out without vLLM: which tokens go where.

A run is one request of vLLM's that a worker asked for. Its KV has two homes: vLLM's blocks, one
table for each of vLLM's cache groups, and the worker's pool. A copy names tokens and the blocks
that cover them on both sides, so that who carries it out need not remember anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Tables = Sequence[Sequence[int]]  # block tables, one for each of vLLM's cache groups

NULL_BLOCK = 0  # vLLM's: what has left a sliding window
MOST_BLOCK_SIZE = 1 << 16  # tokens: a bound on what a request can make us work out


@dataclass(frozen=True, slots=True)
class Copy:
    """Tokens [start, stop) of a run. `theirs`: group by group vLLM's blocks that cover them;
    `ours`: the pool's.
    """

    pool: str
    row: int
    run: int
    start: int
    stop: int
    theirs: tuple[tuple[int, ...], ...]
    ours: tuple[int, ...]


@dataclass(slots=True)
class Run:
    """A run as the scheduler's side of the connector knows it.

    `have`: leading tokens whose KV is in the pool; it grows as steps are planned, for a step's
    copies are carried out before the next step's.
    """

    pool: str
    row: int
    run: int
    have: int
    blocks: tuple[int, ...]
    block_size: int

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> "Run":
        """From a request's `kv_transfer_params`. Raises KeyError, TypeError, ValueError."""
        run = cls(
            pool=str(params["pool"]),
            row=int(params["row"]),
            run=int(params["run"]),
            have=int(params["have"]),
            blocks=tuple(int(block) for block in params["blocks"]),
            block_size=int(params["block_size"]),
        )
        if (
            not 0 < run.block_size <= MOST_BLOCK_SIZE
            or run.row < 0
            or min(run.blocks, default=-1) < 0
        ):
            raise ValueError("a block, a row or a block size makes no sense")
        if not 0 <= run.have <= run.capacity:
            raise ValueError(f"{run.have} tokens are said to be in {len(run.blocks)} blocks")
        return run

    @property
    def capacity(self) -> int:
        return len(self.blocks) * self.block_size

    def loadable(self, tokens: int, computed: int) -> int:
        """How many tokens past `computed` the pool can give to a request of `tokens` tokens.

        Its last token is always computed: that gives the logits.
        """
        return max(0, min(self.have, tokens - 1) - computed)

    def load(self, start: int, stop: int, tables: Tables, sizes: Sequence[int]) -> Copy:
        """Bring tokens [start, stop) into vLLM."""
        return self._copy(start, stop, tables, sizes)

    def save(self, computed: int, tables: Tables, sizes: Sequence[int]) -> Copy | None:
        """After a step that computes up to `computed`: what the pool lacks; None: nothing.

        That is more than the step's own tokens where vLLM found some in its prefix cache.
        """
        start, stop = self.have, min(computed, self.capacity)
        if start >= stop:
            return None
        self.have = stop
        return self._copy(start, stop, tables, sizes)

    def _copy(self, start: int, stop: int, tables: Tables, sizes: Sequence[int]) -> Copy:
        theirs = tuple(
            covering(table, size, start, stop) for table, size in zip(tables, sizes, strict=True)
        )
        ours = covering(self.blocks, self.block_size, start, stop)
        return Copy(self.pool, self.row, self.run, start, stop, theirs, ours)


def covering(blocks: Sequence[int], block_size: int, start: int, stop: int) -> tuple[int, ...]:
    """Of a table of blocks those that hold tokens [start, stop). ValueError: it is too short."""
    last = -(-stop // block_size)
    if last > len(blocks):
        raise ValueError(f"tokens up to {stop} in {len(blocks)} blocks of {block_size}")
    return tuple(blocks[start // block_size : last])


def slots(covering: Sequence[int], block_size: int, start: int, stop: int) -> np.ndarray:
    """The slots of tokens [start, stop) in the blocks that cover them, [stop - start] int64."""
    first = start // block_size * block_size
    blocks = np.array(covering, dtype=np.int64)
    every = (blocks[:, None] * block_size + np.arange(block_size)).ravel()
    return every[start - first : stop - first]


def heads_of(rank: int, ranks: int, kv_heads: int) -> tuple[int, int]:
    """The KV heads [first, last) that a tensor-parallel rank keeps.

    With more ranks than heads several ranks keep the same one, and write the same bytes.
    Raises ValueError where neither divides the other, as vLLM does.
    """
    if kv_heads % ranks == 0:
        each = kv_heads // ranks
        return rank * each, (rank + 1) * each
    if ranks % kv_heads == 0:
        head = rank * kv_heads // ranks
        return head, head + 1
    raise ValueError(f"{kv_heads} KV heads cannot be shared out among {ranks} ranks")
