"""The network between processes: delay, rate, partitions, accidents on the way."""

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from orchestrator.state.views import SAME_SITE_BYTES_PER_S, SAME_SITE_RTT_S
from orchestrator.virtual.process import Process
from orchestrator.virtual.schedule import Call, Schedule

SAME_SITE_S = SAME_SITE_RTT_S / 2

Ends = tuple[str, str]  # from, to: names of sites or of processes
Drop = Callable[[str, object], bool]  # a worker, and a message to or from it
OnEnd = Callable[[str], object]  # told why a connection ended


@dataclass(slots=True, kw_only=True)
class Accidents:
    """What befalls messages now: each a probability per message, but `delay_s`.

    `delay_s`: up to this much is added to a message's way, so that messages overtake each other.
    """

    lost: float = 0.0
    repeated: float = 0.0
    corrupt: float = 0.0
    delay_s: float = 0.0

    @property
    def any(self) -> bool:
        return bool(self.lost or self.repeated or self.corrupt or self.delay_s)


@dataclass(slots=True)
class Line:
    """One direction between two sites, as KV uses it: first come, first served."""

    bytes_per_s: float
    free_at: float = 0.0


@dataclass(slots=True)
class Network:
    """Delivers calls from process to process.

    A partition holds what is under way in its direction until it is healed, as TCP would; whoever
    cannot wait closes the connection, and what it held is gone.
    """

    schedule: Schedule
    random: Random
    one_way_s: float
    bytes_per_s: float
    jitter_s: float = 0.0
    accidents: Accidents = field(default_factory=Accidents)
    drop: Drop | None = None  # a story's own accident: whether this message is lost
    _cuts: dict[Ends, int] = field(default_factory=dict)  # how many faults cut it now
    _held: dict[Ends, list[tuple[Process, Process, Call, tuple[Any, ...]]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _lines: dict[Ends, Line] = field(default_factory=dict)

    # ------------------------------------------------------------ partitions

    def cut(self, source: str, target: str) -> None:
        """Nothing passes from `source` to `target` (sites, or processes)."""
        self._cuts[source, target] = self._cuts.get((source, target), 0) + 1

    def heal(self, source: str, target: str) -> None:
        """Undo one `cut`; what was held goes on its way once none is left."""
        ends = source, target
        self._cuts[ends] -= 1
        if self._cuts[ends]:
            return
        del self._cuts[ends]
        for near, far, call, args in self._held.pop(ends, ()):
            self.schedule.after(self.base_s(near, far), self.arrive, near, far, call, args)

    def cut_between(self, source: Process, target: Process) -> Ends | None:
        """The cut that a message on this way runs into; None: the way is free."""
        if not self._cuts:
            return None
        for ends in ((source.site, target.site), (source.name, target.name)):
            if ends in self._cuts:
                return ends
        return None

    # ------------------------------------------------------------ messages

    def base_s(self, source: Process, target: Process) -> float:
        """Seconds one way, without jitter."""
        return SAME_SITE_S if source.site == target.site else self.one_way_s

    def delay_s(self, source: Process, target: Process) -> float:
        """Seconds one way for the next message."""
        delay = self.base_s(source, target)
        if self.jitter_s and source.site != target.site:
            delay += self.random.random() * self.jitter_s
        return delay

    def send(self, source: Process, target: Process, call: Call, *args: Any) -> None:
        """Make a call in `target` once the message is there; messages may overtake each other."""
        delay = self.delay_s(source, target)
        if self.accidents.delay_s:
            delay += self.random.random() * self.accidents.delay_s
        self.schedule.after(delay, self.arrive, source, target, call, args)

    def rate_bytes_per_s(self, source: Process, target: Process) -> float:
        """What the KV line between two processes' sites carries."""
        return SAME_SITE_BYTES_PER_S if source.site == target.site else self.bytes_per_s

    def hits(self, chance: float) -> bool:
        """Whether an accident of this probability happens now."""
        return chance > 0.0 and self.random.random() < chance

    def loses(self, worker: str, message: object) -> bool:
        """Whether this message to or from a worker does not arrive."""
        return self.hits(self.accidents.lost) or (
            self.drop is not None and self.drop(worker, message)
        )

    def send_s(self, source: Process, target: Process, nbytes: int) -> float:
        """Put KV on the line between two sites; seconds from now until its last byte has left."""
        ends = source.site, target.site
        line = self._lines.get(ends)
        if line is None:
            line = self._lines[ends] = Line(self.rate_bytes_per_s(source, target))
        line.free_at = max(line.free_at, self.schedule.now) + nbytes / line.bytes_per_s
        return line.free_at - self.schedule.now

    def arrive(self, source: Process, target: Process, call: Call, args: tuple[Any, ...]) -> None:
        """A message has come as far as a partition lets it."""
        ends = self.cut_between(source, target)
        if ends is not None:
            self._held[ends].append((source, target, call, args))
        else:
            call(*args)


class Connection:
    """An ordered pipe between two processes, open until one end closes it or dies.

    `near` opens it and may send at once. `near_end` and `far_end` are called with the reason in
    the process that hears of the end; the one that closes it hears nothing. Calls go through
    `Process.do` of the end they are for.
    """

    def __init__(
        self, network: Network, near: Process, far: Process, *, near_end: OnEnd, far_end: OnEnd
    ) -> None:
        self.near, self.far = near, far
        self._network = network
        self._on_end = {near: near_end, far: far_end}
        self._life: dict[Process, int | None] = {near: near.life, far: None}  # None: not yet there
        # Arrivals at each end keep their order, also when a partition held some of them, and not
        # those after them.
        self._latest = {near: 0.0, far: 0.0}
        self._coming: dict[Process, deque[tuple[Call, tuple[Any, ...]]]]
        self._coming = {near: deque(), far: deque()}
        self._over = {near: False, far: False}  # which ends know that it has ended
        self._reset = False
        near.connections[self] = None
        self._transmit(near, far, 0, self._reached, ())

    @property
    def reached(self) -> bool:
        """Whether the far kernel has taken it."""
        return self._life[self.far] is not None

    def open_at(self, end: Process) -> bool:
        """Whether this end believes that it is open."""
        return not self._over[end]

    def send(self, source: Process, call: Call, *args: Any, nbytes: int = 0) -> None:
        """Make a call at the other end, after everything sent before; lost when it breaks.

        With `nbytes` it takes its turn on the KV line between the two sites.
        """
        if not self._over[source]:
            target = self.far if source is self.near else self.near
            self._transmit(source, target, nbytes, self._deliver, (target, call, args))

    def close(self, end: Process, reason: str) -> None:
        """One end closes; the other hears it after what was sent before."""
        if self._over[end]:
            return
        target = self.far if end is self.near else self.near
        self._transmit(end, target, 0, self._deliver, (target, self._end, (target, reason)))
        self._forget(end)

    def reset(self, reason: str) -> None:
        """An accident on the way: what is in flight is lost, both ends hear of it."""
        if self._reset:
            return
        self._reset = True
        for end in (self.near, self.far):
            self._network.schedule.after(SAME_SITE_S, self._hear_end, end, reason)

    def died(self, end: Process) -> None:
        """The kernel of a killed process closes its end."""
        self.close(end, f"{end.name} died")

    # ------------------------------------------------------------ on the way

    def _transmit(
        self, source: Process, target: Process, nbytes: int, call: Call, args: tuple[Any, ...]
    ) -> None:
        network = self._network
        at = network.schedule.now + network.delay_s(source, target)
        if nbytes:
            at += network.send_s(source, target, nbytes)
        at = self._latest[target] = max(at, self._latest[target])
        self._coming[target].append((call, args))
        network.schedule.at(at, network.arrive, source, target, self._next, (target,))

    def _next(self, target: Process) -> None:
        call, args = self._coming[target].popleft()
        call(*args)

    def _reached(self) -> None:
        """The far kernel takes the connection, or refuses it for want of a listener."""
        if self._reset:
            return
        if self.far.alive:
            self._life[self.far] = self.far.life
            self.far.connections[self] = None
        else:
            reason = f"{self.far.name} refused the connection"
            self._transmit(self.far, self.near, 0, self._hear_end, (self.near, reason))

    def _deliver(self, target: Process, call: Call, args: tuple[Any, ...]) -> None:
        if self._reset or target.life != self._life[target] or self._over[target]:
            return
        if target.frozen:
            target.do(self._deliver, target, call, args)  # it may be over by then
        else:
            call(*args)

    def _hear_end(self, end: Process, reason: str) -> None:
        if end.life == self._life[end]:
            end.do(self._end, end, reason)

    def _end(self, end: Process, reason: str) -> None:
        if not self._over[end]:
            self._forget(end)
            self._on_end[end](reason)

    def _forget(self, end: Process) -> None:
        self._over[end] = True
        end.connections.pop(self, None)
