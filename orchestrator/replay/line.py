"""KV on its way from one site to another: first come, first served, at a rate, after a delay."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.replay.leg import LegKey
from orchestrator.virtual.schedule import Schedule


@dataclass(slots=True, eq=False)
class Transfer:
    """KV of one leg for another. `since`: when the first of it was there to be sent."""

    source: LegKey
    target: LegKey
    to_worker: str
    line: "Line"
    nbytes: int
    since: float
    dropped: bool = False


class Line:
    """One direction of the path between two sites.

    `leaving(transfer, at)` is told when a transfer begins: its last byte will leave at `at`.
    `landed(transfer)` when all of it is there. A transfer is sent once its KV is complete; what
    the line could send of it while it was computed is counted as sent by then.
    """

    def __init__(
        self,
        schedule: Schedule,
        *,
        bytes_per_s: float,
        delay_s: float,
        leaving: Callable[[Transfer, float], None],
        landed: Callable[[Transfer], None],
    ) -> None:
        self._schedule = schedule
        self._bytes_per_s = bytes_per_s
        self._delay_s = delay_s
        self._leaving = leaving
        self._landed = landed
        self._waiting: deque[Transfer] = deque()
        self._current: Transfer | None = None
        self._free_at = 0.0

    def send(self, transfer: Transfer) -> None:
        """Take a transfer whose KV is complete."""
        self._waiting.append(transfer)
        if self._current is None:
            self._next()

    def drop(self, transfer: Transfer) -> None:
        """Nobody wants it any more; what has left the line's near end is lost at the far one."""
        transfer.dropped = True
        if self._current is transfer:
            self._free_at = self._schedule.now
            self._next()

    def _next(self) -> None:
        now = self._schedule.now
        while self._waiting and self._waiting[0].dropped:
            self._waiting.popleft()
        self._current = self._waiting.popleft() if self._waiting else None
        if self._current is None:
            return
        sending_s = self._current.nbytes / self._bytes_per_s
        began_at = max(self._free_at, self._current.since, now - sending_s)
        at = max(now, began_at + sending_s)
        self._free_at = at
        self._schedule.at(at, self._sent, self._current)
        self._leaving(self._current, at)

    def _sent(self, transfer: Transfer) -> None:
        if self._current is transfer:
            self._schedule.after(self._delay_s, self._landed, transfer)
            self._next()
