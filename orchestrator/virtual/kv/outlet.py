"""KV out of a virtual worker: what `transport.tcp.client` is to a real one, for one peer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from orchestrator.virtual.kv.pipe import Carried, Pipe, Reader, read
from orchestrator.virtual.network import Network
from orchestrator.virtual.process import Process
from transport.base import SliceKey, StreamId
from transport.codecs.table import encode_slice
from transport.stream.frames import (
    Accept,
    Ack,
    Cancel,
    Data,
    Done,
    Frame,
    FrameError,
    Goodbye,
    Hello,
    Ping,
    Refuse,
)
from transport.stream.sender import CANCELLED, Phase, Sender, Turns, redial_s
from transport.tcp.wire import HANDSHAKE_S, PING_EVERY_S, SILENCE_S
from workers.engines.base import Engine
from workers.outputs import OpenStream
from workers.streams.exports import Exports, Unsent, as_slice, why_failed

# Bits of the simulated model do not shrink, so any other codec would only cost time here.
CODEC = "raw"
# What is written stays just ahead of the line: the queue is ours, so that streams take turns.
AHEAD_S = 0.005
AHEAD_BYTES = 64 << 10

Failed = Callable[[StreamId, str | None], None]  # why; None: the receiver has all of it


@dataclass(slots=True, kw_only=True)
class Outgoing:
    """One stream being sent. `unsent` is known once the receiver has accepted."""

    order: OpenStream
    machine: Sender
    unsent: Unsent | None = None
    finishing: bool = False
    written: set[SliceKey] = field(default_factory=set)


class Outlet:
    """All streams to one peer, over one connection: dialled for streams, and again when it breaks.

    Without proofs of a secret, and with one connection where a real client has two; a connection
    on which nothing is under way is not pinged.
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
        self.streams: dict[StreamId, Outgoing] = {}
        self.sent_bytes = 0
        self.resent_bytes = 0
        self._layers = engine.info.fingerprint.layers
        self._turns: Turns[Outgoing] = Turns()
        self._control: list[Frame] = []
        self._pipe: Pipe | None = None
        self._up = False
        self._tries = 0
        self._redial_at: float | None = None
        self._answer_by: float | None = None  # of the handshake
        self._heard_at = 0.0
        self._ping_at = 0.0
        self._write_at: float | None = None  # when the line is free again

    # ------------------------------------------------------------ streams

    def open(self, order: OpenStream, machine: Sender) -> None:
        """Offer a stream as soon as there is a connection."""
        now = self._process.time()
        if not self.streams:
            self._heard_at, self._ping_at = now, now + PING_EVERY_S
        out = Outgoing(order=order, machine=machine)
        self.streams[order.stream] = out
        self._turns.add(out)
        if self._up:
            self._control += machine.connected()
            self._write(now)
        elif self._pipe is None and self._redial_at is None:
            self._dial(now)

    def cancel(self, stream: StreamId) -> None:
        """End a stream; the receiver hears of it, the core knows."""
        out = self.streams.get(stream)
        if out is not None:
            self._control += out.machine.cancel(CANCELLED)
            self._forget(out)
            self._write(self._process.time())

    def refresh(self) -> None:
        """More KV may be there to send."""
        if self.streams:
            now = self._process.time()
            for out in list(self.streams.values()):
                self._go_on(out, now)
            self._write(now)

    def next_deadline(self) -> float | None:
        """When to call `expire`; None: nothing to wait for."""
        if not self.streams and self._pipe is None and self._redial_at is None:
            return None
        times = [self._redial_at, self._answer_by, self._write_at]
        times += [out.machine.next_deadline() for out in self.streams.values()]
        if self._up and self.streams:
            times += [self._ping_at, self._heard_at + SILENCE_S]
        return min((t for t in times if t is not None), default=None)

    def expire(self, now: float) -> None:
        """Do what is due."""
        for out in list(self.streams.values()):
            self._post(out, out.machine.expire(now), now)
        if self._answer_by is not None and now >= self._answer_by:
            self._hang_up(f"no answer in {HANDSHAKE_S:g} s", now)
        elif self._up and self.streams and now >= self._heard_at + SILENCE_S:
            self._hang_up(f"nothing was heard for {SILENCE_S:g} s", now)
        if self._up and self.streams and now >= self._ping_at:
            self._ping_at = now + PING_EVERY_S
            self._control.append(Ping(int(now * 1e9)))
        if self._redial_at is not None and now >= self._redial_at:
            self._redial_at = None
            if self.streams:
                self._dial(now)
            else:
                self._tries = 0
        self._write_at = None
        self._write(now)

    # ------------------------------------------------------------ the connection

    def _dial(self, now: float) -> None:
        reached = self._reach()
        if reached is None:
            self._broken("the connection was refused", now)
            return
        far, listen = reached
        self._pipe = Pipe(self._network, self._process, far, self, listen)
        self._answer_by = now + HANDSHAKE_S
        self._pipe.write(self._process, [Hello(self._process.name, b"")])

    def _hang_up(self, reason: str, now: float) -> None:
        if self._pipe is not None:
            self._pipe.close(self._process, reason)
            self._broken(reason, now)

    def ended(self, pipe: Pipe, reason: str) -> None:
        """The connection is closed or broken."""
        if pipe is self._pipe:
            self._broken(reason, self._process.time())

    def _broken(self, reason: str, now: float) -> None:
        if self._up:
            self._tries = 0
        self._pipe, self._up = None, False
        self._answer_by = self._write_at = None
        self._control.clear()
        for out in list(self.streams.values()):
            out.machine.disconnected(f"{self._peer}: {reason}", now)
            self._go_on(out, now)
        if self.streams:
            self._redial_at = now + redial_s(self._tries)
            self._wake(self._redial_at)
            self._tries += 1
        else:
            self._tries = 0

    def heard(self, pipe: Pipe, carried: Carried) -> None:
        """One frame from the receiver."""
        if pipe is not self._pipe:
            return
        now = self._heard_at = self._process.time()
        try:
            frame = read(carried).frame
        except FrameError as error:
            self._hang_up(f"{type(error).__name__}: {error}", now)
            return
        match frame:
            case Accept() | Refuse() | Ack() | Done() | Cancel():
                out = self.streams.get(frame.stream)
                if out is not None:
                    self._post(out, out.machine.handle(frame, now), now)
            case Hello():
                self._up, self._answer_by = True, None
                self._ping_at = now + PING_EVERY_S
                for out in list(self.streams.values()):
                    self._post(out, out.machine.connected(), now)
            case Goodbye():
                self._hang_up(frame.reason, now)

    def settle(self) -> None:
        """All that came together was heard."""
        self._write(self._process.time())
        self._settle()

    # ------------------------------------------------------------ what is sent

    def _post(self, out: Outgoing, frames: Sequence[Frame], now: float) -> None:
        self._control += frames
        self._go_on(out, now)

    def _go_on(self, out: Outgoing, now: float) -> None:
        """After each event of a stream: take leave of it, or code what is there and has room."""
        machine = out.machine
        if machine.ended:
            self._forget(out)
            self._tell(out.order.stream, None if machine.phase is Phase.DONE else machine.reason)
            return
        if machine.have is None:
            return
        if out.unsent is None:
            start = max(out.order.start, machine.have)
            out.unsent = Unsent(self._layers, start, out.order.stop)
        try:
            self._code(out, out.unsent)
        except (KeyError, ValueError) as error:
            self._control += machine.cancel(CANCELLED)
            self._forget(out)
            self._tell(machine.offer.stream, why_failed(error))
            return
        if out.unsent.empty and not out.finishing:
            out.finishing = True
            self._control += machine.finish(now)

    def _code(self, out: Outgoing, unsent: Unsent) -> None:
        stream = out.order.stream
        ready = self._exports.ready(stream)
        while out.machine.has_room and (piece := unsent.take(ready)) is not None:
            kv = self._engine.read(out.order.seq, *piece)
            out.machine.push(encode_slice(stream, as_slice(kv), CODEC))

    def _forget(self, out: Outgoing) -> None:
        del self.streams[out.order.stream]
        self._turns.remove(out)
        self._exports.forget(out.order.stream)

    def _write(self, now: float) -> None:
        """Control at once; pieces while the line takes them."""
        pipe = self._pipe
        if pipe is None or not self._up:
            self._control.clear()
            return
        frames, self._control = self._control, []
        if self._write_at is None and self._turns.has_data:
            frames += self._pieces(pipe.far, now)
        if frames:
            pipe.write(self._process, frames)

    def _pieces(self, far: Process, now: float) -> list[Data]:
        """The next pieces, as many as keep the line busy for a moment."""
        rate = self._network.rate_bytes_per_s(self._process, far)
        queued_s = self._network.send_s(self._process, far, 0)
        room = AHEAD_BYTES
        pieces: list[Data] = []
        while queued_s < AHEAD_S and room > 0:
            data = self._turns.next_data(lambda out: self._next_data(out, now))
            if data is None:
                break
            pieces.append(data)
            queued_s += len(data.body) / rate
            room -= len(data.body)
        if self._turns.has_data:
            self._write_at = now + max(queued_s, AHEAD_S / 2)
            self._wake(self._write_at)
        return pieces

    def _next_data(self, out: Outgoing, now: float) -> Data | None:
        data = out.machine.next_data(now)
        if data is not None:
            self.sent_bytes += len(data.body)
            if data.key in out.written:
                self.resent_bytes += len(data.body)
            out.written.add(data.key)
        return data
