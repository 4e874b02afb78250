"""The server's end of a client's connection: uvicorn's, with bounds, and a straight way out.

A token goes from the core to the socket through `write` and `flush`. The way through ASGI's
`send` costs a task switch and several coroutines, which for a token is more than all the rest.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import httptools
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from orchestrator.live.openai.errors import ApiError

MAX_HEAD_BYTES = 32 << 10
MAX_HEADERS = 128
HEAD_S = 60.0  # from a head's first byte, or from connecting, to its end
BACKLOG_BYTES = 1 << 20  # beyond the socket's own buffers, for a client that reads slowly
SEND_BUFFER_BYTES = 128 << 10  # of a connection's socket, for whoever opens the port
LINGER_S = 75.0  # for a client that has not taken the end of its last answer
CONNECTION = "pdd.connection"  # in a scope's extensions

log = logging.getLogger(__name__)


class Listener(Protocol):
    """Told when the client has left or was given up; nothing can be written any more."""

    def lost(self) -> None: ...


class Outgoing:
    """Connections of a server with something to write when this turn of the loop is over.

    What a turn brings for one client leaves in one piece: a gateway that is behind writes less.
    """

    def __init__(self) -> None:
        self._waiting: list[Connection] = []

    def add(self, connection: "Connection") -> None:
        if not self._waiting:
            connection.loop.call_soon(self._flush)
        self._waiting.append(connection)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for connection in waiting:
            try:
                connection.flush()
            except Exception:  # a defect, which must not cost the clients after this one
                log.exception("client's connection")
                connection.transport.abort()


class Connection(HttpToolsProtocol):
    """One client's connection. `outgoing` is that of all connections of the server.

    A head that is too large is refused with 431, one that takes too long with 408. While a
    listener follows, what is written and not taken by the client is kept in bounds: beyond
    `BACKLOG_BYTES`, or not taken for as long as the listener's patience, the client is given up.
    Another protocol that is offered (HTTP/2 by Java's client, with every request) is declined.
    """

    def __init__(self, outgoing: Outgoing, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._outgoing = outgoing
        self._unsent = b""  # written in this turn of the loop
        self._listener: Listener | None = None
        self._write_s = 0.0
        self._backlog: list[bytes] = []
        self._backlog_size = 0
        self._stalled: asyncio.TimerHandle | None = None
        self._head_size = 0  # bytes read while the head is not complete
        self._fields_size = 0
        self._in_head = True
        self._head_timer: asyncio.TimerHandle | None = None
        self._refusal: ApiError | None = None

    # ------------------------------------------------------------ writing

    @contextmanager
    def followed(self, listener: Listener, write_s: float) -> Iterator[None]:
        """`listener` hears of the client's leaving; a write may wait for `write_s`."""
        self._listener, self._write_s = listener, write_s
        self.flow.resume_reading()  # or nobody would see the client leave
        if self.flow.write_paused:
            self._stall()
        if self.transport.is_closing():
            listener.lost()
        try:
            yield
        finally:
            self._listener = None
            self._forget_backlog()

    def write(self, body: bytes) -> None:
        """Send a part of a chunked body, when this turn is over or when the client takes it."""
        if self._unsent:
            self._unsent += body
        else:
            self._unsent = body
            self._outgoing.add(self)

    def flush(self) -> None:
        """Send what was written in this turn: something else follows."""
        body, self._unsent = self._unsent, b""
        if not body:
            return
        chunk = b"%x\r\n%b\r\n" % (len(body), body)
        if not self.flow.write_paused:
            self.transport.write(chunk)
            return
        self._backlog.append(chunk)
        self._backlog_size += len(chunk)
        if self._backlog_size > BACKLOG_BYTES:
            self.give_up()

    def give_up(self) -> None:
        """The client takes nothing: end the connection, whatever is still to be sent."""
        self._forget_backlog()
        self.transport.abort()
        if self._listener is not None:
            self._listener.lost()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._listener is not None:
            self._stall()

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        super().resume_writing()
        if self._backlog:
            waiting = b"".join(self._backlog)
            self._backlog, self._backlog_size = [], 0
            self.transport.write(waiting)

    def _stall(self) -> None:
        self._stalled = self.loop.call_later(self._write_s, self.give_up)

    def _forget_backlog(self) -> None:
        self._unsent = b""
        self._backlog, self._backlog_size = [], 0
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    # ------------------------------------------------------------ reading

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._no_head_due()
        self._forget_backlog()
        super().connection_lost(exc)
        if self._listener is not None:
            self._listener.lost()

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            if self._head_timer is None:
                self._await_head()
            self._head_size += len(data)
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self._refuse(self._refusal or _NOT_HTTP)
        if self._in_head and self._head_size > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(_HEAD_TOO_LARGE)

    def _parse(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offered:
                # The parser takes all that follows, the body too, for the other protocol's.
                head = self._head_without_offer()
                data = data[offered.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
                self.parser.feed_data(head)  # has no offer

    def _head_without_offer(self) -> bytes:
        """The head just read, in HTTP/1 only. Raises HttpParserError for a tunnel."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            raise httptools.HttpParserError
        lines = [b"%b %b HTTP/%b" % (method, self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            if name == b"connection":
                value = b",".join(o for o in value.split(b",") if o.strip().lower() != b"upgrade")
            if name != b"upgrade":
                lines.append(b"%b: %b" % (name, value))
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._fields_size = 0
        self.scope["extensions"] = {CONNECTION: self}  # type: ignore[dict-item]

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields_size += len(name) + len(value)
        if self._fields_size > MAX_HEAD_BYTES or len(self.headers) >= MAX_HEADERS:
            self._refusal = _HEAD_TOO_LARGE
            raise ValueError("head too large")  # ends the parsing
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # it will be read again
        self._in_head = False
        self._head_size = 0
        self._no_head_due()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self._in_head = True

    def _refuse(self, error: ApiError) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()  # in the middle of an answer nothing else can be said
            return
        body = error.body()
        head = (
            f"HTTP/1.1 {error.status} {error.code}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_S, self._head_is_late)

    def _no_head_due(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._head_size and not self.transport.is_closing():
            self._refuse(_HEAD_TOO_SLOW)
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self.loop.call_later(LINGER_S, self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()


_NOT_HTTP = ApiError(400, "this is no HTTP request", code="invalid_http")
_HEAD_TOO_LARGE = ApiError(
    431,
    f"the request's headers are larger than {MAX_HEAD_BYTES} bytes or more than {MAX_HEADERS}",
    code="headers_too_large",
)
_HEAD_TOO_SLOW = ApiError(408, "the request's headers took too long", code="timed_out")


def connection_of(scope: Scope) -> Connection:
    """The connection that a request came on."""
    connection: Connection = scope["extensions"][CONNECTION]
    return connection
