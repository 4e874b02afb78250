"""A sender's connections: what is still to be written on each but pieces, and whether it lives."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from transport.stream.frames import Cancel, Frame, Ping, Pong
from transport.stream.outgoing import Conn
from transport.stream.pace import RoundTrip

SILENCE_S = 20.0  # a connection on which nothing was heard for so long is dead
PING_EVERY_S = 5.0
_MAX_UNTOLD = 4096


@dataclass(slots=True)
class _Connection:
    heard_at: float
    ping_at: float
    control: deque[Frame] = field(default_factory=deque)
    cancelled: list[Cancel] = field(default_factory=list)  # written here, and perhaps not heard
    pinged: tuple[int, int] | None = None  # stamp, and how many of `cancelled` went before it


class Connections:
    """The connections that are up, in the order they came.

    A `Cancel` is told again on another connection until a pong shows that it was heard: nothing
    else would end the stream at the receiver.
    """

    def __init__(self) -> None:
        self.round_trip = RoundTrip()
        self._connections: dict[Conn, _Connection] = {}
        self._untold: deque[Cancel] = deque(maxlen=_MAX_UNTOLD)

    def __len__(self) -> int:
        return len(self._connections)

    def __iter__(self) -> Iterator[Conn]:
        return iter(list(self._connections))

    def __contains__(self, conn: Conn) -> bool:
        return conn in self._connections

    def add(self, conn: Conn, now: float) -> None:
        """A connection is up."""
        self._connections[conn] = _Connection(heard_at=now, ping_at=now + PING_EVERY_S)
        while self._untold:
            self.cancel(self._untold.popleft())

    def remove(self, conn: Conn) -> None:
        """A connection broke."""
        for cancel in self._connections.pop(conn).cancelled:
            self.cancel(cancel)

    def listen(self, now: float) -> None:
        """Silence counts from now on: nothing was under way before."""
        for connection in self._connections.values():
            connection.heard_at, connection.ping_at = now, now + PING_EVERY_S

    def heard(self, conn: Conn, frame: Frame, now: float) -> None:
        """Something arrived on `conn`."""
        connection = self._connections[conn]
        connection.heard_at = now
        if (
            isinstance(frame, Pong)
            and connection.pinged is not None
            and frame.stamp == connection.pinged[0]
        ):
            self.round_trip.add(now - frame.stamp / 1e9)
            del connection.cancelled[: connection.pinged[1]]
            connection.pinged = None

    # ------------------------------------------------------------ what is to be written

    def post(self, frame: Frame, conn: Conn | None = None) -> Conn | None:
        """Write a frame on `conn`, or else on the first; None: there is no connection."""
        if conn is None:
            conn = next(iter(self._connections), None)
        if conn is not None:
            self._connections[conn].control.append(frame)
        return conn

    def cancel(self, cancel: Cancel) -> None:
        """Tell the receiver for sure."""
        conn = self.post(cancel)
        if conn is None:
            self._untold.append(cancel)
        else:
            self._connections[conn].cancelled.append(cancel)

    def least_busy(self) -> Conn:
        """Where a frame goes out soonest."""
        return min(self._connections, key=lambda conn: len(self._connections[conn].control))

    def has_control(self, conn: Conn) -> bool:
        """Whether `control` would give a frame."""
        return conn in self._connections and bool(self._connections[conn].control)

    def control(self, conn: Conn) -> list[Frame]:
        """What to write on `conn` before any piece."""
        if conn not in self._connections:
            return []
        control = self._connections[conn].control
        frames = list(control)
        control.clear()
        return frames

    # ------------------------------------------------------------ time

    def deadlines(self) -> Iterator[float]:
        """When to ping and when to hang up, while something is under way."""
        for connection in self._connections.values():
            yield connection.ping_at
            yield connection.heard_at + SILENCE_S

    def ping(self, now: float) -> None:
        """Ping where it is time."""
        for connection in self._connections.values():
            if now >= connection.ping_at:
                connection.ping_at = now + PING_EVERY_S
                stamp = int(now * 1e9)
                connection.control.append(Ping(stamp))
                if connection.pinged is None:
                    connection.pinged = stamp, len(connection.cancelled)

    def silent(self, now: float) -> list[Conn]:
        """Connections on which nothing was heard for too long."""
        return [c for c, held in self._connections.items() if now >= held.heard_at + SILENCE_S]
