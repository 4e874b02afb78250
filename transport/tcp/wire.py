"""One TCP connection as a pipe of frames, and the handshake that opens it."""

import asyncio
import hashlib
import hmac
import secrets
import socket
from collections.abc import Coroutine
from time import monotonic
from typing import Any, TypeVar

from transport.stream.frames import (
    Buffer,
    Frame,
    FrameError,
    Goodbye,
    Hello,
    Kind,
    Proof,
    UnknownKind,
)
from transport.stream.framing import PREAMBLE_BYTES, Preamble, encode, parse_head, parse_preamble

HANDSHAKE_S = 5.0
SILENCE_S = 20.0  # a connection on which nothing was heard for so long is dead
PING_EVERY_S = 5.0
_UNSENT_BYTES = 128 << 10  # what may wait inside the kernel, out of our scheduler's reach
READ_BUFFER_BYTES = 64 << 10  # all that a stranger can make us hold
_SKIP_BYTES = 64 << 10

BROKEN = (OSError, EOFError, FrameError, TimeoutError)


F = TypeVar("F", Hello, Proof)


class HandshakeRefused(Exception):
    """The peer is not of this deployment, or thinks we are not. Trying again will not help."""


class Wire:
    """Reads and writes whole frames; raises what BROKEN names when the connection is of no use."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        writer.transport.set_write_buffer_limits(high=64 << 10)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # Buffer sizes are left to the kernel, which grows them to bandwidth x delay; only what
        # it has not sent yet is bounded.
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)

    async def read_head(self, allowed: frozenset[Kind] | None = None) -> tuple[Preamble, Frame]:
        """The next frame without its body, which `read_body` or `skip_body` must follow."""
        async with asyncio.timeout(SILENCE_S):
            preamble = parse_preamble(await self._reader.readexactly(PREAMBLE_BYTES))
            if allowed is not None and preamble.kind not in allowed:
                raise UnknownKind(f"{preamble.kind.name} before the handshake")
            head = await self._reader.readexactly(preamble.head_bytes)
        return preamble, parse_head(preamble, head)

    async def read_body(self, preamble: Preamble) -> bytes:
        async with asyncio.timeout(SILENCE_S):
            return await self._reader.readexactly(preamble.body_bytes)

    async def skip_body(self, preamble: Preamble) -> None:
        """Read the body in small pieces and forget it."""
        left = preamble.body_bytes
        async with asyncio.timeout(SILENCE_S):
            while left:
                left -= len(await self._reader.readexactly(min(left, _SKIP_BYTES)))

    async def write(self, *frames: Frame) -> None:
        for frame in frames:
            for part in encode(frame):
                await self.write_raw(part)

    async def write_raw(self, part: Buffer) -> None:
        if not part:
            return
        self._writer.write(part)
        async with asyncio.timeout(SILENCE_S):
            await self._writer.drain()

    def abort(self) -> None:
        """Close at once; what is still buffered is lost."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Let what is buffered go out for a moment, then close."""
        self._writer.close()
        try:
            async with asyncio.timeout(1.0):
                await self._writer.wait_closed()
        except BROKEN:
            self.abort()


async def greet(wire: Wire, name: str, secret: bytes) -> tuple[str, float]:
    """The connecting end's handshake: (peer's name, round trip in seconds).

    The connecting end proves itself first, so a stranger learns nothing. Raises HandshakeRefused
    or what BROKEN names.
    """
    mine = Hello(name, secrets.token_bytes(16))
    async with asyncio.timeout(HANDSHAKE_S):
        await wire.write(mine)
        theirs = await _expect(wire, Hello)
        asked_at = monotonic()
        await wire.write(Proof(_digest(secret, b"client", mine, theirs)))
        proof = await _expect(wire, Proof)
        rtt_s = monotonic() - asked_at
    if not hmac.compare_digest(proof.digest, _digest(secret, b"server", mine, theirs)):
        raise HandshakeRefused(f"{theirs.name} does not know this deployment's secret")
    return theirs.name, rtt_s


async def welcome(wire: Wire, name: str, secret: bytes) -> str:
    """The listening end's handshake: the peer's name. Raises as `greet` does."""
    mine = Hello(name, secrets.token_bytes(16))
    async with asyncio.timeout(HANDSHAKE_S):
        theirs = await _expect(wire, Hello)
        await wire.write(mine)
        proof = await _expect(wire, Proof)
        if not hmac.compare_digest(proof.digest, _digest(secret, b"client", theirs, mine)):
            reason = f"{name} has another secret than {theirs.name}"
            await wire.write(Goodbye(reason))
            raise HandshakeRefused(reason)
        await wire.write(Proof(_digest(secret, b"server", theirs, mine)))
    return theirs.name


async def _expect(wire: Wire, kind: type[F]) -> F:
    _, frame = await wire.read_head(frozenset({Kind.HELLO, Kind.PROOF, Kind.GOODBYE}))
    if isinstance(frame, Goodbye):
        raise HandshakeRefused(frame.reason)
    if not isinstance(frame, kind):
        raise UnknownKind(f"{type(frame).__name__} where {kind.__name__} belongs")
    return frame


def _digest(secret: bytes, side: bytes, client: Hello, server: Hello) -> bytes:
    parts = [side, client.name.encode(), client.nonce, server.name.encode(), server.nonce]
    message = b"".join(len(p).to_bytes(4, "big") + p for p in parts)
    return hmac.new(secret, message, hashlib.sha256).digest()


async def until_first_ends(*work: Coroutine[Any, Any, None]) -> BaseException | None:
    """Run all; when one ends cancel the others; what the first to end raised."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        first = next(task for task in tasks if task.done())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return first.exception() if not first.cancelled() else None
