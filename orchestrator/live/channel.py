"""The gateway's side of one worker: its token stream in, control and feeds out."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

import httpx
import orjson

from orchestrator.live.http import reason as why
from orchestrator.live.http import site_client
from orchestrator.membership.outbox import POST_TIMEOUT_S, Outbox, Path, Post
from orchestrator.membership.reach import (
    CONNECT_TIMEOUT_S,
    RENEW_S,
    RENEW_TIMEOUT_S,
    Lost,
    News,
    Reach,
)
from orchestrator.membership.reports import read_hello
from transport.tls import TlsRefused, refusal
from workers.api.messages import DownMessage, UpMessage
from workers.api.wire import UP, WireError, decode, encode

log = logging.getLogger(__name__)

MAX_LINE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a worker is reached from the gateway: URLs of its control and of its token plane."""

    control: str
    tokens: str


class Listener(Protocol):
    """What the channel tells the driver. All in the event loop's thread."""

    def learn(self, worker: str, news: News) -> None: ...
    def heard(self, worker: str, messages: list[UpMessage]) -> None: ...


class WorkerChannel:
    """Keeps one worker's token stream open and its outbox moving: `Reach` and `Outbox` judge.

    `place` may be changed while it runs: the next connection goes there. With `tls` the worker
    must prove that it is of `site`.
    """

    def __init__(
        self,
        worker: str,
        place: Place,
        *,
        site: str,
        gateway: str,
        secret: str,
        tls: ssl.SSLContext | None,
        unreachable_s: float,
        listener: Listener,
    ) -> None:
        self.worker = worker
        self.place = place
        self._gateway = gateway
        self._unreachable_s = unreachable_s
        self._listener = listener
        self._http = site_client(site, secret, tls, timeout_s=POST_TIMEOUT_S)
        self._loop = asyncio.get_running_loop()
        self._reach = Reach(worker, unreachable_s=unreachable_s, now=self._loop.time())
        self._outbox = Outbox()
        self._refused: str | None = None  # why it was last
        self._moved = asyncio.Event()  # the outbox, since it was looked at
        self._flushing: asyncio.Handle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._posts: set[asyncio.Task[None]] = set()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._renew())]

    @property
    def up(self) -> bool:
        return self._reach.up

    def send(self, message: DownMessage) -> None:
        """Deliver soon: all messages of one turn of the loop travel together."""
        self._outbox.put(message)
        self._flush_soon()

    async def close(self) -> None:
        """End the stream and every delivery under way."""
        for handle in (self._flushing, self._retry):
            if handle is not None:
                handle.cancel()
        tasks = [*self._tasks, *self._posts]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._http.aclose()

    async def settled(self, timeout_s: float) -> None:
        """Wait until everything sent was delivered, at most `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self._outbox.empty:
                    self._moved.clear()
                    await self._moved.wait()

    # ------------------------------------------------------------ out

    def _flush_soon(self) -> None:
        if self._flushing is None:
            self._flushing = self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Hand to the wire what is due, and come back when something else is."""
        self._flushing = None
        for post in self._outbox.due(self._loop.time()):
            task = asyncio.create_task(self._post(post))
            self._posts.add(task)
            task.add_done_callback(self._posts.discard)
        if self._retry is not None:
            self._retry.cancel()
        due = self._outbox.next_deadline()
        self._retry = None if due is None else self._loop.call_at(due, self._flush_soon)

    async def _post(self, post: Post) -> None:
        try:
            body = orjson.dumps({"messages": [encode(message) for message in post.messages]})
            answer = await self._http.post(self._url(post.path), content=body)
        except httpx.HTTPError as error:
            self._failed(post, why(error))
        except Exception as error:
            # A defect of ours: again it would be the same, and untold it would stay for ever.
            log.exception("post", extra={"worker": self.worker})
            self._failed(post, type(error).__name__, refused=True)
        else:
            if answer.status_code == 200:
                self._outbox.delivered(post)
            else:
                refused = 400 <= answer.status_code < 500
                self._failed(post, f"{answer.status_code}: {answer.text[:200]}", refused=refused)
        self._moved.set()
        self._flush_soon()

    def _failed(self, post: Post, reason: str, *, refused: bool = False) -> None:
        given_up = self._outbox.failed(post, self._loop.time(), refused=refused)
        told = {"worker": self.worker, "count": len(given_up), "reason": reason}
        if refused:
            log.error("worker refused messages", extra=told)
        elif given_up:
            log.warning("messages not delivered", extra=told)

    def _url(self, path: Path) -> str:
        base = self.place.tokens if path is Path.FEED else self.place.control
        return f"{base}{path}?gateway={self._gateway}"

    async def _renew(self) -> None:
        """Keep this gateway's lease on its legs, whatever else is under way or stuck."""
        while True:
            await asyncio.sleep(RENEW_S)
            if self.up:
                # Lost or late, it is one of several that fit into a lease; the stream judges.
                with contextlib.suppress(httpx.HTTPError):
                    await self._http.post(
                        self._url(Path.FEED), content=b'{"messages":[]}', timeout=RENEW_TIMEOUT_S
                    )

    # ------------------------------------------------------------ in

    async def _read(self) -> None:
        """Open the stream again and again."""
        while True:
            self._reach.attempt(self._loop.time())
            reason, silent = await self._stream()
            ended = self._reach.ended(reason, self._loop.time(), silent=silent)
            self._tell(ended.news)
            await asyncio.sleep(ended.wait_s)

    async def _stream(self) -> tuple[str, bool]:
        """Read one stream to its end: why it ended, and whether by silence."""
        greeted = False
        try:
            async with contextlib.aclosing(self._lines()) as lines:
                async for line in lines:
                    self._take(line, greeted)
                    greeted = True
        except httpx.ConnectTimeout:
            return f"no connection within {CONNECT_TIMEOUT_S:g} s", False
        except httpx.TimeoutException:
            return f"silent for {self._unreachable_s:g} s", True
        except httpx.HTTPError as error:
            self._note_refusal(refusal(error))
            return f"not reachable ({why(error)})", False
        except WireError as error:
            reason = f"its token stream is not readable: {error}"
            log.error("token stream", extra={"worker": self.worker, "reason": reason})
            return reason, False
        except Exception:
            # Whatever it was: a channel that no longer reads would lose the worker in silence.
            log.exception("token stream", extra={"worker": self.worker})
            return "its token stream met a defect of the gateway", False
        return "its token stream ended", False

    async def _lines(self) -> AsyncGenerator[bytes, None]:
        """The lines of one stream, to its end. Raises httpx.HTTPError, WireError."""
        timeout = httpx.Timeout(self._unreachable_s, connect=CONNECT_TIMEOUT_S)
        async with self._http.stream(
            "GET",
            f"{self.place.tokens}/tokens",
            params={"gateway": self._gateway},
            timeout=timeout,
        ) as response:
            if response.status_code != 200:
                raise httpx.RemoteProtocolError(f"status {response.status_code}")
            rest = b""
            async for chunk in response.aiter_raw():
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > MAX_LINE_BYTES:
                    raise WireError(f"a line is longer than {MAX_LINE_BYTES} bytes")
                for line in lines:
                    yield line

    def _take(self, line: bytes, greeted: bool) -> None:
        """Tell the listener of one line; the first must be the hello. Raises WireError."""
        try:
            body = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise WireError(f"not JSON: {error}") from error
        messages = body.get("messages") if isinstance(body, dict) else None
        if not greeted:
            hello = read_hello(body.get("hello") if isinstance(body, dict) else None)
            self._tell(self._reach.greeted(hello))
        elif isinstance(messages, list):
            self._listener.heard(self.worker, [decode(message, UP) for message in messages])
        else:
            raise WireError('a line must be {"messages": [...]}')

    def _note_refusal(self, refused: TlsRefused | None) -> None:
        """Once: it is tried for ever, and of a worker that never came up nobody else tells."""
        if refused is not None and str(refused) != self._refused:
            self._refused = str(refused)
            log.warning("TLS refused", extra={"worker": self.worker, "reason": self._refused})

    def _tell(self, told: list[News]) -> None:
        for news in told:
            if isinstance(news, Lost):
                self._outbox.lost()
                for task in self._posts:
                    task.cancel()
                self._moved.set()
                self._flush_soon()
            self._listener.learn(self.worker, news)


async def close_all(channels: list[WorkerChannel]) -> None:
    """Close several channels together."""
    await asyncio.gather(*(channel.close() for channel in channels))
