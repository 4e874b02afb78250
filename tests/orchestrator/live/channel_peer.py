"""A worker's HTTP face that says and refuses what the test wants, on real sockets."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import orjson

from workers.api.messages import UpMessage
from workers.api.wire import encode

NAME = "hami/relay/0"
WAIT_S = 8.0


class Post(NamedTuple):
    """One post that arrived."""

    path: str
    kinds: list[str]
    messages: list[dict[str, Any]]


class Peer:
    """Serves `/tokens`, `/control` and `/feed`; the next posts get `statuses`, later ones 200."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        self.name = NAME
        self.pid = 100
        self.port = 0
        self.greets = True
        self.statuses: list[int] = []
        self.posts: asyncio.Queue[Post] = asyncio.Queue()
        self.opened: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Break every connection and refuse new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._writers:
            writer.transport.abort()

    def hello(self) -> dict[str, Any]:
        return {
            "worker": self.name,
            "incarnation": f"process {self.pid}",
            "pid": self.pid,
            "slots": 4,
            "kv_bytes_per_token": 128,
            "info": {"max_context": 512, "kv_total_tokens": 2048},
        }

    async def stream(self) -> asyncio.StreamWriter:
        """The next token stream that is opened."""
        async with asyncio.timeout(WAIT_S):
            return await self.opened.get()

    async def post(self, path: str | None = None) -> Post:
        """The next post (to `path`) that carries messages; renewals are passed over."""
        async with asyncio.timeout(WAIT_S):
            while True:
                post = await self.posts.get()
                if post.messages and path in (None, post.path):
                    return post

    async def message(self, kind: str) -> dict[str, Any]:
        """The next message of a kind."""
        while True:
            for message in (await self.post()).messages:
                if message["kind"] == kind:
                    return message

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while await self._answer(reader, writer):
                pass
        self._writers.discard(writer)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, target, _ = head.split(" ", 2)
        assert "authorization: Bearer s3cret" in head
        assert "?gateway=gw-" in target
        if method == "GET":
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
            if self.greets:
                writer.write(line({"hello": self.hello()}))
            self.opened.put_nowait(writer)
            await reader.read()  # until the gateway leaves
            return False
        length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
        messages = orjson.loads(await reader.readexactly(length))["messages"]
        self.posts.put_nowait(Post(target.split("?")[0], [m["kind"] for m in messages], messages))
        status = self.statuses.pop(0) if self.statuses and messages else 200
        writer.write(f"HTTP/1.1 {status} -\r\ncontent-length: 2\r\n\r\n{{}}".encode())
        return True


async def eventually(good: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            if good():
                return
            await asyncio.sleep(0.01)


def line(body: Any) -> bytes:
    return orjson.dumps(body) + b"\n"


def messages_line(*messages: UpMessage) -> bytes:
    return line({"messages": [encode(message) for message in messages]})


@contextlib.asynccontextmanager
async def serving(tls: ssl.SSLContext | None = None) -> AsyncIterator[Peer]:
    peer = Peer(tls)
    await peer.start()
    try:
        yield peer
    finally:
        await peer.stop()
