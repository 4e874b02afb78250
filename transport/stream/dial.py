"""When to dial: so many warm connections to one peer, and patience with one that is not there."""

_REDIAL_S = (0.05, 0.1, 0.2, 0.5, 1.0)


class Dials:
    """Counts connections that are up and under way; `due` says how many to begin now.

    Connections are made when there is something to send, and stay when it is sent.
    """

    def __init__(self, connections: int) -> None:
        self.connections = connections
        self._up = 0
        self._under_way = 0
        self._tries = 0  # that came to nothing, since one last did
        self._next_at: float | None = None  # None: no more are wanted now

    def want(self, now: float) -> None:
        """There is something to send."""
        if self._next_at is None and self._up + self._under_way < self.connections:
            self._next_at = now

    def due(self, now: float) -> int:
        """How many connections to begin; they count as under way."""
        if self._next_at is None or now < self._next_at:
            return 0
        self._next_at = None
        # After a failure one is enough to find out whether the peer is back.
        most = 1 if self._tries else self.connections
        begin = min(most, self.connections - self._up - self._under_way)
        self._under_way += max(0, begin)
        return max(0, begin)

    def up(self, now: float) -> None:
        """One under way is up."""
        self._under_way -= 1
        self._up += 1
        self._tries = 0
        self.want(now)

    def failed(self, now: float, *, again: bool) -> None:
        """One under way came to nothing."""
        self._under_way -= 1
        self._later(now, again)

    def down(self, now: float, *, again: bool) -> None:
        """One that was up broke."""
        self._up -= 1
        self._later(now, again)

    def next_deadline(self) -> float | None:
        """When `due` has something to say; None: not as things are."""
        return self._next_at

    def _later(self, now: float, again: bool) -> None:
        if not again:
            self._tries = 0
        elif self._next_at is None:  # connections that break together are one failure
            self._next_at = now + _REDIAL_S[min(self._tries, len(_REDIAL_S) - 1)]
            self._tries += 1
