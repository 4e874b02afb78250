"""HTTP/1.1 to a worker, against a socket that answers what the test writes."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from orchestrator.live.http1 import (
    MAX_ANSWER_BYTES,
    Client,
    NoAnswer,
    NotConnected,
    Silent,
)

WAIT_S = 8.0


class Far:
    """The other end: each connection and each request that came, and what is answered to it."""

    def __init__(self) -> None:
        self.connections: list[asyncio.StreamWriter] = []
        self.requests: asyncio.Queue[bytes] = asyncio.Queue()
        self.asked: list[tuple[asyncio.StreamWriter, bytes]] = []
        self.answer: Callable[[asyncio.StreamWriter], None] = lambda writer: None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/control?gateway=gw-1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if b"content-length: " in head:
                    length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
                    head += await reader.readexactly(length)
                self.asked.append((writer, head))
                self.requests.put_nowait(head)
                self.answer(writer)


@contextlib.asynccontextmanager
async def far() -> AsyncIterator[tuple[Far, Client]]:
    there = Far()
    server = await asyncio.start_server(there.serve, "127.0.0.1", 0)
    there.port = server.sockets[0].getsockname()[1]
    client = Client("b", "s3cret", None)
    try:
        yield there, client
    finally:
        client.close()
        server.close()
        for writer in there.connections:
            writer.transport.abort()


def play(scenario: Callable[[Far, Client], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(WAIT_S), far() as (there, client):
            await scenario(there, client)

    uvloop.run(whole())


def says(text: bytes) -> Callable[[asyncio.StreamWriter], None]:
    return lambda writer: writer.write(text)


def reset(writer: asyncio.StreamWriter) -> None:
    """Close so that the other end gets a reset instead of an end."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def test_a_post_says_what_it_must_and_its_connection_is_used_again() -> None:
    async def scenario(there: Far, client: Client) -> None:
        there.answer = says(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        for body in (b"one", b"two"):
            assert await client.post(there.url, body, timeout_s=WAIT_S) == (200, b"{}")
            lines = (await there.requests.get()).split(b"\r\n")
            assert lines[0] == b"POST /control?gateway=gw-1 HTTP/1.1"
            assert b"authorization: Bearer s3cret" in lines
            assert f"host: 127.0.0.1:{there.port}".encode() in lines
            assert lines[-1] == body
        assert len(there.connections) == 1

    play(scenario)


def test_posts_at_once_have_a_connection_each_and_know_their_answers() -> None:
    async def scenario(there: Far, client: Client) -> None:
        posts = [
            asyncio.create_task(client.post(there.url, b"%d" % i, timeout_s=WAIT_S))
            for i in range(3)
        ]
        for _ in posts:
            await there.requests.get()
        assert len(there.connections) == 3
        for writer, request in reversed(there.asked):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n" + request[-1:])
        assert [await post for post in posts] == [(200, b"0"), (200, b"1"), (200, b"2")]

    play(scenario)


def test_what_closes_after_its_answer_is_not_used_again() -> None:
    async def scenario(there: Far, client: Client) -> None:
        there.answer = says(b"HTTP/1.1 503 -\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        for _ in range(2):
            assert await client.post(there.url, b"", timeout_s=WAIT_S) == (503, b"")
        assert len(there.connections) == 2

    play(scenario)


def test_what_was_closed_while_it_was_kept_is_not_used_again() -> None:
    async def scenario(there: Far, client: Client) -> None:
        there.answer = says(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await client.post(there.url, b"", timeout_s=WAIT_S)
        there.connections[0].close()
        await asyncio.sleep(0.05)
        assert await client.post(there.url, b"", timeout_s=WAIT_S) == (200, b"")
        assert len(there.connections) == 2

    play(scenario)


def test_a_post_that_was_given_up_leaves_no_answer_to_the_next() -> None:
    async def scenario(there: Far, client: Client) -> None:
        post = asyncio.create_task(client.post(there.url, b"a", timeout_s=WAIT_S))
        await there.requests.get()
        post.cancel()
        await asyncio.gather(post, return_exceptions=True)
        there.answer = says(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nb")
        assert await client.post(there.url, b"b", timeout_s=WAIT_S) == (200, b"b")
        assert len(there.connections) == 2

    play(scenario)


def test_a_post_waits_for_the_whole_answer_as_long_as_it_said_and_no_longer() -> None:
    async def scenario(there: Far, client: Client) -> None:
        def trickle(writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
            tasks.append(asyncio.create_task(drops(writer)))

        async def drops(writer: asyncio.StreamWriter) -> None:
            while not writer.is_closing():
                writer.write(b"x")
                await asyncio.sleep(0.02)

        tasks: list[asyncio.Task[None]] = []
        there.answer = trickle
        with pytest.raises(Silent, match=r"no whole answer within 0\.2 s"):
            await client.post(there.url, b"a", timeout_s=0.2)
        for task in tasks:
            task.cancel()

    play(scenario)


def test_an_answer_to_a_post_is_bounded() -> None:
    async def scenario(there: Far, client: Client) -> None:
        length = MAX_ANSWER_BYTES + 1
        there.answer = says(
            b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % length + b"x" * length
        )
        with pytest.raises(NoAnswer, match="longer than"):
            await client.post(there.url, b"a", timeout_s=WAIT_S)

    play(scenario)


def test_connections_that_were_closed_while_they_waited_are_let_go() -> None:
    async def scenario(there: Far, client: Client) -> None:
        there.answer = says(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await asyncio.gather(*(client.post(there.url, b"a", timeout_s=WAIT_S) for _ in range(8)))
        first = there.connections[:]
        for writer in first:
            writer.transport.abort()
        await asyncio.sleep(0.05)  # the ends arrive
        await client.post(there.url, b"b", timeout_s=WAIT_S)
        assert [len(kept) for kept in client.idle.values()] == [1]
        assert len(there.connections) == 9

    play(scenario)


@pytest.mark.parametrize(
    ("head", "cut"),
    [
        (b"transfer-encoding: chunked\r\n\r\n", lambda body: b"%x\r\n%b\r\n" % (len(body), body)),
        (b"connection: close\r\n\r\n", lambda body: body),
    ],
)
def test_a_stream_is_told_as_it_comes_and_ends_in_order(
    head: bytes, cut: Callable[[bytes], bytes]
) -> None:
    async def scenario(there: Far, client: Client) -> None:
        parts: asyncio.Queue[bytes] = asyncio.Queue()
        there.answer = says(b"HTTP/1.1 200 OK\r\n" + head)
        reading = asyncio.create_task(
            client.follow(there.url, parts.put_nowait, connect_s=WAIT_S, silence_s=WAIT_S)
        )
        await there.requests.get()
        for body in (b"one\n", b"two\n"):
            there.connections[0].write(cut(body))
            assert await parts.get() == body
        if b"chunked" in head:
            there.connections[0].write(b"0\r\n\r\n")
        else:
            there.connections[0].close()
        await reading

    play(scenario)


BROKEN: dict[str, tuple[Callable[[asyncio.StreamWriter], None], type[NoAnswer], str]] = {
    "reset": (reset, NoAnswer, "connection reset"),
    "closed before the head": (lambda w: w.close(), NoAnswer, "connection closed"),
    "silence": (lambda w: None, Silent, "silent for 0.1 s"),
    "another status": (
        says(b"HTTP/1.1 404 -\r\ncontent-length: 2\r\n\r\nno"),
        NoAnswer,
        "status 404",
    ),
    "another status without a word": (
        says(b"HTTP/1.1 503 -\r\ncontent-length: 0\r\n\r\n"),
        NoAnswer,
        "status 503",
    ),
    "no HTTP": (says(b"SSH-2.0-OpenSSH_9.6\r\n"), NoAnswer, "not HTTP"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_stream_that_breaks_says_why(name: str) -> None:
    answer, kind, text = BROKEN[name]

    async def scenario(there: Far, client: Client) -> None:
        there.answer = answer
        with pytest.raises(NoAnswer) as broken:
            await client.follow(there.url, lambda part: None, connect_s=WAIT_S, silence_s=0.1)
        assert (type(broken.value), str(broken.value)) == (kind, text)

    play(scenario)


def test_a_stream_that_is_cut_in_a_chunk_has_not_ended() -> None:
    async def scenario(there: Far, client: Client) -> None:
        def half(writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabc")
            writer.close()

        there.answer = half
        with pytest.raises(NoAnswer, match="connection closed"):
            await client.follow(there.url, lambda part: None, connect_s=WAIT_S, silence_s=WAIT_S)

    play(scenario)


def test_what_the_taker_raises_ends_the_stream() -> None:
    async def scenario(there: Far, client: Client) -> None:
        there.answer = says(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nabc")

        def take(part: bytes) -> None:
            raise LookupError(part.decode())

        with pytest.raises(LookupError, match="abc"):
            await client.follow(there.url, take, connect_s=WAIT_S, silence_s=WAIT_S)

    play(scenario)


def test_nobody_there_is_refused_and_no_connection_in_time_says_so() -> None:
    async def scenario(there: Far, client: Client) -> None:
        with contextlib.closing(socket.socket()) as taken:
            taken.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{taken.getsockname()[1]}/control?gateway=gw-1"
            with pytest.raises(NoAnswer, match="connection refused"):
                await client.post(url, b"", timeout_s=WAIT_S)
            # A listener whose line is full takes no further connection.
            taken.listen(0)
            with contextlib.ExitStack() as waiting:
                for _ in range(4):
                    sock = waiting.enter_context(contextlib.closing(socket.socket()))
                    sock.setblocking(False)
                    sock.connect_ex(taken.getsockname())
                with pytest.raises(NotConnected, match=r"no connection within 0\.1 s"):
                    await client.post(url, b"", timeout_s=0.1)

    play(scenario)
