"""What a stranger may send to a worker's, an agent's or the gateway's front for agents."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from starlette.requests import Request

from workers.service import front
from workers.service.app import BearerOnly, answer, read_body
from workers.service.front import MAX_HEAD_BYTES, Front, listen

ASKED = b"POST / HTTP/1.1\r\nhost: x\r\nauthorization: Bearer s\r\n"


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[int]:
    async def app(scope, receive, send) -> None:
        told = await read_body(Request(scope, receive))
        await answer({"told": len(told)})(scope, receive, send)

    taken = listen("127.0.0.1", 0)
    serving = Front(BearerOnly(app, "s"))
    task = asyncio.create_task(serving.serve(sockets=[taken]))
    await serving.up.wait()
    try:
        yield taken.getsockname()[1]
    finally:
        serving.should_exit = True
        await task


async def told(port: int, *parts: bytes) -> bytes:
    """All that is answered until the other end closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    said = b""
    with contextlib.suppress(ConnectionError):
        for part in parts:
            writer.write(part)
            await writer.drain()
        while part := await reader.read(1000):
            said += part
    writer.close()
    return said


def run(test) -> None:
    asyncio.run(asyncio.wait_for(test(), 20.0))


def test_a_body_may_be_larger_than_a_head() -> None:
    async def test() -> None:
        async with served() as port:
            body = b"[" + b"1," * MAX_HEAD_BYTES + b"1]"
            head = ASKED + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
            assert f'{{"told":{MAX_HEAD_BYTES + 1}}}'.encode() in await told(port, head + body)

    run(test)


@pytest.mark.parametrize("more", [b"x-a: b\r\n", b"x" * 64])
def test_a_head_without_end_is_cut_off(more: bytes) -> None:
    async def test() -> None:
        async with served() as port:
            parts = [more * 100] * (2 * MAX_HEAD_BYTES // (100 * len(more)))
            assert await told(port, ASKED, *parts) == b""

    run(test)


@pytest.mark.parametrize("part", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nhost: x\r\n"])
def test_a_head_that_does_not_come_is_not_waited_for(
    part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "HEAD_S", 0.05)

    async def test() -> None:
        async with served() as port:
            assert await told(port, part) == b""

    run(test)


def test_who_is_known_keeps_a_connection_between_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the time of a head is bounded, not that between two."""
    monkeypatch.setattr(front, "HEAD_S", 0.05)

    async def test() -> None:
        async with served() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(2):
                writer.write(ASKED + b"content-length: 2\r\n\r\n[]")
                assert b"200 OK" in await reader.readuntil(b"}")
                with pytest.raises(TimeoutError):  # nobody hangs up
                    await asyncio.wait_for(reader.read(1), 0.1)
            writer.close()

    run(test)
