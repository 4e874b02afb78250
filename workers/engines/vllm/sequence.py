"""A sequence of the vLLM engine, and its run: the request by which vLLM works on it."""

from collections import deque
from dataclasses import dataclass, field

from workers.api.messages import TokenLogprobs
from workers.engines.base import SeqId
from workers.engines.paged.stored import StoredSequence
from workers.kv.pool import BlockTable


@dataclass(slots=True, eq=False)
class Run:
    """One request of vLLM's.

    `given`: leading tokens of the sequence that the run has, those it sampled included; `fresh` of
    them are its own. `told`: tokens it sampled whose history's KV is not here yet. `off`: it went
    another way than the sequence. `table`: of a sequence that was closed meanwhile. `news_at`: when
    anything was heard of it, by the engine's clock.
    """

    id: int
    row: int
    seq: SeqId
    given: int
    news_at: float
    fresh: int = 0
    told: deque[tuple[int, TokenLogprobs | None]] = field(default_factory=deque)
    off: bool = False
    over: bool = False
    revoked: bool = False
    table: BlockTable | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class VllmSequence(StoredSequence):
    """`run`: until it is settled, vLLM may write into the sequence's blocks. `cut`: tokens to
    which the table is to be cut then.
    """

    run: Run | None = None
    cut: int | None = None

    def truncate(self, length: int) -> None:
        super(VllmSequence, self).truncate(length)
        if self.run is not None and length < self.run.given:
            self.run.off = True
