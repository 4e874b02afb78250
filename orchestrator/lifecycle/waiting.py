"""Requests that wait for a place, in the order in which they are tried."""

import heapq
from bisect import insort
from collections import Counter, OrderedDict
from collections.abc import Iterator
from itertools import chain, islice

from orchestrator.lifecycle.request import Request

_BEGUN = (False, 0)


class WaitingLine:
    """First those whose client has tokens already, then the others: the smallest `priority` first.

    Among those that are alike tenants take turns, each tenant's as they came.
    """

    def __init__(self) -> None:
        # By (has no tokens yet, priority); `_ranks` has the keys in order.
        self._lines: dict[tuple[bool, int], _Line] = {}
        self._ranks: list[tuple[bool, int]] = []
        self._place_of: dict[str, tuple[tuple[bool, int], str]] = {}  # rank and tenant
        self._unbegun: Counter[str] = Counter()  # of each tenant, those without tokens
        self.length = 0  # looked at after every event

    def __len__(self) -> int:
        return self.length

    def __contains__(self, name: str) -> bool:
        return name in self._place_of

    def add(self, req: Request) -> None:
        """It waits from now on, or still: then it keeps its place. Nobody gets tokens meanwhile."""
        if req.name in self._place_of:
            return
        rank, tenant = _BEGUN if req.law.ids else (True, req.spec.priority), req.spec.tenant
        line = self._lines.get(rank)
        if line is None:
            line = self._lines[rank] = _Line()
            insort(self._ranks, rank)
        line.add(req.name, tenant, len(req.spec.prompt_ids) + req.spec.limit)
        self._place_of[req.name] = rank, tenant
        self._unbegun[tenant] += rank is not _BEGUN
        self.length = len(self._place_of)

    def placed(self, name: str) -> None:
        """It was served, if it waited: the next turn is another tenant's."""
        self._remove(name, served=True)

    def discard(self, name: str) -> None:
        """It does not wait, whether it did or not."""
        self._remove(name, served=False)

    def behind(self, passed: int) -> str | None:
        """Who stands behind the first `passed`; None: nobody."""
        lines = (self._lines[rank].names() for rank in self._ranks)
        return next(islice(chain.from_iterable(lines), passed, None), None)

    def in_excess(self, tenant: str) -> str | None:
        """Who gives way to one more of `tenant` where the line is full; None: nobody.

        The last of the tenant that has most here, if that still has as many as `tenant` then.
        """
        if not self._unbegun:
            return None
        most = max(self._unbegun, key=lambda name: (self._unbegun[name], name))
        if self._unbegun[most] <= self._unbegun[tenant] + 1:
            return None
        lines = (self._lines[rank] for rank in reversed(self._ranks) if rank is not _BEGUN)
        return next(last for line in lines if (last := line.last(most)) is not None)

    def _remove(self, name: str, *, served: bool) -> None:
        place = self._place_of.pop(name, None)
        if place is None:
            return
        rank, tenant = place
        line = self._lines[rank]
        line.remove(name, tenant, served=served)
        if line.empty:
            del self._lines[rank]
            self._ranks.remove(rank)
        self._unbegun[tenant] -= rank is not _BEGUN
        if not self._unbegun[tenant]:
            del self._unbegun[tenant]
        self.length = len(self._place_of)


class _Line:
    """Those of one rank: tenants are served alike many tokens, as far as they ask for them.

    Start-time fair queueing (Goyal, Vin, Cheng, "Start-time Fair Queuing", SIGCOMM 1996): each has
    a start, the later of its tenant's last end and the start of who was served last; its end is so
    many tokens later. The smallest start is next.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, OrderedDict[str, tuple[int, int]]] = {}  # (start, number) by name
        self._end: dict[str, int] = {}  # of each tenant's last
        self._served = 0  # the start of who was served last
        self._count = 0

    @property
    def empty(self) -> bool:
        return not self._waiting

    def add(self, name: str, tenant: str, tokens: int) -> None:
        start = max(self._served, self._end.get(tenant, 0))
        self._end[tenant] = start + tokens
        self._count += 1
        self._waiting.setdefault(tenant, OrderedDict())[name] = start, self._count

    def remove(self, name: str, tenant: str, *, served: bool) -> None:
        """Who leaves unserved has cost its tenant nothing, if it was its last."""
        theirs = self._waiting[tenant]
        last = next(reversed(theirs)) == name
        start, _ = theirs.pop(name)
        if not theirs:
            del self._waiting[tenant]
        if served:
            self._served = max(self._served, start)
        elif last:
            self._end[tenant] = start

    def names(self) -> Iterator[str]:
        """In their order."""
        if len(self._waiting) == 1:
            (theirs,) = self._waiting.values()
            return iter(theirs)
        each = ([(at, name) for name, at in theirs.items()] for theirs in self._waiting.values())
        return (name for _, name in heapq.merge(*each))

    def last(self, tenant: str) -> str | None:
        """Who came last of a tenant's."""
        theirs = self._waiting.get(tenant)
        return None if theirs is None else next(reversed(theirs))
