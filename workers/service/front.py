"""The HTTP front of a process: its port, taken before anything slow, and uvicorn behind it."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Literal

import uvicorn
from starlette.types import ASGIApp

_BACKLOG = 512


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
    it speaks nothing else. `http` is uvicorn's protocol for a connection, or makes one's own.
    """

    def __init__(
        self,
        app: ASGIApp,
        tls: ssl.SSLContext | None = None,
        *,
        http: Callable[..., asyncio.Protocol] | Literal["auto"] = "auto",
    ) -> None:
        self.up = asyncio.Event()
        self._tls = tls
        super().__init__(
            uvicorn.Config(
                app,
                http=http,  # type: ignore[arg-type]  # any callable that makes one will do
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_keep_alive=75,  # longer than clients keep theirs: they are the ones to end
                timeout_graceful_shutdown=2,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.config.ssl = self._tls
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
