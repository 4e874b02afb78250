"""The gateway's side of one worker: its token stream in, control and feeds out."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

import orjson

from orchestrator.live.http1 import Client, NoAnswer, NotConnected, Silent
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
from transport.tls import TlsRefused
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
        self._http = Client(site, secret, tls)
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
        self._http.close()

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
            url = self._url(post.path)
            status, answer = await self._http.post(url, body, timeout_s=POST_TIMEOUT_S)
        except NoAnswer as error:
            self._failed(post, str(error))
        except Exception as error:
            # A defect of ours: again it would be the same, and untold it would stay for ever.
            log.exception("post", extra={"worker": self.worker})
            self._failed(post, type(error).__name__, refused=True)
        else:
            if status in (HTTPStatus.OK, HTTPStatus.GONE):  # gone: nobody is left to take it
                self._outbox.delivered(post)
            else:
                text = answer[:200].decode(errors="replace")
                self._failed(post, f"{status}: {text}", refused=400 <= status < 500)
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
        to = self._reach.incarnation
        url = f"{base}{path}?gateway={self._gateway}"
        return url if to is None else f"{url}&to={to}"

    async def _renew(self) -> None:
        """Keep this gateway's lease on its legs, whatever else is under way or stuck."""
        while True:
            await asyncio.sleep(RENEW_S)
            if not self.up:
                continue
            url = self._url(Path.FEED)
            try:
                await self._http.post(url, b'{"messages":[]}', timeout_s=RENEW_TIMEOUT_S)
            except NoAnswer:
                pass  # lost or late, it is one of several that fit into a lease; the stream judges
            except Exception:
                # A defect of ours; were the renewals to end, so would every leg's lease.
                log.exception("renewal", extra={"worker": self.worker})

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
        lines = _Lines(self._take)
        try:
            await self._http.follow(
                f"{self.place.tokens}/tokens?gateway={self._gateway}",
                lines.add,
                connect_s=CONNECT_TIMEOUT_S,
                silence_s=self._unreachable_s,
            )
        except NotConnected as error:
            return str(error), False
        except Silent as error:
            return str(error), True
        except NoAnswer as error:
            self._note_refusal(error.refused)
            return f"not reachable ({error})", False
        except WireError as error:
            reason = f"its token stream is not readable: {error}"
            log.error("token stream", extra={"worker": self.worker, "reason": reason})
            return reason, False
        except Exception:
            # Whatever it was: a channel that no longer reads would lose the worker in silence.
            log.exception("token stream", extra={"worker": self.worker})
            return "its token stream met a defect of the gateway", False
        return "its token stream ended", False

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


class _Lines:
    """Puts a token stream's lines together, however they were cut up."""

    def __init__(self, take: Callable[[bytes, bool], None]) -> None:
        self._take = take
        self._rest = b""
        self._greeted = False  # the first line was taken

    def add(self, part: bytes) -> None:
        """Hand on the lines that are whole now. Raises WireError, and what their taker raises."""
        *lines, self._rest = (self._rest + part).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise WireError(f"a line is longer than {MAX_LINE_BYTES} bytes")
        for line in lines:
            self._take(line, self._greeted)
            self._greeted = True


async def close_all(channels: list[WorkerChannel]) -> None:
    """Close several channels together."""
    await asyncio.gather(*(channel.close() for channel in channels))
