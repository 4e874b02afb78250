"""The token streams: one long response per gateway, one line of JSON per step."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

from workers.api.messages import Load, UpMessage
from workers.api.wire import encode
from workers.outputs import Up
from workers.sharing import Taken, told_to
from workers.streams.packed import packed
from workers.streams.recent import RecentAnswers

BACKLOG_BYTES = 1 << 20
CLOSE_S = 0.5


class TokenStream:
    """One gateway's open response; lines wait here, in bounds, until the gateway reads them."""

    def __init__(self, gateway: str) -> None:
        self.gateway = gateway
        self._lines: list[bytes] = []
        self._size = 0
        self._ready = asyncio.Event()
        self._closed = asyncio.Event()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def write(self, line: bytes) -> None:
        """Queue one line. A gateway that does not read is cut off: it reconnects and resyncs."""
        self._lines.append(line)
        self._size += len(line)
        self._ready.set()
        if self._size > BACKLOG_BYTES:
            self.close()

    def close(self) -> None:
        self._closed.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Be the ASGI response until the gateway leaves or the stream is closed."""
        tasks = [
            asyncio.ensure_future(job)
            for job in (self._pump(send), _until_gone(receive), self._closed.wait())
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(TimeoutError):  # it does not read: the connection is cut off
            async with asyncio.timeout(CLOSE_S):
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pump(self, send: Send) -> None:
        headers = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while True:
            await self._ready.wait()
            self._ready.clear()
            body, self._lines, self._size = b"".join(self._lines), [], 0
            await send({"type": "http.response.body", "body": body, "more_body": True})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class TokenStreams:
    """Every gateway's stream, and the answers of the last seconds."""

    def __init__(self, hello: dict[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._hello = _line({"hello": hello})
        self._clock = clock
        self._streams: dict[str, TokenStream] = {}
        self._answers = RecentAnswers()

    def open(self, gateway: str) -> TokenStream:
        """A stream for `gateway`, in place of any older one."""
        old = self._streams.get(gateway)
        if old is not None:
            old.close()
        stream = self._streams[gateway] = TokenStream(gateway)
        stream.write(self._hello)
        if answers := self._answers.recent(gateway, self._clock()):
            stream.write(_messages_line(answers))
        return stream

    def closed(self, stream: TokenStream) -> None:
        if self._streams.get(stream.gateway) is stream:
            del self._streams[stream.gateway]

    def deliver(self, ups: Iterable[Up]) -> None:
        """Send the messages of one step: one line for each gateway."""
        batches: dict[str, list[UpMessage]] = {}
        now = self._clock()
        for up in ups:
            for gateway in self._streams if up.gateway is None else (up.gateway,):
                batches.setdefault(gateway, []).append(up.message)
            if up.gateway is not None:
                self._answers.note(up.gateway, up.message, now)
        for gateway, messages in batches.items():
            stream = self._streams.get(gateway)
            if stream is not None and not stream.closed:
                stream.write(_messages_line(packed(messages)))

    def heartbeat(self, load: Load, taken: Mapping[str, Taken]) -> None:
        """Tell every gateway the worker's load, and forget old answers.

        `taken`: what the legs of each gateway take.
        """
        for gateway, stream in self._streams.items():
            if not stream.closed:
                stream.write(_messages_line([told_to(gateway, load, taken)]))
        self._answers.forget_old(self._clock())

    def close(self) -> None:
        for stream in self._streams.values():
            stream.close()


def _line(body: dict[str, Any]) -> bytes:
    return orjson.dumps(body, option=orjson.OPT_APPEND_NEWLINE)


def _messages_line(messages: list[UpMessage]) -> bytes:
    return _line({"messages": [encode(message) for message in messages]})
