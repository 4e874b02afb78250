"""A model of one direction of a long line, without I/O: rate, delay, jitter, loss, precedence.

Bytes are counted, not carried: the caller keeps the bytes of each connection in order and hands
on as many as `pop` says. Time is an argument, so the same object serves an emulator in real time
and a replay in virtual time.
"""

import heapq
import random
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import IntEnum

Conn = Hashable

_QUANTUM_S = 0.001
_MIN_QUANTUM_BYTES = 1400
_MAX_QUANTUM_BYTES = 64 << 10
_PACKET_BYTES = 1448


class Plane(IntEnum):
    """Strict precedence: a lower number goes first whenever it has bytes waiting."""

    CONTROL = 0
    TOKENS = 1
    KV = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """One direction: `delay_s` one way, `jitter_s` its sigma, `loss` per 1448-byte packet."""

    delay_s: float
    rate_bytes_per_s: float
    jitter_s: float = 0.0
    loss: float = 0.0

    def __post_init__(self) -> None:
        if not self.rate_bytes_per_s > 0:
            raise ValueError(f"rate_bytes_per_s: must be > 0, got {self.rate_bytes_per_s}")
        if not (self.delay_s >= 0 and self.jitter_s >= 0):
            raise ValueError("delay_s and jitter_s: must be >= 0")
        if not 0 <= self.loss < 1:
            raise ValueError(f"loss: must be in [0, 1), got {self.loss}")

    @property
    def quantum_bytes(self) -> int:
        """What is sent in one go; the most that precedence has to wait for."""
        quantum = self.rate_bytes_per_s * _QUANTUM_S
        return int(max(_MIN_QUANTUM_BYTES, min(_MAX_QUANTUM_BYTES, quantum)))


@dataclass(slots=True)
class _Queue:
    """Bytes of one connection that wait for the line: (count, when pushed)."""

    chunks: deque[tuple[int, float]] = field(default_factory=deque)
    nbytes: int = 0


class LineDirection:
    """Push bytes in at one end, pop them at the other when their time has come.

    A push of 0 bytes is a mark (end of stream, reset): it takes no room on the line and arrives
    in its place behind the bytes before it.
    """

    def __init__(self, spec: LinkSpec, seed: int = 0) -> None:
        self.spec = spec
        self._random = random.Random(seed)
        self._queues: tuple[dict[Conn, _Queue], ...] = tuple({} for _ in Plane)
        self._flying: list[tuple[float, int, Conn, int]] = []  # (arrival, order, conn, bytes)
        self._order = 0
        self._free_at = 0.0  # when the line has sent what it took last
        self._latest: dict[Conn, float] = {}  # arrivals within a connection never reorder
        self._cut_at: float | None = None
        self.sent_bytes = dict.fromkeys(Plane, 0)

    @property
    def is_cut(self) -> bool:
        return self._cut_at is not None

    def queued_bytes(self, conn: Conn, plane: Plane) -> int:
        """Bytes of a connection that the line has not begun to send."""
        queue = self._queues[plane].get(conn)
        return 0 if queue is None else queue.nbytes

    def queued_total(self, plane: Plane) -> int:
        return sum(queue.nbytes for queue in self._queues[plane].values())

    def push(self, conn: Conn, plane: Plane, nbytes: int, now: float) -> None:
        queue = self._queues[plane].setdefault(conn, _Queue())
        queue.chunks.append((nbytes, now))
        queue.nbytes += nbytes

    def next_deadline(self) -> float | None:
        """When to call `pop`; None: nothing will happen without a push or a restore."""
        if self._cut_at is not None:
            return None
        times = [self._flying[0][0]] if self._flying else []
        if any(self._queues):
            times.append(self._free_at)
        return min(times, default=None)

    def pop(self, now: float) -> list[tuple[Conn, int]]:
        """Send what the line had time for until `now`; what has arrived, in order."""
        if self._cut_at is not None:
            return []
        while self._free_at <= now and self._send_one():
            pass
        arrived = []
        while self._flying and self._flying[0][0] <= now:
            _, _, conn, nbytes = heapq.heappop(self._flying)
            arrived.append((conn, nbytes))
        return arrived

    def forget(self, conn: Conn) -> None:
        """The connection is gone: drop what waits and what flies."""
        for queues in self._queues:
            queues.pop(conn, None)
        self._latest.pop(conn, None)
        self._flying = [entry for entry in self._flying if entry[2] != conn]
        heapq.heapify(self._flying)

    def cut(self, now: float) -> None:
        """Nothing moves until `restore`; nothing is lost."""
        if self._cut_at is None:
            self._cut_at = now

    def restore(self, now: float) -> None:
        """Go on where `cut` stopped: what was on the line arrives later by the time it was cut."""
        if self._cut_at is None:
            return
        late = now - self._cut_at
        self._cut_at = None
        self._flying = [(at + late, order, conn, n) for at, order, conn, n in self._flying]
        self._latest = {conn: at + late for conn, at in self._latest.items()}
        self._free_at = max(self._free_at + late, now)

    def _send_one(self) -> bool:
        """Put the next quantum on the line; False when nothing waits."""
        for plane in Plane:
            queues = self._queues[plane]
            if not queues:
                continue
            conn, queue = next(iter(queues.items()))
            del queues[conn]  # and in again at the end: round robin
            nbytes, start = self._take(queue)
            if queue.chunks:
                queues[conn] = queue
            self._free_at = max(self._free_at, start) + nbytes / self.spec.rate_bytes_per_s
            self._fly(conn, nbytes)
            self.sent_bytes[plane] += nbytes
            return True
        return False

    def _take(self, queue: _Queue) -> tuple[int, float]:
        """(bytes, when the last of them was pushed): a mark alone, or up to one quantum."""
        nbytes, pushed = queue.chunks.popleft()
        room = self.spec.quantum_bytes
        while nbytes and nbytes < room and queue.chunks and queue.chunks[0][0]:
            if queue.chunks[0][1] > max(pushed, self._free_at):
                break
            more, pushed = queue.chunks.popleft()
            nbytes += more
        if nbytes > room:
            queue.chunks.appendleft((nbytes - room, pushed))
            nbytes = room
        queue.nbytes -= nbytes
        return nbytes, pushed

    def _fly(self, conn: Conn, nbytes: int) -> None:
        spec = self.spec
        at = self._free_at + spec.delay_s
        if spec.jitter_s:
            at += abs(self._random.gauss(0.0, spec.jitter_s))
        if spec.loss:
            packets = -(-nbytes // _PACKET_BYTES)
            if self._random.random() >= (1 - spec.loss) ** packets:
                at += 2 * spec.delay_s  # seen missing and sent again: one round trip
        at = max(at, self._latest.get(conn, 0.0))
        self._latest[conn] = at
        self._order += 1
        heapq.heappush(self._flying, (at, self._order, conn, nbytes))
