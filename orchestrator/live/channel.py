"""The gateway's side of one worker: its token stream in, control and feeds out."""

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
import orjson

from workers.api.messages import DownMessage, Feed, Resync, UpMessage
from workers.api.wire import UP, WireError, decode, encode

log = logging.getLogger(__name__)

# The worker says something at least once a second; after this long without it is unreachable.
RENEW_S = 1.0
RECONNECT_S = 0.25
RECONNECT_MOST_S = 2.0
# A connection that ends this soon without a hello was refused behind the line: nobody is there.
REFUSALS_TO_LOSE = 2
CONTROL_TIMEOUT_S = 10.0
CONTROL_RETRY_S = 0.2
CONTROL_GIVE_UP_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a worker is reached from the gateway: URLs of its control and of its token plane."""

    control: str
    tokens: str


class Listener(Protocol):
    """What the channel tells the driver. All in the event loop's thread."""

    def came_up(self, worker: str, hello: dict[str, Any]) -> None: ...
    def came_back(self, worker: str) -> None: ...
    def was_lost(self, worker: str, reason: str) -> None: ...
    def heard(self, worker: str, messages: list[UpMessage]) -> None: ...


class WorkerChannel:
    """Keeps one worker's token stream open and delivers messages at least once.

    A worker is up after its first hello, back when the stream was opened again by the same
    process, and lost when it refuses, restarts or stays silent for `unreachable_s`.
    """

    def __init__(
        self,
        worker: str,
        place: Place,
        *,
        gateway: str,
        secret: str,
        unreachable_s: float,
        listener: Listener,
    ) -> None:
        self.worker = worker
        self.place = place
        self._gateway = gateway
        self._unreachable_s = unreachable_s
        self._listener = listener
        headers = {"authorization": f"Bearer {secret}"}
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=16, keepalive_expiry=60)
        self._http = httpx.AsyncClient(headers=headers, limits=limits, timeout=CONTROL_TIMEOUT_S)
        self._pid: int | None = None  # of the process that said hello; None: the worker is lost
        self._pending: dict[str, list[DownMessage]] = {"/control": [], "/feed": []}
        self._flush_planned = False
        self._posts: set[asyncio.Task[None]] = set()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._renew())]

    @property
    def up(self) -> bool:
        return self._pid is not None

    def send(self, message: DownMessage) -> None:
        """Deliver soon: all messages of one turn of the loop travel together."""
        path = "/feed" if isinstance(message, Feed | Resync) else "/control"
        self._pending[path].append(message)
        if not self._flush_planned:
            self._flush_planned = True
            asyncio.get_running_loop().call_soon(self._flush)

    async def close(self) -> None:
        """End the stream and every delivery under way."""
        tasks = [*self._tasks, *self._posts]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._http.aclose()

    async def settled(self, timeout_s: float) -> None:
        """Wait until everything sent was delivered, at most `timeout_s`."""
        if self._posts:
            await asyncio.wait(self._posts, timeout=timeout_s)

    # ------------------------------------------------------------ out

    def _flush(self) -> None:
        self._flush_planned = False
        for path, messages in self._pending.items():
            if messages:
                self._pending[path] = []
                self._post_soon(path, messages)

    def _post_soon(self, path: str, messages: list[DownMessage]) -> None:
        body = orjson.dumps({"messages": [encode(message) for message in messages]})
        task = asyncio.create_task(self._post(path, body, len(messages)))
        self._posts.add(task)
        task.add_done_callback(self._posts.discard)

    async def _post(self, path: str, body: bytes, count: int) -> None:
        """Try until it is delivered. Feeds are not insisted on: a resync repairs their loss."""
        base = self.place.tokens if path == "/feed" else self.place.control
        url = f"{base}{path}?gateway={self._gateway}"
        loop = asyncio.get_running_loop()
        give_up = loop.time() + (CONTROL_GIVE_UP_S if path == "/control" else 0.0)
        wait = CONTROL_RETRY_S
        while True:
            try:
                answer = await self._http.post(url, content=body)
            except httpx.HTTPError as error:
                reason = type(error).__name__
            else:
                if answer.status_code == 200:
                    return
                reason = f"{answer.status_code}: {answer.text[:200]}"
                if 400 <= answer.status_code < 500:
                    log.error(
                        "worker refused messages", extra={"worker": self.worker, "reason": reason}
                    )
                    return
            if loop.time() + wait > give_up:
                log.warning(
                    "messages not delivered",
                    extra={"worker": self.worker, "count": count, "reason": reason},
                )
                return
            await asyncio.sleep(wait)
            wait = min(2 * wait, 2.0)

    async def _renew(self) -> None:
        """An empty post each second keeps this gateway's lease on its legs."""
        while True:
            await asyncio.sleep(RENEW_S)
            if self.up and not self._posts:
                self._post_soon("/feed", [])

    # ------------------------------------------------------------ in

    async def _read(self) -> None:
        refusals = 0
        wait = RECONNECT_S
        loop = asyncio.get_running_loop()
        broken_at: float | None = None
        while True:
            greeted = False
            reason = "its token stream ended"
            try:
                async for _ in self._stream():
                    greeted = True
                    refusals, wait, broken_at = 0, RECONNECT_S, None
            except httpx.TimeoutException:
                reason = f"silent for {self._unreachable_s:g} s"
                refusals = REFUSALS_TO_LOSE
            except httpx.HTTPError as error:
                reason = f"not reachable ({type(error).__name__})"
            except (WireError, orjson.JSONDecodeError) as error:
                reason = f"its token stream is not readable: {error}"
                log.error("token stream", extra={"worker": self.worker, "reason": reason})
            if not greeted:
                refusals += 1
            broken_at = loop.time() if broken_at is None else broken_at
            late = loop.time() - broken_at >= self._unreachable_s
            if self.up and (refusals >= REFUSALS_TO_LOSE or late):
                self._lose(reason)
            if not greeted or refusals:
                await asyncio.sleep(wait)
                wait = min(2 * wait, RECONNECT_MOST_S)

    async def _stream(self) -> Any:
        """Read one stream to its end; yields True once it has greeted."""
        url = f"{self.place.tokens}/tokens"
        timeout = httpx.Timeout(self._unreachable_s, connect=CONTROL_TIMEOUT_S)
        async with self._http.stream(
            "GET", url, params={"gateway": self._gateway}, timeout=timeout
        ) as response:
            if response.status_code != 200:
                raise httpx.RemoteProtocolError(f"status {response.status_code}")
            rest = b""
            async for chunk in response.aiter_raw():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._line(orjson.loads(line))
                    yield True

    def _line(self, body: Any) -> None:
        hello = body.get("hello")
        if hello is not None:
            self._greet(hello)
            return
        self._listener.heard(self.worker, [decode(m, UP) for m in body.get("messages", ())])

    def _greet(self, hello: dict[str, Any]) -> None:
        if hello.get("worker") != self.worker:
            raise WireError(f"{hello.get('worker')!r} answered in place of {self.worker!r}")
        pid = int(hello["pid"])
        if self._pid == pid:
            self._listener.came_back(self.worker)
            return
        if self._pid is not None:
            self._listener.was_lost(self.worker, "it restarted")
        self._pid = pid
        self._listener.came_up(self.worker, hello)

    def _lose(self, reason: str) -> None:
        self._pid = None
        for task in self._posts:
            task.cancel()
        self._listener.was_lost(self.worker, reason)


async def close_all(channels: list[WorkerChannel]) -> None:
    """Close several channels together."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*(channel.close() for channel in channels))
