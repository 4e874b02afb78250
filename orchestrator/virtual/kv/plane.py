"""One virtual worker's KV in and out: the transport's own machines over virtual connections."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from orchestrator.virtual.kv.outlet import Outlet
from orchestrator.virtual.kv.pipe import Carried, Pipe, Read, Reader, read
from orchestrator.virtual.network import Network
from orchestrator.virtual.process import Process
from transport.base import Offer, Slice, StreamId, StreamStats
from transport.codecs.table import decode_slice
from transport.stream.frames import Data, Frame, FrameError, Goodbye, Hello, Ping, Pong
from transport.stream.receiver import ASK_AGAIN_S, RESUME_S, WINDOW_BYTES, Receiver, Verdict
from transport.stream.sender import RESUME_S as SENDER_RESUME_S
from transport.stream.sender import Sender
from transport.tcp.wire import HANDSHAKE_S, PING_EVERY_S, SILENCE_S
from workers.engines.simulated.engine import SimulatedEngine, WrongKV
from workers.handover import LEG_ENDED
from workers.outputs import OpenStream, Output
from workers.streams import imports
from workers.streams.exports import Exports
from workers.worker import Worker

T = TypeVar("T")
Call = Callable[[Worker, float], Sequence[Output]]
Find = Callable[[str], "KVPlane | None"]

# A piece is decoded and stored in a thread, while the connection is read on.
DECODE_S = 0.002
NEAR_S = min(HANDSHAKE_S, PING_EVERY_S)  # see `KVPlane._plan`


class Host(Protocol):
    """The worker whose plane it is."""

    process: Process
    engine: SimulatedEngine

    def submit(self, call: Call) -> None:
        """Do this with the core, and carry out what comes of it."""

    def look(self, call: Callable[[Worker, float], T]) -> T:
        """Ask the core, without touching the engine."""

    def wrong_kv(self, stream: StreamId, error: WrongKV) -> None:
        """Checksums let pass what is not the KV of its tokens."""


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
        self._inlet = Inlet(host, self._todo_later, self._settle, self._wake)
        self._todo: deque[Call] = deque()
        self._wake_at: float | None = None

    # ------------------------------------------------------------ what the core asks

    def open(self, order: OpenStream) -> None:
        """Send a stream, as it is computed."""
        outlet = self._outlets.get(order.address)
        if outlet is None:
            outlet = self._outlets[order.address] = self._outlet(order.address)
        self._exports.follow(order)
        now = self._host.process.time()
        outlet.open(order, Sender(self._exports.offer(order), now, resume_s=SENDER_RESUME_S))
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
        out = any(outlet.streams for outlet in self._outlets.values())
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


class Inlet:
    """KV in: what `transport.tcp.server` is to a real worker, and the sink of its receiver."""

    def __init__(
        self,
        host: Host,
        tell: Callable[[Call], None],
        settle: Callable[[], None],
        wake: Callable[[float], None],
    ) -> None:
        self._host = host
        self._process = host.process
        self._tell = tell
        self.settle = settle
        self._wake = wake
        self._receiver = Receiver(self, window_bytes=WINDOW_BYTES, resume_s=RESUME_S)
        self._pipes: dict[Pipe, float] = {}  # when each was heard last
        self._ask_at: float | None = None
        self._news = False  # whether the receiver may have something to say

    @property
    def busy(self) -> bool:
        return bool(self._receiver.streams)

    def drop(self, stream: StreamId) -> None:
        self._receiver.cancel(stream, LEG_ENDED)
        self._news = True

    def answer(self) -> None:
        """Write what the receiver has to say."""
        if not self._news:
            return
        self._news = False
        for conn in self._receiver.ready():
            if conn in self._pipes:
                assert isinstance(conn, Pipe)
                conn.write(self._process, self._receiver.take(conn))
        if self._ask_at is None and self._receiver.asking():
            self._ask_at = self._process.time() + ASK_AGAIN_S
            self._wake(self._ask_at)

    def next_deadline(self) -> float | None:
        """When to call `expire`; None: nothing to wait for."""
        times = [self._receiver.next_deadline(), self._ask_at]
        times += [at + SILENCE_S for pipe, at in self._pipes.items() if self._receiver.serves(pipe)]
        return min((t for t in times if t is not None), default=None)

    def expire(self, now: float) -> None:
        """Do what is due."""
        self._news = True
        for pipe, heard_at in list(self._pipes.items()):
            if now >= heard_at + SILENCE_S and self._receiver.serves(pipe):
                self._hang_up(pipe, f"nothing was heard for {SILENCE_S:g} s")
        if self._ask_at is not None and now >= self._ask_at:
            self._ask_at = None
            self._receiver.ask_again(now)
        self._receiver.expire(now)

    # ------------------------------------------------------------ connections

    def heard(self, pipe: Pipe, carried: Carried) -> None:
        """One frame from a sender."""
        now = self._pipes[pipe] = self._process.time()
        self._news = True
        try:
            whole = read(carried)
            frame = whole.frame
            if not isinstance(frame, Data):
                self._take(pipe, frame, now)
            elif self._receiver.admit(pipe, frame, now) is Verdict.TAKE:
                self._process.after(DECODE_S, self._decode, pipe, whole)
        except FrameError as error:
            pipe.write(self._process, [Goodbye(str(error))])
            self._hang_up(pipe, str(error))

    def ended(self, pipe: Pipe, reason: str) -> None:
        """A connection is closed or broken."""
        self._pipes.pop(pipe, None)
        self._receiver.disconnected(pipe, self._process.time())

    def _hang_up(self, pipe: Pipe, reason: str) -> None:
        pipe.close(self._process, reason)
        self.ended(pipe, reason)

    def _take(self, pipe: Pipe, frame: Frame, now: float) -> None:
        match frame:
            case Hello():
                pipe.write(self._process, [Hello(self._process.name, b"")])
            case Ping():
                pipe.write(self._process, [Pong(frame.stamp)])
            case Goodbye():
                self._hang_up(pipe, frame.reason)
            case _:
                self._receiver.handle(pipe, frame, now)

    def _decode(self, pipe: Pipe, whole: Read) -> None:
        """A piece's turn has come; its connection may be gone by now."""
        frame = whole.frame
        assert isinstance(frame, Data)
        self._news = True
        error = self._put(whole.check, frame)
        intact = self._receiver.put(frame, len(frame.body), error, self._process.time())
        if not intact and pipe in self._pipes:
            self._hang_up(pipe, "a piece did not arrive intact")
        self.settle()

    def _put(self, check: Callable[[], Any], frame: Data) -> Exception | None:
        """Check, decode and put one piece; what went wrong."""
        try:
            check()
            imports.put(self._host.engine, frame.stream, decode_slice(frame))
        except WrongKV as error:
            self._host.wrong_kv(frame.stream, error)
            return error
        except (FrameError, ValueError) as error:
            return error
        return None

    # ------------------------------------------------------------ the receiver's sink

    def offered(self, offer: Offer) -> int | None:
        return self._host.look(lambda worker, now: imports.offered(worker, offer, now))

    def put(self, stream: StreamId, piece: Slice) -> None:
        imports.put(self._host.engine, stream, piece)

    def completed(self, stream: StreamId, stats: StreamStats) -> None:
        self._tell(lambda worker, now: imports.landed(worker, stream, stats, now))

    def broken(self, stream: StreamId, reason: str) -> None:
        self._tell(lambda worker, now: worker.import_broken(stream, reason, now))
