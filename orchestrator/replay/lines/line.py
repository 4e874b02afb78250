"""KV on its way from one site to another: first come, first served, at a rate, after a delay."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.replay.leg import LegKey
from orchestrator.virtual.schedule import Schedule


@dataclass(slots=True, eq=False)
class Transfer:
    """KV of one leg for another. `since`: when the first of it could be sent.

    `last_nbytes`: of the last chunk of a prefill, which is there only when all is.
    """

    source: LegKey
    target: LegKey
    to_worker: str
    line: "Line"
    nbytes: int
    last_nbytes: int
    since: float
    dropped: bool = False


class Line:
    """One direction of the path between two sites.

    `leaving(transfer, at)` is told when a transfer has to wait, and when it begins: its last byte
    will leave at `at`, as it looks now.
    `landed(transfer)` when all of it is there, or would have been if it was dropped. A transfer is
    sent once its KV is complete; what the line could send of it while it was computed is counted
    as sent by then.
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
        self._waiting_bytes = 0
        self._current: Transfer | None = None
        self._free_at = 0.0

    def send(self, transfer: Transfer) -> None:
        """Take a transfer whose KV is complete."""
        now = self._schedule.now
        if self._waiting or self._free_at > now:
            if not self._waiting:
                self._schedule.at(self._free_at, self._next, self._current)
            self._waiting.append(transfer)
            self._waiting_bytes += transfer.nbytes
            self._leaving(transfer, self._free_at + self._waiting_bytes / self._bytes_per_s)
        else:
            self._begin(transfer, now)

    def drop(self, transfer: Transfer) -> None:
        """Nobody wants it any more; what is on its way is lost at the far end."""
        transfer.dropped = True
        now = self._schedule.now
        if transfer is self._current and self._free_at > now:
            self._free_at = now
            self._next(transfer)

    def _begin(self, transfer: Transfer, now: float) -> None:
        sending_s = transfer.nbytes / self._bytes_per_s
        last_s = min(sending_s, transfer.last_nbytes / self._bytes_per_s)
        began_at = max(self._free_at, transfer.since, now + last_s - sending_s)
        self._free_at = began_at + sending_s
        self._current = transfer
        self._schedule.at(self._free_at + self._delay_s, self._landed, transfer)
        self._leaving(transfer, self._free_at)

    def _next(self, ended: Transfer) -> None:
        """A transfer has left or was dropped: the next one that is wanted begins."""
        if ended is not self._current:
            return  # it was dropped before its time
        waiting = self._waiting
        while waiting and waiting[0].dropped:
            self._waiting_bytes -= waiting.popleft().nbytes
        if waiting:
            transfer = waiting.popleft()
            self._waiting_bytes -= transfer.nbytes
            self._begin(transfer, self._schedule.now)
        if waiting:
            self._schedule.at(self._free_at, self._next, self._current)
