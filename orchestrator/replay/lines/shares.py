"""Who gets how much of a line at every moment: fluid, exact, O(log n) for each that comes or goes.

Pure: time is an argument and never runs backwards. A caller asks `next()` whose last byte goes
next, if nobody comes, and calls `pop()` at that time.
"""

import heapq
from collections import deque
from math import inf
from typing import Any, Protocol

from transport.stream.schedule import rank


class Flow:
    """Bytes of `item` that want to go, since `at`. `began_at`: when the first of them went.

    `left` is brought up to date when the flow changes hands, not in between. `told_at`: its end,
    as its owner was last told.
    """

    __slots__ = ("at", "began_at", "ends", "gone", "item", "left", "told_at", "weight")

    def __init__(self, item: Any, nbytes: float, *, at: float, weight: float = 1.0) -> None:
        self.item = item
        self.left = nbytes
        self.at = at
        self.weight = weight
        self.began_at: float | None = None
        self.ends: float | None = None  # on the line's own count; None: it waits
        self.gone = False
        self.told_at = inf


class Share(Protocol):
    """A way to share a line. `bytes_per_s`: what the line carries now, 0 while it is cut.

    `backlog`: bytes that are still to go, as of the last change.
    """

    bytes_per_s: float
    backlog: float

    def add(self, now: float, flow: Flow) -> None: ...

    def drop(self, now: float, flow: Flow) -> None: ...

    def set_rate(self, now: float, bytes_per_s: float) -> None: ...

    def used(self) -> float:
        """Bytes per second that go now."""
        ...

    def spare(self) -> float:
        """Bytes per second that could go besides."""
        ...

    def next(self) -> tuple[float, Flow] | None: ...

    def pop(self) -> Flow: ...


class Shared:
    """Equal shares, each at most `each_bytes_per_s`, for the first `at_once` come (None: for all).

    The rest wait in order; with `at_once` 1 that is first come, first served.
    """

    def __init__(
        self,
        bytes_per_s: float,
        *,
        each_bytes_per_s: float = inf,
        at_once: int | None = None,
    ) -> None:
        self.bytes_per_s = bytes_per_s
        self.backlog = 0.0
        self._each = each_bytes_per_s
        self._at_once = at_once
        # All under way have got the same bytes since they joined, so with `level` counting them
        # each ends at a level that is known when it joins.
        self._level = 0.0
        self._now = 0.0
        self._size = 0
        self._share = 0.0  # bytes per second of each
        self._order = 0
        self._ends: list[tuple[float, int, Flow]] = []
        self._waiting: deque[Flow] = deque()

    def add(self, now: float, flow: Flow) -> None:
        self._advance(now)
        self.backlog += flow.left
        if self._at_once is None or self._size < self._at_once:
            self._join(flow)
        else:
            self._waiting.append(flow)

    def drop(self, now: float, flow: Flow) -> None:
        self._advance(now)
        flow.gone = True
        if flow.ends is not None:
            flow.left = max(0.0, flow.ends - self._level)
        self.backlog -= flow.left
        if flow.ends is not None:
            self._leave()

    def set_rate(self, now: float, bytes_per_s: float) -> None:
        self._advance(now)
        self.bytes_per_s = bytes_per_s
        self._divide()

    def used(self) -> float:
        return self._size * self._share

    def spare(self) -> float:
        if self._size == self._at_once:
            return 0.0
        return max(0.0, self.bytes_per_s - self.used())

    def next(self) -> tuple[float, Flow] | None:
        ends = self._ends
        while ends and ends[0][2].gone:
            heapq.heappop(ends)
        if not self._share:
            return None
        return self._now + max(0.0, ends[0][0] - self._level) / self._share, ends[0][2]

    def pop(self) -> Flow:
        due = self.next()
        assert due is not None
        self._advance(due[0])
        self._level, _, flow = heapq.heappop(self._ends)
        flow.left = 0.0
        self._leave()
        return flow

    def _divide(self) -> None:
        self._share = min(self._each, self.bytes_per_s / self._size) if self._size else 0.0

    def _advance(self, now: float) -> None:
        step = self._share * (now - self._now)
        self._level += step
        self.backlog -= step * self._size
        self._now = now

    def _join(self, flow: Flow) -> None:
        self._order += 1
        self._size += 1
        flow.ends = self._level + flow.left
        flow.began_at = self._now
        heapq.heappush(self._ends, (flow.ends, self._order, flow))
        self._divide()

    def _leave(self) -> None:
        self._size -= 1
        waiting = self._waiting
        while waiting and waiting[0].gone:
            waiting.popleft()
        if waiting:
            self._join(waiting.popleft())
        elif not self._size:
            self._ends.clear()
            self._level = self.backlog = 0.0
        self._divide()


class Ranked:
    """The whole line to the flow of the lowest `rank` at every moment.

    Equal ranks: the one that began first, then the one that came first.
    """

    def __init__(self, bytes_per_s: float, *, ageing_bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.backlog = 0.0
        self._ageing = ageing_bytes_per_s
        self._now = 0.0
        self._order = 0
        self._under_way: Flow | None = None
        self._number = 0  # of the one under way, as they came
        # Ranks as of moment 0, so that those of waiting flows stand still (see `rank`). The rank of
        # the one under way only falls: nobody but one that comes can overtake it.
        self._waiting: list[tuple[float, float, int, Flow]] = []

    def add(self, now: float, flow: Flow) -> None:
        self._advance(now)
        self.backlog += flow.left
        self._order += 1
        entry = self._entry(flow, self._order)
        if self._under_way is not None:
            entry, other = sorted((entry, self._entry(self._under_way, self._number)))
            heapq.heappush(self._waiting, other)
        self._serve(entry)

    def drop(self, now: float, flow: Flow) -> None:
        self._advance(now)
        flow.gone = True
        self.backlog -= flow.left
        if flow is self._under_way:
            self._serve_next()

    def set_rate(self, now: float, bytes_per_s: float) -> None:
        self._advance(now)
        self.bytes_per_s = bytes_per_s

    def used(self) -> float:
        return 0.0 if self._under_way is None else self.bytes_per_s

    def spare(self) -> float:
        return self.bytes_per_s if self._under_way is None else 0.0

    def next(self) -> tuple[float, Flow] | None:
        flow = self._under_way
        if flow is None or not self.bytes_per_s:
            return None
        return self._now + flow.left / self.bytes_per_s, flow

    def pop(self) -> Flow:
        due = self.next()
        assert due is not None
        self._now, flow = due
        self.backlog -= flow.left
        flow.left = 0.0
        self._serve_next()
        return flow

    def _entry(self, flow: Flow, number: int) -> tuple[float, float, int, Flow]:
        place = rank(flow.left, -flow.at, flow.weight, self._ageing)
        return place, flow.at, number, flow

    def _advance(self, now: float) -> None:
        flow = self._under_way
        if flow is not None:
            step = min(flow.left, self.bytes_per_s * (now - self._now))
            flow.left -= step
            self.backlog -= step
        self._now = now

    def _serve(self, entry: tuple[float, float, int, Flow]) -> None:
        _, _, self._number, flow = entry
        self._under_way = flow
        if flow.began_at is None:
            flow.began_at = self._now

    def _serve_next(self) -> None:
        waiting = self._waiting
        while waiting and waiting[0][3].gone:
            heapq.heappop(waiting)
        if waiting:
            self._serve(heapq.heappop(waiting))
        else:
            self._under_way = None
            self.backlog = 0.0
