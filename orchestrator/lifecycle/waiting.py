"""Requests that wait for a place, in the order in which they are tried."""

from collections import OrderedDict
from itertools import chain, islice

from orchestrator.lifecycle.request import Request


class WaitingLine:
    """First those whose client has tokens already, then the others, each as they came."""

    def __init__(self) -> None:
        self._begun: OrderedDict[str, None] = OrderedDict()
        self._new: OrderedDict[str, None] = OrderedDict()
        self.length = 0  # looked at after every event

    def __len__(self) -> int:
        return self.length

    def __contains__(self, name: str) -> bool:
        return name in self._begun or name in self._new

    def add(self, req: Request) -> None:
        """It waits from now on, or still: then it keeps its place. Nobody gets tokens meanwhile."""
        (self._begun if req.law.ids else self._new)[req.name] = None
        self.length = len(self._begun) + len(self._new)

    def discard(self, name: str) -> None:
        """It does not wait, whether it did or not."""
        self._begun.pop(name, None)
        self._new.pop(name, None)
        self.length = len(self._begun) + len(self._new)

    def behind(self, passed: int) -> str | None:
        """Who stands behind the first `passed`; None: nobody."""
        return next(islice(chain(self._begun, self._new), passed, None), None)
