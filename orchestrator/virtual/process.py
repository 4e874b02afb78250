"""A process in virtual time: it can be killed, frozen and started again, and has its own clock."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.virtual.schedule import Call, Schedule

if TYPE_CHECKING:
    from orchestrator.virtual.network import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockError:
    """How a process's clock differs: it began at `offset_s`, and runs at `rate` times real time."""

    offset_s: float = 0.0
    rate: float = 1.0


class Process:
    """What all processes have in common.

    `life` counts its starts: a call that was meant for an earlier life is dropped. While it is
    frozen, calls wait; a dead one does nothing.
    """

    def __init__(
        self, name: str, site: str, schedule: Schedule, clock: ClockError = ClockError()
    ) -> None:
        self.name = name
        self.site = site
        self.schedule = schedule
        self.life = 0
        self.alive = False
        self.frozen = False
        self.thawed_at = 0.0
        self.connections: dict[Connection, None] = {}  # in the order they were opened
        self._offset_s, self._rate = clock.offset_s, clock.rate
        self._latest = 0.0
        self._waiting: list[tuple[Call, tuple[Any, ...]]] = []

    # ------------------------------------------------------------ its own time

    def time(self) -> float:
        """Now, on this process's own monotonic clock."""
        time = self._offset_s + self._rate * self.schedule.now
        if time > self._latest:
            self._latest = time
        return self._latest

    def alarm(self, due: float, call: Call, *args: Any) -> None:
        """Call when this process's clock shows `due`, if it is still the same life."""
        when = (due - self._offset_s) / self._rate
        self.schedule.at(when, self._ring, self.life, due, call, args)

    def after(self, delay_s: float, call: Call, *args: Any) -> None:
        """Call in `delay_s` of its own time."""
        due = self.time() + delay_s
        when = (due - self._offset_s) / self._rate
        self.schedule.at(when, self._ring, self.life, due, call, args)

    def _ring(self, life: int, due: float, call: Call, args: tuple[Any, ...]) -> None:
        if life == self.life and self.alive:
            if due > self._latest:
                self._latest = due  # rounding must not make it a moment too early
            self.do(call, *args)

    # ------------------------------------------------------------ life and death

    def start(self) -> None:
        """A new life."""
        self.life += 1
        self.alive, self.frozen = True, False
        self._waiting.clear()
        self._latest = self._offset_s + self._rate * self.schedule.now

    def kill(self) -> None:
        """SIGKILL: the other ends of its connections hear of it from the kernel."""
        if not self.alive:
            return
        self.life += 1
        self.alive = self.frozen = False
        self._waiting.clear()
        for connection in list(self.connections):
            connection.died(self)

    def freeze(self) -> None:
        """SIGSTOP: what comes waits."""
        self.frozen = self.alive

    def thaw(self) -> None:
        """SIGCONT: what waited is done, in order."""
        if not self.frozen:
            return
        self.frozen = False
        self.thawed_at = self.schedule.now
        while self._waiting and not self.frozen and self.alive:
            call, args = self._waiting.pop(0)
            call(*args)

    def do(self, call: Call, *args: Any) -> None:
        """Make a call in this process: now, after the thaw, or never."""
        if self.frozen:
            self._waiting.append((call, args))
        elif self.alive:
            call(*args)
