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

    def next_at(self) -> float | None:
        """When the next call is due; None: nothing is planned."""
        return self._heap[0][0] if self._heap else None

    def step(self) -> None:
        """Make the next call. Raises IndexError when nothing is planned."""
        self.now, _, call, args = heapq.heappop(self._heap)
        self.done += 1
        call(*args)
