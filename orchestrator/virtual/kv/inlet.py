"""KV into a virtual worker: what `transport.tcp.server` is to a real one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from orchestrator.virtual.kv.outlet import SECRET
from orchestrator.virtual.kv.pipe import Carried, Pipe, Read, read
from orchestrator.virtual.network import Network
from orchestrator.virtual.process import Process
from transport.base import Offer, Slice, StreamId, StreamStats
from transport.codecs.table import decode_slice
from transport.stream.connections import SILENCE_S
from transport.stream.frames import Data, Frame, FrameError, Goodbye, Terms
from transport.stream.handshake import HandshakeRefused, Listener
from transport.stream.receiver import ASK_AGAIN_S, RESUME_S, Receiver, Verdict
from transport.tcp.wire import HANDSHAKE_S
from workers.engines.simulated.engine import SimulatedEngine, WrongKV
from workers.handover import LEG_ENDED
from workers.outputs import Output
from workers.streams import imports
from workers.worker import Worker

T = TypeVar("T")
Call = Callable[[Worker, float], Sequence[Output]]

# A piece is decoded and stored in a thread, while the connection is read on.
DECODE_S = 0.002
WINDOW_BYTES = 16 << 10  # so small that credit holds senders up, as it does on a real line


class Host(Protocol):
    """The worker whose KV it is."""

    process: Process
    engine: SimulatedEngine

    def submit(self, call: Call) -> None:
        """Do this with the core, and carry out what comes of it."""

    def look(self, call: Callable[[Worker, float], T]) -> T:
        """Ask the core, without touching the engine."""

    def wrong_kv(self, stream: StreamId, error: WrongKV) -> None:
        """Checksums let pass what is not the KV of its tokens."""


@dataclass(slots=True)
class Accepted:
    """One connection; `handshake` is None once it is over."""

    handshake: Listener | None
    heard_at: float


class Inlet:
    """Drives the receiver of one worker, and is its sink."""

    def __init__(
        self,
        host: Host,
        network: Network,
        *,
        tell: Callable[[Call], None],
        settle: Callable[[], None],
        wake: Callable[[float], None],
    ) -> None:
        self._host = host
        self._process = host.process
        self._random = network.random
        self._tell = tell
        self.settle = settle
        self._wake = wake
        info = host.engine.info
        self._terms = Terms(info.fingerprint.canonical, info.layout, WINDOW_BYTES)
        self._receiver = Receiver(self, window_bytes=WINDOW_BYTES, resume_s=RESUME_S)
        self._pipes: dict[Pipe, Accepted] = {}
        self._ask_at: float | None = None
        self._news = False  # whether the receiver may have something to say

    @property
    def busy(self) -> bool:
        return bool(self._receiver.streams)

    def drop(self, stream: StreamId) -> None:
        """Refuse a stream from now on."""
        self._receiver.cancel(stream, LEG_ENDED)
        self._news = True

    def answer(self) -> None:
        """Write what the receiver has to say."""
        if not self._news:
            return
        self._news = False
        for conn in self._receiver.ready():
            assert isinstance(conn, Pipe)
            conn.write(self._process, self._receiver.take(conn))
        if self._ask_at is None and self._receiver.asking():
            self._ask_at = self._process.time() + ASK_AGAIN_S
            self._wake(self._ask_at)

    def next_deadline(self) -> float | None:
        """When to call `expire`; None: nothing to wait for."""
        times = [self._receiver.next_deadline(), self._ask_at]
        times += [self._patience(pipe, accepted) for pipe, accepted in self._pipes.items()]
        return min((t for t in times if t is not None), default=None)

    def expire(self, now: float) -> None:
        """Do what is due."""
        self._news = True
        for pipe, accepted in list(self._pipes.items()):
            until = self._patience(pipe, accepted)
            if until is not None and now >= until:
                self._hang_up(pipe, "nothing was heard for long")
        if self._ask_at is not None and now >= self._ask_at:
            self._ask_at = None
            self._receiver.ask_again(now)
        self._receiver.expire(now)

    # ------------------------------------------------------------ connections

    def heard(self, pipe: Pipe, carried: Carried) -> None:
        """One frame from a sender."""
        now = self._process.time()
        accepted = self._pipes.get(pipe)
        if accepted is None:
            nonce = self._random.randbytes(16)
            accepted = Accepted(Listener(self._process.name, nonce, SECRET, self._terms), now)
            self._pipes[pipe] = accepted
        self._news = True
        try:
            whole = read(carried)
            if accepted.handshake is not None:
                self._greet(pipe, accepted, accepted.handshake, whole.frame)
                return
            accepted.heard_at = now
            self._take(pipe, whole, now)
        except FrameError as error:
            # A stranger gets no answer.
            if accepted.handshake is None:
                pipe.write(self._process, [Goodbye(str(error))])
            self._hang_up(pipe, str(error))

    def ended(self, pipe: Pipe, reason: str) -> None:
        """A connection is closed or broken."""
        self._news = True
        self._pipes.pop(pipe, None)
        self._receiver.disconnected(pipe, self._process.time())

    def _patience(self, pipe: Pipe, accepted: Accepted) -> float | None:
        """When a silent connection is closed; None: it may be silent."""
        if accepted.handshake is not None:
            return accepted.heard_at + HANDSHAKE_S
        return accepted.heard_at + SILENCE_S if self._receiver.serves(pipe) else None

    def _hang_up(self, pipe: Pipe, reason: str) -> None:
        pipe.close(self._process, reason)
        self.ended(pipe, reason)

    def _greet(self, pipe: Pipe, accepted: Accepted, handshake: Listener, frame: Frame) -> None:
        try:
            answers = handshake.handle(frame)
        except HandshakeRefused as error:
            if error.told is not None:
                pipe.write(self._process, [error.told])
            self._hang_up(pipe, str(error))
            return
        if answers:
            pipe.write(self._process, answers)
        if handshake.terms is not None:
            accepted.handshake, accepted.heard_at = None, self._process.time()
            self._receiver.connected(pipe, handshake.session)

    # ------------------------------------------------------------ frames

    def _take(self, pipe: Pipe, whole: Read, now: float) -> None:
        frame, receiver = whole.frame, self._receiver
        if isinstance(frame, Data):
            if receiver.admit(pipe, frame, len(frame.body), now) is Verdict.TAKE:
                self._process.after(DECODE_S, self._decode, pipe, whole, frame)
        elif isinstance(frame, Goodbye):
            self._hang_up(pipe, frame.reason)
        else:
            receiver.handle(pipe, frame, now)

    def _decode(self, pipe: Pipe, whole: Read, frame: Data) -> None:
        """A piece's turn has come; its connection may be gone by now."""
        self._news = True
        error = self._put(whole, frame)
        self._receiver.put(pipe, frame, len(frame.body), error, self._process.time())
        self.settle()

    def _put(self, whole: Read, frame: Data) -> Exception | None:
        """Check, decode and put one piece; what went wrong."""
        try:
            whole.check()
            piece = decode_slice(frame)
            _, _, start, stop = piece.key
            wanted = max(start, self._receiver.have(frame.stream))
            self.put(frame.stream, piece.tokens(wanted, stop))
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
