"""The HTTP front of a process: its port, taken before anything slow, and uvicorn behind it."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_BACKLOG = 512
MAX_HEAD_BYTES = 32 << 10
HEAD_S = 10.0  # from connecting, or from a head's first byte, to its end
LAST_REQUEST_S = 1.0  # for what clients sent before they could know that the server leaves
_LEAVE_CHECK_S = 0.05
_CLOSE = (b"connection", b"close")


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A listening socket; who connects waits until a front serves on it. Raises OSError.

    `shared`: others may listen there too, if they share it.
    """
    taken = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        taken.bind((host, port))
        taken.listen(_BACKLOG)
    except OSError:
        taken.close()
        raise
    return taken


class Front(uvicorn.Server):
    """uvicorn without its signal handlers: the process decides what a signal means.

    `serve(sockets=[...])` ends once `should_exit` is set; `up` is set when it answers. With `tls`
    it speaks nothing else. `http` makes the protocol of a connection; None: uvicorn's, with
    bounds on what is read before anybody is known.
    """

    def __init__(
        self,
        app: ASGIApp,
        tls: ssl.SSLContext | None = None,
        *,
        http: Callable[..., asyncio.Protocol] | None = None,
    ) -> None:
        self.up = asyncio.Event()
        self._tls = tls
        self._listening: list[socket.socket] = []
        super().__init__(
            uvicorn.Config(
                app,
                http=http or _Bounded,  # type: ignore[arg-type]  # any callable that makes one
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_keep_alive=75,  # longer than clients keep theirs: they are the ones to end
                timeout_graceful_shutdown=2,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.config.ssl = self._tls
        self._listening = sockets or []
        await super().startup(sockets)
        self.up.set()

    async def leave(self, within_s: float) -> None:
        """Listen no more, and return when every client has its answer, or after so long.

        Each connection is closed after the answer under way, or where there is none after
        `LAST_REQUEST_S`. Until then a request that comes on it is served.
        """
        await self.up.wait()
        arrived = self._stop_listening()
        self.config.encoded_headers.append(_CLOSE)  # of which uvicorn makes new ones every second
        self.server_state.default_headers.append(_CLOSE)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.gather(*map(self._take, arrived))
        for connection in self.server_state.connections:
            if not _idle(connection):
                connection.shutdown()  # when it has answered
        while self.server_state.connections and (waited := loop.time() - began) < within_s:
            if waited >= LAST_REQUEST_S:
                for connection in list(self.server_state.connections):
                    connection.shutdown()
            await asyncio.sleep(_LEAVE_CHECK_S)

    def _stop_listening(self) -> list[socket.socket]:
        """Those who had connected and were not accepted: the kernel would reset them."""
        arrived = []
        for listening in self._listening:
            listening.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    arrived.append(listening.accept()[0])
        for server in self.servers:
            server.close()
        return arrived

    async def _take(self, arrived: socket.socket) -> None:
        arrived.setblocking(False)

        def protocol() -> asyncio.Protocol:
            return self.config.http_protocol_class(  # type: ignore[call-arg]  # as uvicorn does
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
            )

        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(protocol, arrived, ssl=self._tls)
        except OSError:  # it has left
            arrived.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _idle(connection: Any) -> bool:
    """Whether a connection of uvicorn's has no answer under way."""
    return connection.cycle is None or connection.cycle.response_complete


class _Bounded(HttpToolsProtocol):
    """A head that is too large or too slow ends the connection: who sends it is still a stranger.

    Bodies are their readers' business; uvicorn itself bounds neither heads nor their time.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._head_bytes = 0
        self._due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._due = self.loop.call_later(HEAD_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_time()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
            if self._due is None:
                self._due = self.loop.call_later(HEAD_S, self.transport.abort)
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            self.transport.abort()

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        self._in_time()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True
        super().on_message_complete()

    def _in_time(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
