"""Requests that wait for a place, in the order in which they are tried."""

from bisect import insort
from collections import OrderedDict
from itertools import chain, islice

from orchestrator.lifecycle.request import Request

_BEGUN = (False, 0)


class WaitingLine:
    """First those whose client has tokens already, then the others: the smallest `priority` first.

    Each as they came, among those that are alike.
    """

    def __init__(self) -> None:
        # By (has no tokens yet, priority); `_ranks` has the keys in order.
        self._lines: dict[tuple[bool, int], OrderedDict[str, None]] = {}
        self._ranks: list[tuple[bool, int]] = []
        self._rank_of: dict[str, tuple[bool, int]] = {}
        self.length = 0  # looked at after every event

    def __len__(self) -> int:
        return self.length

    def __contains__(self, name: str) -> bool:
        return name in self._rank_of

    def add(self, req: Request) -> None:
        """It waits from now on, or still: then it keeps its place. Nobody gets tokens meanwhile."""
        if req.name in self._rank_of:
            return
        rank = _BEGUN if req.law.ids else (True, req.spec.priority)
        line = self._lines.get(rank)
        if line is None:
            line = self._lines[rank] = OrderedDict()
            insort(self._ranks, rank)
        line[req.name] = None
        self._rank_of[req.name] = rank
        self.length = len(self._rank_of)

    def discard(self, name: str) -> None:
        """It does not wait, whether it did or not."""
        rank = self._rank_of.pop(name, None)
        if rank is None:
            return
        line = self._lines[rank]
        del line[name]
        if not line:
            del self._lines[rank]
            self._ranks.remove(rank)
        self.length = len(self._rank_of)

    def behind(self, passed: int) -> str | None:
        """Who stands behind the first `passed`; None: nobody."""
        lines = (self._lines[rank] for rank in self._ranks)
        return next(islice(chain.from_iterable(lines), passed, None), None)
