"""The gateway's side of one worker: its token stream in, control and feeds out."""

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
import orjson

from workers.api.messages import DownMessage, Feed, Resync, Stop, UpMessage
from workers.api.wire import UP, WireError, decode, encode

log = logging.getLogger(__name__)

# An empty post this often keeps the gateway's lease on its legs; the worker beats as often.
RENEW_S = 1.0
RENEW_TIMEOUT_S = 3.0  # below a lease, so that one stuck renewal does not cost it
# A stream that lasted this long ended by accident: it is opened again at once, others with
# back-off, so that a worker which greets and fails is not asked in a circle.
STEADY_S = 1.0
RECONNECT_S = 0.25
RECONNECT_MOST_S = 2.0
# So many streams in a row that end without a hello: nobody is there, also behind a line that
# takes the connection before it knows.
REFUSALS_TO_LOSE = 2
CONNECT_TIMEOUT_S = 10.0
CONTROL_TIMEOUT_S = 10.0
CONTROL_RETRY_S = 0.2
CONTROL_RETRY_MOST_S = 2.0
CONTROL_GIVE_UP_S = 60.0
POSTS_AT_ONCE = 8  # per path; what comes meanwhile travels together in the next
MAX_LINE_BYTES = 16 << 20

CONTROL, FEED = "/control", "/feed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a worker is reached from the gateway: URLs of its control and of its token plane."""

    control: str
    tokens: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What a worker's process says of itself when its token stream opens."""

    worker: str
    pid: int
    slots: int
    max_context: int
    kv_total_tokens: int
    kv_bytes_per_token: int


def read_hello(body: Any) -> Hello:
    """The hello in a stream's first line. Raises WireError."""
    try:
        info = body["info"]
        hello = Hello(
            worker=body["worker"],
            pid=body["pid"],
            slots=body["slots"],
            max_context=info["max_context"],
            kv_total_tokens=info["kv_total_tokens"],
            kv_bytes_per_token=body["kv_bytes_per_token"],
        )
    except (KeyError, TypeError) as error:
        raise WireError(f"not a hello: {type(error).__name__} {error}") from error
    numbers = (hello.pid, hello.slots, hello.max_context, hello.kv_total_tokens)
    if not all(type(n) is int and n > 0 for n in (*numbers, hello.kv_bytes_per_token)):
        raise WireError("not a hello: its numbers must be whole and above 0")
    return hello


class Listener(Protocol):
    """What the channel tells the driver. All in the event loop's thread."""

    def came_up(self, worker: str, hello: Hello) -> None: ...
    def came_back(self, worker: str) -> None: ...
    def was_lost(self, worker: str, reason: str) -> None: ...
    def heard(self, worker: str, messages: list[UpMessage]) -> None: ...


class WorkerChannel:
    """Keeps one worker's token stream open and delivers messages at least once.

    A worker is up after its first hello, back when the stream was opened again by the same
    process, and lost when it refuses, restarts or stays silent for `unreachable_s`.
    `place` may be changed while it runs: the next connection goes there.
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
        # No proxy of the environment stands between a gateway and its workers.
        self._http = httpx.AsyncClient(
            headers={"authorization": f"Bearer {secret}"},
            limits=httpx.Limits(max_connections=None, keepalive_expiry=60),
            timeout=CONTROL_TIMEOUT_S,
            trust_env=False,
        )
        self._pid: int | None = None  # of the process that said hello; None: the worker is lost
        self._pending: dict[str, list[DownMessage]] = {CONTROL: [], FEED: []}
        self._flush_planned = False
        self._posts: dict[str, dict[asyncio.Task[None], list[DownMessage]]] = {
            CONTROL: {},
            FEED: {},
        }
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._renew())]

    @property
    def up(self) -> bool:
        return self._pid is not None

    def send(self, message: DownMessage) -> None:
        """Deliver soon: all messages of one turn of the loop travel together."""
        path = FEED if isinstance(message, Feed | Resync) else CONTROL
        self._pending[path].append(message)
        self._flush_soon()

    async def close(self) -> None:
        """End the stream and every delivery under way."""
        tasks = [*self._tasks, *self._under_way()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._http.aclose()

    async def settled(self, timeout_s: float) -> None:
        """Wait until everything sent was delivered, at most `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while any(self._pending.values()) or self._under_way():
                    self._flush()
                    await asyncio.wait(self._under_way(), return_when=asyncio.FIRST_COMPLETED)

    # ------------------------------------------------------------ out

    def _under_way(self) -> list[asyncio.Task[None]]:
        return [task for posts in self._posts.values() for task in posts]

    def _flush_soon(self) -> None:
        if not self._flush_planned:
            self._flush_planned = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_planned = False
        for path, messages in self._pending.items():
            posts = self._posts[path]
            if messages and len(posts) < POSTS_AT_ONCE:
                self._pending[path] = []
                task = asyncio.create_task(self._post(path, messages))
                posts[task] = messages
                task.add_done_callback(functools.partial(self._posted, path))

    def _posted(self, path: str, task: asyncio.Task[None]) -> None:
        del self._posts[path][task]
        if self._pending[path]:
            self._flush_soon()

    async def _post(self, path: str, messages: list[DownMessage]) -> None:
        """Try until it is delivered. Feeds are not insisted on: a resync repairs their loss."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + (CONTROL_GIVE_UP_S if path == CONTROL else 0.0)
        body = orjson.dumps({"messages": [encode(message) for message in messages]})
        wait = CONTROL_RETRY_S
        while True:
            try:
                answer = await self._http.post(self._url(path), content=body)
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
                    extra={"worker": self.worker, "count": len(messages), "reason": reason},
                )
                return
            await asyncio.sleep(wait)
            wait = min(2 * wait, CONTROL_RETRY_MOST_S)

    def _url(self, path: str) -> str:
        base = self.place.tokens if path == FEED else self.place.control
        return f"{base}{path}?gateway={self._gateway}"

    async def _renew(self) -> None:
        """Keep this gateway's lease on its legs, whatever else is under way or stuck."""
        while True:
            await asyncio.sleep(RENEW_S)
            if self.up:
                # Lost or late, it is one of several that fit into a lease; the stream judges.
                with contextlib.suppress(httpx.HTTPError):
                    await self._http.post(
                        self._url(FEED), content=b'{"messages":[]}', timeout=RENEW_TIMEOUT_S
                    )

    # ------------------------------------------------------------ in

    async def _read(self) -> None:
        """Open the stream again and again; say when the worker is lost."""
        refusals = 0
        wait = RECONNECT_S
        loop = asyncio.get_running_loop()
        unheard_since = loop.time()
        while True:
            opened_at, greeted = loop.time(), False
            reason = "its token stream ended"
            try:
                async with contextlib.aclosing(self._lines()) as lines:
                    async for line in lines:
                        self._take(line, greeted)
                        greeted, refusals = True, 0
            except httpx.ConnectTimeout:
                reason = f"no connection within {CONNECT_TIMEOUT_S:g} s"
            except httpx.TimeoutException:
                reason = f"silent for {self._unreachable_s:g} s"
                refusals = REFUSALS_TO_LOSE
            except httpx.HTTPError as error:
                reason = f"not reachable ({type(error).__name__})"
            except WireError as error:
                reason = f"its token stream is not readable: {error}"
                log.error("token stream", extra={"worker": self.worker, "reason": reason})
            except Exception:
                # Whatever it was: a channel that no longer reads would lose the worker in silence.
                reason = "its token stream met a defect of the gateway"
                log.exception("token stream", extra={"worker": self.worker})
            if greeted:
                unheard_since = loop.time()
            else:
                refusals += 1
            late = loop.time() - unheard_since >= self._unreachable_s
            if self.up and (refusals >= REFUSALS_TO_LOSE or late):
                self._lose(reason)
            if greeted and loop.time() - opened_at >= STEADY_S:
                wait = RECONNECT_S
            else:
                await asyncio.sleep(wait)
                wait = min(2 * wait, RECONNECT_MOST_S)

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
            self._greet(read_hello(body.get("hello") if isinstance(body, dict) else None))
        elif isinstance(messages, list):
            self._listener.heard(self.worker, [decode(message, UP) for message in messages])
        else:
            raise WireError('a line must be {"messages": [...]}')

    def _greet(self, hello: Hello) -> None:
        if hello.worker != self.worker:
            raise WireError(f"{hello.worker!r} answered in place of {self.worker!r}")
        if self._pid == hello.pid:
            self._listener.came_back(self.worker)
            return
        if self.up:
            self._lose("it restarted")
        self._pid = hello.pid
        self._listener.came_up(self.worker, hello)

    def _lose(self, reason: str) -> None:
        """Forget what was meant for the lost process, but for the stops: they free memory."""
        self._pid = None
        for path, posts in self._posts.items():
            waiting = [message for messages in posts.values() for message in messages]
            waiting += self._pending[path]
            self._pending[path] = [message for message in waiting if isinstance(message, Stop)]
            for task in posts:
                task.cancel()
        self._flush_soon()
        self._listener.was_lost(self.worker, reason)


async def close_all(channels: list[WorkerChannel]) -> None:
    """Close several channels together."""
    await asyncio.gather(*(channel.close() for channel in channels))
