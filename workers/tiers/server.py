"""A store's front: one thread a connection, each bound by its own socket's patience."""

import contextlib
import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable

from transport.tls import peer_names, site_hostname
from workers.tiers.blocks import KEY_BYTES, Block
from workers.tiers.store import BlockStore
from workers.tiers.wire import (
    MAX_BLOCK_BYTES,
    MAX_KEYS,
    MAX_PUT_BYTES,
    TIER_CODES,
    VERSION,
    Head,
    Kind,
    Wire,
    WireBroken,
    split_keys,
)

HANDSHAKE_S = 5.0
PATIENCE_S = 30.0  # with one question and its answer
MAX_CONNECTIONS = 256

log = logging.getLogger(__name__)


class StoreServer:
    """Serves `store` on `listening` from `start` to `close`.

    With `tls` it takes connections of `site` only; the secret is asked for in any case.
    """

    def __init__(
        self,
        store: BlockStore,
        listening: socket.socket,
        secret: str,
        *,
        site: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._store = store
        self._listening = listening
        host, port = listening.getsockname()[:2]
        self.address = f"{host}:{port}"
        self._secret = secret.encode()
        self._hostname = site_hostname(site)
        self._tls = tls
        self._lock = threading.Lock()
        self._open: set[Wire] = set()
        self._closing = False
        self._thread = threading.Thread(target=self._accept, name="store", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Hang up on everybody."""
        self._closing = True
        with contextlib.suppress(OSError):  # wakes the thread that waits in `accept`
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()
        with self._lock:
            for wire in self._open:
                with contextlib.suppress(OSError):
                    wire.hang_up()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                if self._closing:
                    return
                log.exception("no connection taken")  # no file descriptors, say
                time.sleep(0.1)
                continue
            if len(self._open) >= MAX_CONNECTIONS:
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(HANDSHAKE_S)
            try:
                wire = Wire(self._wrapped(connection))
                wire.deadline = time.monotonic() + HANDSHAKE_S
                wire.receive(self._secret)
            except (OSError, WireBroken) as error:
                log.warning("connection refused", extra={"reason": str(error)})
                return
            with self._lock:
                self._open.add(wire)
            try:
                while not self._closing:
                    self._answer(wire)
            except (OSError, WireBroken, ValueError) as error:
                if not isinstance(error, ConnectionError):
                    log.warning("connection ended", extra={"reason": str(error)})
            finally:
                with self._lock:
                    self._open.discard(wire)
                wire.close()

    def _wrapped(self, connection: socket.socket) -> socket.socket:
        if self._tls is None:
            return connection
        wrapped = self._tls.wrap_socket(connection, server_side=True)
        if self._hostname not in peer_names(wrapped):
            raise WireBroken(f"who connects is not of {self._hostname}")
        return wrapped

    # ------------------------------------------------------------ one question

    def _answer(self, wire: Wire) -> None:
        wire.deadline = None  # between questions a worker may be silent for ever
        head = wire.head(*_ANSWERS, at_most=MAX_KEYS * KEY_BYTES)
        wire.deadline = time.monotonic() + PATIENCE_S
        body = wire.read(head.nbytes)
        _ANSWERS[head.kind](self, wire, head, body)

    def _find(self, wire: Wire, head: Head, body: bytearray) -> None:
        tiers = self._store.find(split_keys(body))
        wire.send(Kind.FOUND, bytes(TIER_CODES[tier] for tier in tiers))

    def _account(self, wire: Wire, head: Head, body: bytearray) -> None:
        wire.send(Kind.ACCOUNT, json.dumps(self._store.account()).encode())

    def _holdings(self, wire: Wire, head: Head, body: bytearray) -> None:
        if len(body) != VERSION.size:
            raise WireBroken(f"{len(body)} bytes are no version")
        told = self._store.holdings(*VERSION.unpack(body))
        names = b"".join((*told.added, *told.removed))
        version = VERSION.pack(told.version)
        wire.send(Kind.HOLDINGS, version, names, code=told.whole, number=len(told.added))

    def _get(self, wire: Wire, head: Head, body: bytearray) -> None:
        for key in split_keys(body):
            wire.deadline = time.monotonic() + PATIENCE_S
            found = self._store.get(key)
            if found is None:
                wire.send(Kind.BLOCK)
                continue
            block, tier = found
            wire.send(Kind.BLOCK, block.data, code=TIER_CODES[tier], number=block.crc)

    def _put(self, wire: Wire, put: Head, body: bytearray) -> None:
        blocks: list[tuple[bytes, Block]] = []
        left = MAX_PUT_BYTES
        for _ in range(put.number):
            head = wire.head(Kind.BLOCK, at_most=min(left, KEY_BYTES + MAX_BLOCK_BYTES))
            if head.nbytes <= KEY_BYTES:
                raise WireBroken(f"a block of {head.nbytes} bytes with its key")
            left -= head.nbytes
            key = bytes(wire.read(KEY_BYTES))
            blocks.append((key, Block(wire.read(head.nbytes - KEY_BYTES), head.number)))
        self._store.put(body.decode(), blocks)
        wire.send(Kind.TAKEN)


_ANSWERS: dict[Kind, Callable[[StoreServer, Wire, Head, bytearray], None]] = {
    Kind.FIND: StoreServer._find,
    Kind.GET: StoreServer._get,
    Kind.PUT: StoreServer._put,
    Kind.ACCOUNT: StoreServer._account,
    Kind.HOLDINGS: StoreServer._holdings,
}
