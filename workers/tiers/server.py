"""A store's front: one thread a connection, each bound by its own socket's patience.

Who connects is a stranger until it has proved itself. Strangers have little time, and there are
few at once: one too many takes the place of the oldest, so that a crowd of them cannot keep out a
worker, whose proof takes a moment.
"""

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
from workers.tiers.files import EXHAUSTED, cause_of
from workers.tiers.store import BlockStore
from workers.tiers.wire import (
    MAX_BLOCK_BYTES,
    MAX_KEYS,
    MAX_PUT_BYTES,
    TIER_CODES,
    Head,
    Kind,
    Wire,
    WireBroken,
    split_keys,
)

HANDSHAKE_S = 5.0
PATIENCE_S = 30.0  # with one question and its answer
MAX_CONNECTIONS = 256
MAX_STRANGERS = 32
LOOK_S = 0.5  # how often strangers' time is looked at
AGAIN_S = 0.1  # after a connection could not be taken

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
        self._strangers: dict[socket.socket, float] = {}  # and since when, the oldest first
        self._closing = False
        self._thread = threading.Thread(target=self._accept, name="store", daemon=True)

    def start(self) -> None:
        self._listening.settimeout(LOOK_S)
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
            for stranger in self._strangers:
                _cut(stranger)

    def _accept(self) -> None:
        while not self._closing:
            self._cut_strangers()
            try:
                connection = self._wrapped(self._listening.accept()[0])
            except TimeoutError:
                continue
            except OSError as error:
                if not self._closing:
                    self._store.defect("accept", cause_of(error))
                    log.warning("no connection taken", extra={"reason": str(error)})
                    if error.errno in EXHAUSTED:
                        time.sleep(AGAIN_S)
                continue
            with self._lock:
                self._strangers[connection] = time.monotonic()
            try:
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            except RuntimeError as error:  # the process may have no more threads
                self._store.defect("accept", "no_thread")
                log.warning("no connection taken", extra={"reason": str(error)})
                self._known(connection)
                connection.close()

    def _cut_strangers(self) -> None:
        """Hang up on those whose time is over, and on the oldest until there is room for one."""
        now = time.monotonic()
        with self._lock:
            strangers = list(self._strangers.items())
        for number, (connection, since) in enumerate(strangers):
            if now - since > HANDSHAKE_S or len(strangers) - number >= MAX_STRANGERS:
                _cut(connection)  # its thread notices, and counts it
                self._known(connection)

    def _known(self, connection: socket.socket) -> None:
        """This connection is a stranger's no more."""
        with self._lock:
            self._strangers.pop(connection, None)

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                wire = self._received(connection)
            except (OSError, WireBroken) as error:
                self._store.defect("greet", _cause(error))
                log.warning("connection refused", extra={"reason": str(error)})
                return
            finally:
                self._known(connection)
            with self._lock:
                full = len(self._open) >= MAX_CONNECTIONS
                if not full:
                    self._open.add(wire)
            if full:
                self._store.defect("accept", "too_many")
                wire.close()
                return
            try:
                while not self._closing:
                    self.answer(wire)
            except (OSError, WireBroken, ValueError) as error:
                if not isinstance(error, ConnectionError):
                    self._store.defect("answer", _cause(error))
                    log.warning("connection ended", extra={"reason": str(error)})
            finally:
                with self._lock:
                    self._open.discard(wire)
                wire.close()

    def _received(self, connection: socket.socket) -> Wire:
        """A stranger that has proved itself. Raises OSError and WireBroken."""
        connection.settimeout(HANDSHAKE_S)
        if isinstance(connection, ssl.SSLSocket):
            connection.do_handshake()
            if self._hostname not in peer_names(connection):
                raise WireBroken(f"who connects is not of {self._hostname}")
        wire = Wire(connection)
        wire.deadline = time.monotonic() + HANDSHAKE_S
        wire.receive(self._secret)
        return wire

    def _wrapped(self, connection: socket.socket) -> socket.socket:
        if self._tls is None:
            return connection
        return self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    # ------------------------------------------------------------ one question

    def answer(self, wire: Wire) -> None:
        """Wait for a question and answer it. Raises OSError, WireBroken and ValueError."""
        wire.deadline = None  # between questions a worker may be silent for ever
        head = wire.head(*_ANSWERS, at_most=MAX_KEYS * KEY_BYTES)
        wire.deadline = time.monotonic() + PATIENCE_S
        body = wire.read(head.nbytes)
        _ANSWERS[head.kind](self, wire, head, body)

    def _find(self, wire: Wire, head: Head, body: bytearray) -> None:
        tiers = self._store.find(split_keys(body), to_save=bool(head.code))
        wire.send(Kind.FOUND, bytes(TIER_CODES[tier] for tier in tiers))

    def _account(self, wire: Wire, head: Head, body: bytearray) -> None:
        wire.send(Kind.ACCOUNT, json.dumps(self._store.account()).encode())

    def _holdings(self, wire: Wire, head: Head, body: bytearray) -> None:
        told = self._store.holdings(bytes(body))
        names = b"".join((*told.added, *told.removed))
        wire.send(Kind.HOLDINGS, told.version, names, code=told.whole, number=len(told.added))

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


def _cut(connection: socket.socket) -> None:
    """End whatever another thread does with it; that thread closes it."""
    with contextlib.suppress(OSError):
        # Not TLS's own, which takes from that thread what it works with.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _cause(error: OSError | WireBroken | ValueError) -> str:
    return cause_of(error) if isinstance(error, OSError) else "nonsense"


_ANSWERS: dict[Kind, Callable[[StoreServer, Wire, Head, bytearray], None]] = {
    Kind.FIND: StoreServer._find,
    Kind.GET: StoreServer._get,
    Kind.PUT: StoreServer._put,
    Kind.ACCOUNT: StoreServer._account,
    Kind.HOLDINGS: StoreServer._holdings,
}
