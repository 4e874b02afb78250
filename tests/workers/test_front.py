"""What a stranger may send to a worker's, an agent's or the gateway's front for agents."""

import asyncio
import contextlib
import socket
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


def test_who_leaves_serves_those_who_are_there_and_nobody_else(monkeypatch) -> None:
    monkeypatch.setattr(front, "LAST_REQUEST_S", 0.2)

    async def test() -> None:
        go_on = asyncio.Event()

        async def app(scope, receive, send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"begun ", "more_body": True})
            await go_on.wait()
            await send({"type": "http.response.body", "body": b"whole"})

        taken = listen("127.0.0.1", 0)
        port = taken.getsockname()[1]
        serving = Front(app)
        task = asyncio.create_task(serving.serve(sockets=[taken]))
        await serving.up.wait()
        running, idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        running[1].write(ASKED + b"\r\n")
        await running[0].readuntil(b"begun ")
        with socket.create_connection(("127.0.0.1", port)) as waiting:  # not accepted so far
            leaving = asyncio.create_task(serving.leave(10.0))
            await asyncio.sleep(0)  # it has begun to leave
            waiting.sendall(ASKED + b"\r\n")
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
            assert await idle[0].read() == b"", "it was closed"
            assert not leaving.done(), "answers are under way"
            go_on.set()
            await leaving
            assert b"whole" in await running[0].read()
            waiting.setblocking(False)
            last = await asyncio.get_running_loop().sock_recv(waiting, 1000)
        assert b"connection: close" in last
        assert b"whole" in last
        for _, writer in (running, idle):
            writer.close()
        serving.should_exit = True
        await task

    run(test)


def test_who_leaves_waits_no_longer_than_it_may() -> None:
    async def test() -> None:
        asked = asyncio.Event()

        async def app(scope, receive, send) -> None:
            asked.set()
            await asyncio.Event().wait()

        taken = listen("127.0.0.1", 0)
        serving = Front(app)
        task = asyncio.create_task(serving.serve(sockets=[taken]))
        await serving.up.wait()
        _, writer = await asyncio.open_connection(*taken.getsockname())
        writer.write(ASKED + b"\r\n")
        await asked.wait()
        await serving.leave(0.1)
        assert serving.server_state.tasks, "its answer is under way"
        writer.close()
        serving.should_exit = True
        await task

    run(test)
