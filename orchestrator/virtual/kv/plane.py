"""One virtual worker's KV in and out: the transport's own machines over virtual connections."""

from collections import deque
from collections.abc import Callable

from orchestrator.virtual.kv.inlet import Call, Host, Inlet
from orchestrator.virtual.kv.outlet import Outlet
from orchestrator.virtual.kv.pipe import Reader
from orchestrator.virtual.network import Network
from orchestrator.virtual.process import Process
from transport.base import StreamId
from transport.stream.connections import PING_EVERY_S
from transport.tcp.wire import HANDSHAKE_S
from workers.outputs import OpenStream
from workers.streams.exports import Exports

Find = Callable[[str], "KVPlane | None"]

NEAR_S = min(HANDSHAKE_S, PING_EVERY_S)  # see `KVPlane._plan`


class KVPlane:
    """Lives as long as its worker. `find` gives the plane of a worker that is alive now, by name.

    Its verbs are for the worker's outputs; what becomes of a stream the core hears by
    `host.submit`, never inside a verb.
    """

    def __init__(self, host: Host, network: Network, find: Find) -> None:
        self._host = host
        self._network = network
        self._find = find
        self._exports = Exports(host.engine)
        self._outlets: dict[str, Outlet] = {}
        self._inlet = Inlet(
            host, network, tell=self._todo_later, settle=self._settle, wake=self._wake
        )
        self._todo: deque[Call] = deque()
        self._wake_at: float | None = None

    # ------------------------------------------------------------ what the core asks

    def open(self, order: OpenStream) -> None:
        """Send a stream, as it is computed."""
        outlet = self._outlets.get(order.address)
        if outlet is None:
            outlet = self._outlets[order.address] = self._outlet(order.address)
        self._exports.follow(order)
        outlet.open(order)
        self._asked()

    def close(self, stream: StreamId) -> None:
        """End a stream that is being sent."""
        for outlet in self._outlets.values():
            outlet.cancel(stream)
        self._asked()

    def drop(self, stream: StreamId) -> None:
        """Refuse what still arrives of a stream."""
        self._inlet.drop(stream)
        self._asked()

    def refresh(self) -> None:
        """After each step and turn: send what is computed now."""
        # A simulated step computes all layers at its end, so no listener is needed in it.
        if self._exports.refresh():
            for outlet in self._outlets.values():
                outlet.refresh()
            self._asked()

    @property
    def idle(self) -> bool:
        """No stream in or out, and nothing that the core has not heard."""
        out = any(outlet.busy for outlet in self._outlets.values())
        return not out and not self._inlet.busy and not self._todo

    @property
    def sent_bytes(self) -> int:
        """Coded bytes of KV that were written, repeats included."""
        return sum(outlet.sent_bytes for outlet in self._outlets.values())

    @property
    def resent_bytes(self) -> int:
        """Of `sent_bytes`, what had been written before."""
        return sum(outlet.resent_bytes for outlet in self._outlets.values())

    # ------------------------------------------------------------ inside

    def _outlet(self, peer: str) -> Outlet:
        def listen() -> Reader | None:
            plane = self._find(peer)
            return None if plane is None else plane._inlet

        def reach() -> tuple[Process, Callable[[], Reader | None]] | None:
            plane = self._find(peer)
            return None if plane is None else (plane._host.process, listen)

        return Outlet(
            self._host.process,
            self._network,
            self._host.engine,
            self._exports,
            peer,
            reach=reach,
            ended=self._export_ended,
            settle=self._settle,
            wake=self._wake,
        )

    def _export_ended(self, stream: StreamId, reason: str | None) -> None:
        if reason is None:
            self._todo.append(lambda worker, now: worker.export_completed(stream, now))
        else:
            self._todo.append(lambda worker, now: worker.export_failed(stream, reason, now))

    def _todo_later(self, call: Call) -> None:
        self._todo.append(call)

    def _asked(self) -> None:
        """After a verb of the core's: what it has to hear comes when it is done."""
        if self._todo:
            self._host.process.after(0.0, self._settle)
        self._inlet.answer()
        self._plan()

    def _settle(self) -> None:
        """After each event of our own."""
        while self._todo:
            self._host.submit(self._todo.popleft())
        self._inlet.answer()
        self._plan()

    def _plan(self) -> None:
        """One alarm for all, no later than the first deadline; too early, it plans again.

        Whoever sets a deadline nearer than NEAR_S says so, and when the alarm rings all are looked
        at; so if one rings as soon as that, there is no need to look now.
        """
        wake_at = self._wake_at
        if wake_at is None or wake_at > self._host.process.time() + NEAR_S:
            self._look_at_all()

    def _look_at_all(self) -> None:
        times = [outlet.next_deadline() for outlet in self._outlets.values()]
        times.append(self._inlet.next_deadline())
        due = min((t for t in times if t is not None), default=None)
        if due is not None:
            self._wake(due)

    def _wake(self, due: float) -> None:
        if self._wake_at is None or due < self._wake_at:
            self._wake_at = due
            self._host.process.alarm(due, self._ring, due)

    def _ring(self, due: float) -> None:
        if due != self._wake_at:
            return
        self._wake_at = None
        now = self._host.process.time()
        for outlet in self._outlets.values():
            outlet.expire(now)
        self._inlet.expire(now)
        self._settle()
        self._look_at_all()
