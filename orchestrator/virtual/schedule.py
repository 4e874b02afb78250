"""Virtual time: one heap of calls, ordered by (time, order of planning)."""

import heapq
from collections.abc import Callable
from typing import Any

Call = Callable[..., object]


class Schedule:
    """Calls planned for later. Equal times keep the order in which they were planned."""

    def __init__(self) -> None:
        self.now = 0.0
        self.done = 0  # calls made
        self._heap: list[tuple[float, int, Call, tuple[Any, ...]]] = []
        self._order = 0

    def at(self, when: float, call: Call, *args: Any) -> None:
        """Plan a call; one that is due already is made next, never in the past."""
        self._order += 1
        heapq.heappush(self._heap, (when if when > self.now else self.now, self._order, call, args))

    def after(self, delay_s: float, call: Call, *args: Any) -> None:
        self.at(self.now + delay_s, call, *args)

    def run(self, until: float, stop: Callable[[], bool] | None = None) -> bool:
        """Make the calls that are due up to `until`, or until `stop` says so after one of them.

        Whether it was stopped; the time is `until` if it was not.
        """
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, call, args = heapq.heappop(heap)
            self.done += 1
            call(*args)
            if stop is not None and stop():
                return True
        self.now = max(self.now, until)
        return False
