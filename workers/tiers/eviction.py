"""Who leaves first: small policies behind one interface. They know keys, and no sizes."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol


class Policy(Protocol):
    """An order in which keys leave. `victim` takes its answer out; KeyError when there is none."""

    def add(self, key: bytes) -> None: ...
    def hit(self, key: bytes) -> None: ...
    def remove(self, key: bytes) -> None: ...
    def victim(self) -> bytes: ...


class LRU:
    """Least recently used first."""

    def __init__(self) -> None:
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def add(self, key: bytes) -> None:
        self._keys[key] = None

    def hit(self, key: bytes) -> None:
        self._keys.move_to_end(key)

    def remove(self, key: bytes) -> None:
        del self._keys[key]

    def victim(self) -> bytes:
        return self._keys.popitem(last=False)[0]


class S3FIFO:
    """What is seldom asked for leaves before it displaces what is asked for often.

    Newcomers pass a small queue, a tenth of all; whoever was hit twice in it goes on to the main
    queue, the others leave, but are remembered as ghosts and go straight to main if they come
    again. In main each hit, up to three, is worth another round. After Yang and others, "FIFO
    queues are all you need for cache eviction", SOSP 2023.
    """

    def __init__(self) -> None:
        self._small: OrderedDict[bytes, int] = OrderedDict()  # hits, at most three
        self._main: OrderedDict[bytes, int] = OrderedDict()
        self._ghosts: OrderedDict[bytes, None] = OrderedDict()

    def add(self, key: bytes) -> None:
        if key in self._ghosts:
            del self._ghosts[key]
            self._main[key] = 0
        else:
            self._small[key] = 0

    def hit(self, key: bytes) -> None:
        queue = self._small if key in self._small else self._main
        queue[key] = min(3, queue[key] + 1)

    def remove(self, key: bytes) -> None:
        del (self._small if key in self._small else self._main)[key]

    def victim(self) -> bytes:
        while self._small and (not self._main or 9 * len(self._small) >= len(self._main)):
            key, hits = self._small.popitem(last=False)
            if hits < 2:
                self._ghosts[key] = None
                while len(self._ghosts) > len(self._main) + len(self._small):
                    self._ghosts.popitem(last=False)
                return key
            self._main[key] = 0
        while True:
            key, hits = self._main.popitem(last=False)
            if not hits:
                return key
            self._main[key] = hits - 1


POLICIES: dict[str, Callable[[], Policy]] = {"lru": LRU, "s3-fifo": S3FIFO}
