"""KV out of a virtual worker: what `transport.tcp.peer` is to a real one, for one peer."""

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.virtual.kv.pipe import Carried, Pipe, Reader, read
from orchestrator.virtual.network import Network
from orchestrator.virtual.process import Process
from transport.base import StreamId
from transport.codecs.table import encode_slice
from transport.stream.connections import SILENCE_S
from transport.stream.frames import Frame, FrameError, Goodbye, Hello, Proof, Terms
from transport.stream.handshake import Dialler, HandshakeRefused
from transport.stream.outgoing import Outgoing, Phase
from transport.stream.sender import CANCELLED, RESUME_S, Sender
from transport.tcp.wire import HANDSHAKE_S
from workers.engines.base import Engine
from workers.outputs import OpenStream
from workers.streams.exports import Exports, Unsent, as_slice, why_failed

CONNECTIONS = 2
SECRET = b"of this deployment"
# Bits of the simulated model do not shrink, so any other codec would only cost time here.
CODEC = "raw"
# What is written stays just ahead of the line: the queue is ours, so that streams take turns.
AHEAD_S = 0.005
AHEAD_BYTES = 64 << 10

Failed = Callable[[StreamId, str | None], None]  # why; None: the receiver has all of it


@dataclass(slots=True, kw_only=True)
class Export:
    """One stream being sent. `unsent` is None while the receiver's answer is waited for."""

    order: OpenStream
    out: Outgoing
    unsent: Unsent | None


@dataclass(slots=True)
class Dialled:
    """One connection under way."""

    handshake: Dialler
    answer_by: float
    asked_at: float = 0.0  # when our proof was written


class Outlet:
    """All streams to one peer, over connections that are dialled for them and kept.

    Half of the streams, drawn from the network's seed, send pieces behind their offer.
    """

    def __init__(
        self,
        process: Process,
        network: Network,
        engine: Engine,
        exports: Exports,
        peer: str,
        *,
        reach: Callable[[], tuple[Process, Callable[[], Reader | None]] | None],
        ended: Failed,
        settle: Callable[[], None],
        wake: Callable[[float], None],
    ) -> None:
        self._process = process
        self._network = network
        self._engine = engine
        self._exports = exports
        self._peer = peer
        self._reach = reach
        self._tell = ended
        self._settle = settle
        self._wake = wake
        self._session = network.random.randbytes(16)
        info = engine.info
        # A sender takes no pieces, so it gives no credit.
        self._terms = Terms(info.fingerprint.canonical, info.layout, 0)
        self._layers = info.fingerprint.layers
        self._token_bytes = info.kv_bytes_per_token
        self._sender = Sender(connections=CONNECTIONS, resume_s=RESUME_S)
        self._streams: dict[StreamId, Export] = {}
        self._dialled: dict[Pipe, Dialled] = {}
        self._turn = 0  # of the connections, for pieces
        self._write_at: float | None = None  # when the line is free again
        self._ended_bytes = self._ended_resent = 0  # of streams that are over

    # ------------------------------------------------------------ streams

    @property
    def busy(self) -> bool:
        return bool(self._streams)

    @property
    def sent_bytes(self) -> int:
        """Coded bytes that were written, repeats included."""
        return self._ended_bytes + sum(e.out.sent_bytes for e in self._streams.values())

    @property
    def resent_bytes(self) -> int:
        """Of those, what had been written before."""
        return self._ended_resent + sum(e.out.resent_bytes for e in self._streams.values())

    def open(self, order: OpenStream) -> None:
        """Offer a stream as soon as there is a connection."""
        early = self._network.hits(0.5)
        out = self._sender.open(
            self._exports.offer(order),
            self._process.time(),
            token_bytes=self._token_bytes,
            weight=order.weight,
            early=early,
        )
        unsent = Unsent(self._layers, order.start, order.stop) if early else None
        export = self._streams[order.stream] = Export(order=order, out=out, unsent=unsent)
        self._go_on(export)
        self._act()

    def cancel(self, stream: StreamId) -> None:
        """End a stream; the receiver hears of it, the core knows."""
        export = self._streams.get(stream)
        if export is not None:
            self._sender.cancel(export.out, CANCELLED)
            self._forget(export)
            self._act()

    def refresh(self) -> None:
        """More KV may be there to send."""
        if self._streams:
            for export in list(self._streams.values()):
                self._go_on(export)
            self._act()

    def next_deadline(self) -> float | None:
        """When to call `expire`; None: nothing to wait for."""
        times = [self._sender.next_deadline(), self._write_at]
        times += [dialled.answer_by for dialled in self._dialled.values()]
        return min((t for t in times if t is not None), default=None)

    def expire(self, now: float) -> None:
        """Do what is due."""
        if self._write_at is not None and now >= self._write_at:
            self._write_at = None
        self._sender.expire(now)
        for pipe, dialled in list(self._dialled.items()):
            if now >= dialled.answer_by:
                self._hang_up(pipe, f"no answer in {HANDSHAKE_S:g} s")
        for conn in self._sender.silent(now):
            assert isinstance(conn, Pipe)
            self._hang_up(conn, f"nothing was heard for {SILENCE_S:g} s")
        self._act()

    # ------------------------------------------------------------ connections

    def _dial(self, now: float) -> None:
        reached = self._reach()
        if reached is None:
            self._sender.undialled(f"{self._peer}: the connection was refused", now)
            return
        far, listen = reached
        pipe = Pipe(self._network, self._process, far, self, listen)
        hello = Hello(self._process.name, self._network.random.randbytes(16), self._session)
        self._dialled[pipe] = Dialled(Dialler(hello, SECRET, self._terms), now + HANDSHAKE_S)
        pipe.write(self._process, [hello])

    def _hang_up(self, pipe: Pipe, reason: str) -> None:
        pipe.close(self._process, reason)
        self.ended(pipe, reason)

    def ended(self, pipe: Pipe, reason: str) -> None:
        """A connection is closed or broken."""
        now, reason = self._process.time(), f"{self._peer}: {reason}"
        if self._dialled.pop(pipe, None) is not None:
            self._sender.undialled(reason, now)
        else:
            self._sender.disconnected(pipe, reason, now)

    def heard(self, pipe: Pipe, carried: Carried) -> None:
        """One frame from the receiver."""
        try:
            frame = read(carried).frame
            dialled = self._dialled.get(pipe)
            if dialled is not None:
                self._greet(pipe, dialled, frame)
            elif isinstance(frame, Goodbye):
                self._hang_up(pipe, frame.reason)
            else:
                self._sender.handle(pipe, frame, self._process.time())
        except FrameError as error:
            self._hang_up(pipe, f"{type(error).__name__}: {error}")

    def _greet(self, pipe: Pipe, dialled: Dialled, frame: Frame) -> None:
        now, handshake = self._process.time(), dialled.handshake
        try:
            answers = handshake.handle(frame)
        except HandshakeRefused as error:
            if error.told is not None:
                pipe.write(self._process, [error.told])
            self._sender.fail_all(str(error))
            self._hang_up(pipe, str(error))
            return
        if answers:
            pipe.write(self._process, answers)
        if any(isinstance(answer, Proof) for answer in answers):
            dialled.asked_at = now
        if handshake.terms is not None:
            del self._dialled[pipe]
            self._sender.connected(pipe, handshake.terms.window, now - dialled.asked_at, now)

    def settle(self) -> None:
        """All that came together was heard."""
        self._act()
        self._settle()

    # ------------------------------------------------------------ what is sent

    def _act(self) -> None:
        """After each event: dial, code, and write what there is, in turns until all is said."""
        sender, now = self._sender, self._process.time()
        writing = True
        while writing:
            for _ in range(sender.dials.due(now)):
                self._dial(now)
            for stream in sender.changed():
                export = self._streams.get(stream)
                if export is not None:
                    self._go_on(export)
            writing = self._write(now)
        due = sender.dials.next_deadline()
        if due is not None:
            self._wake(due)

    def _go_on(self, export: Export) -> None:
        """Take leave of a stream that has ended, or code what is there and has room."""
        out, order, now = export.out, export.order, self._process.time()
        if out.ended:
            self._forget(export)
            self._tell(order.stream, None if out.phase is Phase.DONE else out.reason)
            return
        if export.unsent is None:
            if out.have is None:
                return
            export.unsent = Unsent(self._layers, max(order.start, out.have), order.stop)
        try:
            self._code(export, export.unsent, now)
        except (KeyError, ValueError) as error:
            self._sender.cancel(out, CANCELLED)
            self._forget(export)
            self._tell(order.stream, why_failed(error))
            return
        if export.unsent.empty and not out.finishing:
            self._sender.finish(out, now)

    def _code(self, export: Export, unsent: Unsent, now: float) -> None:
        stream, seq = export.order.stream, export.order.seq
        ready = self._exports.ready(stream)
        while self._sender.has_room(export.out, now) and (piece := unsent.take(ready)) is not None:
            self._sender.push(encode_slice(stream, as_slice(self._engine.read(seq, *piece)), CODEC))

    def _forget(self, export: Export) -> None:
        self._ended_bytes += export.out.sent_bytes
        self._ended_resent += export.out.resent_bytes
        del self._streams[export.order.stream]
        self._exports.forget(export.order.stream)

    def _write(self, now: float) -> bool:
        """Control at once; pieces while the line takes them. Whether there was a piece."""
        pipes = [conn for conn in self._sender.connections if isinstance(conn, Pipe)]
        frames = {pipe: self._sender.control(pipe) for pipe in pipes}
        wrote = bool(pipes) and self._write_at is None and self._take_pieces(pipes, frames, now)
        for pipe, written in frames.items():
            if written:
                pipe.write(self._process, written)
        return wrote

    def _take_pieces(self, pipes: list[Pipe], frames: dict[Pipe, list[Frame]], now: float) -> bool:
        """The next pieces, as many as keep the line busy for a moment; connections take turns."""
        network, far = self._network, pipes[0].far
        rate = network.rate_bytes_per_s(self._process, far)
        queued_s = network.send_s(self._process, far, 0)
        room, wrote, dry = AHEAD_BYTES, False, 0
        while queued_s < AHEAD_S and room > 0:
            self._turn = (self._turn + 1) % len(pipes)
            pipe = pipes[self._turn]
            data = self._sender.next_data(pipe, now)
            if data is None:
                dry += 1
                if dry == len(pipes):
                    return wrote
                continue
            frames[pipe].append(data)
            queued_s += len(data.body) / rate
            room -= len(data.body)
            wrote, dry = True, 0
        if any(self._sender.has_data(pipe) for pipe in pipes):
            self._write_at = now + max(queued_s, AHEAD_S / 2)
            self._wake(self._write_at)
        return wrote
