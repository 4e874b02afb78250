"""One TCP connection as a pipe of frames: the only file that touches a socket's bytes."""

import asyncio
from collections.abc import Callable
from typing import cast

from transport.stream.frames import Buffer, Data, Frame, FrameError, Goodbye, WrongVersion
from transport.stream.framing import encode
from transport.stream.handshake import HANDSHAKE_KINDS
from transport.stream.reader import Admit, Arrived, FrameReader
from transport.tcp import sockets

HANDSHAKE_S = 5.0
_HIGH_BYTES = 64 << 10  # what may wait in this process, behind what waits in the kernel
_FAREWELL_S = 1.0
_JOIN_BYTES = 16 << 10  # of a body that travel with its head, so that neither goes alone

BROKEN = (OSError, EOFError, FrameError, TimeoutError)


class Wire(asyncio.BufferedProtocol):
    """Says `made` when the connection is there, gives whole frames to `arrived`, and says once,
    by `lost`, why it ended.
    """

    def __init__(
        self,
        admit: Admit,
        made: Callable[[], None],
        arrived: Callable[[Arrived], None],
        lost: Callable[[Exception | None], None],
        buffer: int | None = None,
    ) -> None:
        self._reader = FrameReader(admit, HANDSHAKE_KINDS)
        self._made = made
        self._arrived = arrived
        self._lost = lost
        self._buffer = buffer
        self._transport: asyncio.Transport | None = None
        self._why: Exception | None = None
        self._room = asyncio.Event()
        self._room.set()
        self.on_room: Callable[[], None] = lambda: None

    # ------------------------------------------------------------ asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_HIGH_BYTES)
        sockets.tune(transport.get_extra_info("socket"), self._buffer)
        self._made()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for arrived in self._reader.received(nbytes):
                self._arrived(arrived)
        except FrameError as error:
            # A stranger gets no answer, but one of ours that is older should hear why.
            known = self._reader.only is None or isinstance(error, WrongVersion)
            self.close(error, *([Goodbye(str(error))] if known else []))

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()
        self.on_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._room.set()
        self._transport = None
        self._lost(self._why or exc)

    # ------------------------------------------------------------ ours

    @property
    def has_room(self) -> bool:
        """Whether what is written now would not pile up here."""
        return self._room.is_set()

    @property
    def unread(self) -> tuple[Data, int] | None:
        """The admitted piece whose body has not come whole, and the size of that body."""
        return self._reader.unread

    def greeted(self) -> None:
        """The handshake is over: every kind of frame is taken now."""
        self._reader.only = None

    def write(self, *frames: Frame) -> None:
        """Write frames that are not pieces, without waiting."""
        if self._transport is not None:
            self._transport.write(b"".join(b"".join(map(bytes, encode(f))) for f in frames))

    async def write_piece(self, data: Data) -> None:
        """Write one piece, and wait until there is room for more."""
        head, body = encode(data)
        view = memoryview(body)
        await self.write_raw(head + bytes(view[:_JOIN_BYTES]))
        await self.write_raw(view[_JOIN_BYTES:])

    async def write_raw(self, part: Buffer) -> None:
        """Part of a frame. Raises ConnectionError when the connection is gone."""
        if self._transport is None:
            raise ConnectionResetError("the connection is closed")
        if part:
            self._transport.write(part)
            await self._room.wait()

    def traffic(self) -> sockets.Traffic | None:
        """What TCP counted; None: the connection is gone, or it counts nothing."""
        if self._transport is None:
            return None
        try:
            return sockets.traffic(self._transport.get_extra_info("socket"))
        except OSError:
            return None

    def fail(self, why: Exception) -> None:
        """End the connection at once; `lost` hears why."""
        self._why = self._why or why
        if self._transport is not None:
            self._transport.abort()

    def close(self, why: Exception, *last: Frame) -> None:
        """Write `last`, then end it."""
        self._why = self._why or why
        self.write(*last)
        if self._transport is not None:
            self._transport.close()
            # A peer that does not read could keep it open for ever.
            asyncio.get_running_loop().call_later(_FAREWELL_S, self.fail, why)
