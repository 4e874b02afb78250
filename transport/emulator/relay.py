"""Bytes across a line in real time: `LineDirection` with sockets at both ends."""

import asyncio
import socket
import struct
from collections import deque
from dataclasses import asdict, replace
from time import monotonic
from typing import Any, cast

from transport.emulator.line import LineDirection, LinkSpec, Plane

_TICK_S = 0.001
# So much of the line's rate may wait per connection before its socket is read no more: enough
# for the line to stay busy while this process waits for a core.
_QUEUE_S = 0.1
_MIN_QUEUE_BYTES = 64 << 10
_MAX_QUEUE_BYTES = 4 << 20


class Pipe:
    """One direction of a line in real time: `LineDirection` with the bytes and one timer."""

    def __init__(self, spec: LinkSpec, seed: int) -> None:
        self.model = LineDirection(spec, seed)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._paused: set[Flow] = set()

    @property
    def queue_limit_bytes(self) -> int:
        wanted = self.model.spec.rate_bytes_per_s * _QUEUE_S
        return int(max(_MIN_QUEUE_BYTES, min(_MAX_QUEUE_BYTES, wanted)))

    def push(self, flow: "Flow", nbytes: int) -> None:
        self.model.push(flow, flow.plane, nbytes, monotonic())
        if not self.has_room(flow):
            flow.source.pause()
            self._paused.add(flow)
        self.kick()

    def has_room(self, flow: "Flow") -> bool:
        """Whether the flow's source should be read: little waits, and its sink keeps up."""
        waiting = self.model.queued_bytes(flow, flow.plane)
        sink_full = flow.sink is not None and flow.sink.full
        return waiting < self.queue_limit_bytes and not sink_full

    def stall(self, flow: "Flow") -> None:
        """The flow's sink does not keep up: stop reading its source until it does."""
        flow.source.pause()
        self._paused.add(flow)

    def kick(self) -> None:
        """Deliver what is due and set the timer to what comes next."""
        for conn, nbytes in self.model.pop(monotonic()):
            cast(Flow, conn).deliver(nbytes)
        for flow in [flow for flow in self._paused if self.has_room(flow)]:
            self._paused.discard(flow)
            flow.source.resume()
        if self._timer is not None:
            self._timer.cancel()
        deadline = self.model.next_deadline()
        self._timer = None
        if deadline is not None:
            # A timer of less than a millisecond is no timer to the loop, but a busy wait.
            delay_s = max(_TICK_S, deadline - monotonic())
            self._timer = self._loop.call_later(delay_s, self.kick)

    def forget(self, flow: "Flow") -> None:
        self.model.forget(flow)
        self._paused.discard(flow)

    def change(self, **values: float) -> None:
        """New rate, delay, jitter or loss, from the next quantum on. Raises ValueError."""
        self.model.spec = replace(self.model.spec, **values)
        self.kick()

    def cut(self) -> None:
        self.model.cut(monotonic())
        self.kick()

    def restore(self) -> None:
        self.model.restore(monotonic())
        self.kick()

    def stats(self) -> dict[str, Any]:
        return {
            "sent_bytes": {p.name.lower(): self.model.sent_bytes[p] for p in Plane},
            "queued_bytes": {p.name.lower(): self.model.queued_total(p) for p in Plane},
            "cut": self.model.is_cut,
            **asdict(self.model.spec),
        }


class Flow:
    """The bytes of one connection in one direction, from `source` to `sink`."""

    def __init__(self, pipe: Pipe, plane: Plane) -> None:
        self.pipe = pipe
        self.plane = plane
        self.source: End
        self.sink: End | None = None  # None: not connected yet
        self._bytes = bytearray()
        self._marks: deque[bool] = deque()  # True: reset, False: end of stream
        self._held: list[int] | None = None  # pushes that wait for `release`

    def hold(self) -> None:
        """Keep what comes off the line until `release`."""
        self._held = []

    def release(self) -> None:
        held, self._held = self._held or [], None
        for nbytes in held:
            self.pipe.push(self, nbytes)
        if self.pipe.has_room(self):
            self.source.resume()

    def data(self, data: bytes) -> None:
        self._bytes += data
        self._push(len(data))

    def ended(self, *, reset: bool) -> None:
        self._marks.append(reset)
        self._push(0)

    def _push(self, nbytes: int) -> None:
        if self._held is None:
            self.pipe.push(self, nbytes)
        else:
            self._held.append(nbytes)
            self.source.pause()

    def deliver(self, nbytes: int) -> None:
        if nbytes:
            data = bytes(memoryview(self._bytes)[:nbytes])
            del self._bytes[:nbytes]
            if self.sink is not None:
                self.sink.write(data)
            return
        reset = self._marks.popleft()
        if self.sink is not None and reset:
            self.sink.reset()
        elif self.sink is not None:
            self.sink.write_eof()


class End(asyncio.Protocol):
    """One socket of a relayed connection: source of one flow, sink of the other."""

    def __init__(self, out: Flow, back: Flow) -> None:
        self._out = out
        self._back = back
        out.source = back.sink = self
        self._transport: asyncio.Transport | None = None
        self._eof_read = self._eof_written = False
        self.lost = False
        self.full = False  # the socket does not take what arrives

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_MIN_QUEUE_BYTES)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._out.data(data)

    def eof_received(self) -> bool:
        self._eof_read = True
        self._out.ended(reset=False)
        return not self._eof_written

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._back.pipe.forget(self._back)  # nobody is left to take it
        if not self._eof_read:
            self._out.ended(reset=True)

    def pause_writing(self) -> None:
        self.full = True
        self._back.pipe.stall(self._back)

    def resume_writing(self) -> None:
        self.full = False
        self._back.pipe.kick()

    def pause(self) -> None:
        if self._transport is not None and not self.lost:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self.lost:
            self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self.lost:
            self._transport.write(data)

    def write_eof(self) -> None:
        self._eof_written = True
        if self._transport is None or self.lost:
            return
        if self._eof_read:
            self._transport.close()
        else:
            self._transport.write_eof()

    def reset(self) -> None:
        """Close so that the other side sees a reset, not an end."""
        if self._transport is None or self.lost:
            return
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._eof_read = True  # it was the other side's doing: do not echo it
        self._transport.abort()
