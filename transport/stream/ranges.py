"""A set of integers kept as merged, sorted, half-open ranges."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class Ranges:
    """Starts empty; neighbours are merged, so a contiguous arrival is one range."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._starts, self._stops, strict=True))

    def add(self, start: int, stop: int) -> int:
        """Add [start, stop); returns how many of its integers were not there."""
        low = bisect_left(self._stops, start)
        high = bisect_right(self._starts, stop)
        merged = zip(self._starts[low:high], self._stops[low:high], strict=True)
        known = sum(max(0, min(b, stop) - max(a, start)) for a, b in merged)
        if low < high:
            first = min(start, self._starts[low])
            last = max(stop, self._stops[high - 1])
        else:
            first, last = start, stop
        self._starts[low:high] = [first]
        self._stops[low:high] = [last]
        return stop - start - known

    def covers(self, start: int, stop: int) -> bool:
        """Whether all of [start, stop) is there."""
        at = bisect_right(self._starts, start) - 1
        return at >= 0 and self._stops[at] >= stop
