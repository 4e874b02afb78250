"""HTTP/1.1 to a worker, for what goes many times a second: posts, and a stream that never ends.

A general client takes longer over a decode step's line, or a post of messages, than the gateway
over all that is in it. Here a request is bytes on a kept connection, and what comes back goes from
the socket through httptools' parser to whoever asked, without a task or a queue between.
"""

import asyncio
import ssl
from collections.abc import Callable
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpResponseParser

from transport.tls import OneConnection, TlsRefused, site_hostname

KEPT_S = 60.0  # below the server's patience: a connection is not used when it may be closing
MAX_ANSWER_BYTES = 1 << 20  # to a post; workers answer in a few words


class NoAnswer(Exception):
    """The peer did not answer, or not to the end. The text says why in few words.

    `refused`: one end refused the other's certificate.
    """

    refused: TlsRefused | None = None


class NotConnected(NoAnswer):
    """No connection came about in the time given."""


class Silent(NoAnswer):
    """Nothing came for as long as was to be waited."""


# Gets the parts of an answer's body as they come.
Take = Callable[[bytes], None]


class Client:
    """Asks processes of one site. With `tls` they must prove that they are of it.

    URLs are absolute, of one scheme: https with `tls`. Connections are kept for the next post.
    """

    def __init__(self, site: str, secret: str, tls: ssl.SSLContext | None) -> None:
        self._site = site
        self._tls = tls
        self._authorization = f"authorization: Bearer {secret}\r\n"
        self.idle: dict[str, list[_Connection]] = {}  # by host and port, the last used last
        self._loop = asyncio.get_running_loop()

    async def post(self, url: str, body: bytes, *, timeout_s: float) -> tuple[int, bytes]:
        """The answer's status and body. Raises NoAnswer; Silent when not whole in `timeout_s`."""
        whole = bytearray()

        def take(part: bytes) -> None:
            whole.extend(part)
            if len(whole) > MAX_ANSWER_BYTES:
                raise NoAnswer(f"an answer longer than {MAX_ANSWER_BYTES} bytes")

        address, target = _split(url)
        connection = self._kept(address) or await self._connect(address, timeout_s)
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        request = self._head("POST", address, target) + head.encode() + body
        status = await connection.ask(request, take, timeout_s, endless=False)
        if connection.kept:
            self._keep(address, connection)
        else:
            connection.abort()
        return status, bytes(whole)

    async def follow(self, url: str, take: Take, *, connect_s: float, silence_s: float) -> None:
        """Read an answer of status 200 to its end. Raises NoAnswer, and what `take` raises."""
        address, target = _split(url)
        connection = await self._connect(address, connect_s)
        request = self._head("GET", address, target) + b"\r\n"

        def take_good(part: bytes) -> None:
            if connection.status != 200:
                raise NoAnswer(f"status {connection.status}")
            take(part)

        try:
            status = await connection.ask(request, take_good, silence_s, endless=True)
        finally:
            connection.abort()
        if status != 200:
            raise NoAnswer(f"status {status}")

    def close(self) -> None:
        """Close the connections that are kept; what is under way ends with its task."""
        for connections in self.idle.values():
            for connection in connections:
                connection.abort()
        self.idle.clear()

    def _keep(self, address: str, connection: "_Connection") -> None:
        """For the next post. Those that have waited too long, or were closed, go."""
        now = self._loop.time()
        kept = [other for other in self.idle.get(address, []) if other.usable(now)]
        connection.kept_until = now + KEPT_S
        self.idle[address] = [*kept, connection]

    def _kept(self, address: str) -> "_Connection | None":
        connections = self.idle.get(address, [])
        while connections:
            connection = connections.pop()
            if connection.usable(self._loop.time()):
                return connection
        self.idle.pop(address, None)
        return None

    async def _connect(self, address: str, timeout_s: float) -> "_Connection":
        host, _, port = address.rpartition(":")
        tls = None if self._tls is None else OneConnection(self._tls)
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await self._loop.create_connection(
                    lambda: _Connection(tls),
                    host.strip("[]"),
                    int(port),
                    ssl=tls,
                    server_hostname=None if tls is None else site_hostname(self._site),
                )
        except TimeoutError:
            raise NotConnected(f"no connection within {timeout_s:g} s") from None
        except OSError as error:
            raise _broken(error, tls) from error
        return connection

    def _head(self, method: str, address: str, target: str) -> bytes:
        return f"{method} {target} HTTP/1.1\r\nhost: {address}\r\n{self._authorization}".encode()


class _Connection(asyncio.Protocol):
    """One connection, with at most one request under way."""

    def __init__(self, tls: OneConnection | None) -> None:
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = HttpResponseParser(self)
        self._take: Take = _nothing
        self._answered: asyncio.Future[int] | None = None  # with its status, of what is under way
        self.status = 0  # of the answer under way, once its head is there
        self._delimited = False  # the answer says where it ends; else the connection's end does
        self._heard_at = 0.0
        self._patience_s = 0.0
        self._endless = False
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.kept_until = 0.0

    @property
    def kept(self) -> bool:
        """Whether another request may be sent."""
        return not self._closed and self._answered is None

    def usable(self, now: float) -> bool:
        """Whether one that waits may still be used; else it is closed."""
        if self.kept and self.kept_until > now:
            return True
        self.abort()
        return False

    async def ask(self, request: bytes, take: Take, patience_s: float, *, endless: bool) -> int:
        """Send a request; the status of its answer once all of that was taken.

        The answer must be whole within `patience_s`; if it is `endless`, each word of it within
        `patience_s` of the one before. Raises NoAnswer, and what `take` raises; the connection is
        of no use afterwards.
        """
        if self._closed or self._transport is None:
            raise NoAnswer("connection lost")
        answered: asyncio.Future[int] = self._loop.create_future()
        self._answered = answered
        self._take, self._patience_s, self._endless = take, patience_s, endless
        self._heard_at = self._loop.time()
        self._timer = self._loop.call_later(patience_s, self._look)
        self._transport.write(request)
        try:
            return await answered
        finally:
            self._timer.cancel()
            if self._answered is not None:
                self.abort()

    def abort(self) -> None:
        """Close at once."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    def _look(self) -> None:
        """Silent for too long? The timer is not set again at every word."""
        left = self._heard_at + self._patience_s - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        elif self._endless:
            self._fail(Silent(f"silent for {self._patience_s:g} s"))
        else:
            self._fail(Silent(f"no whole answer within {self._patience_s:g} s"))

    def _fail(self, error: Exception) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(error)
        self.abort()

    # ------------------------------------------------------------ the loop's calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._closed:
            return
        if self._endless:
            self._heard_at = self._loop.time()
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            # The parser wraps what a callback raised: that is meant for whoever asked.
            cause = error.__context__
            self._fail(cause if isinstance(cause, Exception) else NoAnswer("not HTTP"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        if self._answered is None or self._answered.done():
            return
        if self.status and not self._delimited and exc is None:
            self._complete()
        else:
            self._answered.set_exception(_broken(exc, self._tls))

    # ------------------------------------------------------------ the parser's calls

    def on_message_begin(self) -> None:
        self._delimited = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._delimited |= name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        self.status = int(self._parser.get_status_code())

    def on_body(self, body: bytes) -> None:
        if not self._closed:
            self._take(body)

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self._closed = True
        self._complete()

    def _complete(self) -> None:
        answered, self._answered = self._answered, None
        if answered is not None and not answered.done():
            answered.set_result(self.status)
        self.status, self._take = 0, _nothing


def _nothing(part: bytes) -> None:
    """Nobody has asked for this part."""


def _broken(error: BaseException | None, tls: OneConnection | None) -> NoAnswer:
    """What a connection's end means to whoever asked."""
    refused = None if tls is None else tls.refused
    if refused is not None:
        why = str(refused)
    elif error is None:
        why = "connection closed"
    else:
        why = _WORDS.get(type(error), type(error).__name__)
    broken = NoAnswer(why)
    broken.refused = refused
    return broken


_WORDS: dict[type[BaseException], str] = {
    ConnectionRefusedError: "connection refused",
    ConnectionResetError: "connection reset",
    ConnectionAbortedError: "connection lost",
    BrokenPipeError: "connection lost",
}


def _split(url: str) -> tuple[str, str]:
    """Host and port, and the rest, of a URL that names all of them."""
    parts = urlsplit(url)
    return parts.netloc, f"{parts.path}?{parts.query}"
