"""A worker's way to one store: questions have deadlines, and a store that is away costs nothing."""

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from transport.tls import site_hostname
from workers.tiers.blocks import Block, Tier
from workers.tiers.holdings import SHORT_BYTES, VERSION_BYTES, Told
from workers.tiers.wire import (
    CODE_TIERS,
    MAX_BLOCK_BYTES,
    MAX_HOLDINGS_BYTES,
    MAX_KEYS,
    MAX_TEXT_BYTES,
    Kind,
    Wire,
    WireBroken,
    join_keys,
)

RETRY_S = 1.0  # a store that did not answer is left alone for so long
PUT_BYTES = 16 << 20  # of one PUT; the store must hold it before any of it is kept
DIAL_S = 1.0

T = TypeVar("T")


class StoreAway(Exception):
    """The store does not answer, not in time, or not as it should."""


class StoreClient:
    """Its verbs block, until `deadline` (of monotonic time) at most; from any thread.

    `address` is host:port. Raises StoreAway.
    """

    def __init__(
        self, address: str, secret: str, *, site: str = "", tls: ssl.SSLContext | None = None
    ) -> None:
        self.address = address
        self._secret = secret.encode()
        self._hostname = site_hostname(site)
        self._tls = tls
        self._lock = threading.Lock()
        self._idle: list[Wire] = []
        self._away_until = 0.0
        self._why_away = ""

    def find(
        self, keys: Sequence[bytes], deadline: float, *, to_save: bool = False
    ) -> list[Tier | None]:
        """In which tier each block is; None: in none. `to_save`: what is not there is no miss."""

        def ask(wire: Wire) -> list[Tier | None]:
            tiers: list[Tier | None] = []
            for at in range(0, len(keys), MAX_KEYS):
                some = keys[at : at + MAX_KEYS]
                wire.send(Kind.FIND, join_keys(some), code=to_save)
                head = wire.head(Kind.FOUND, at_most=len(some))
                tiers += [CODE_TIERS.get(code) for code in wire.read(head.nbytes)]
            if len(tiers) != len(keys):
                raise WireBroken(f"{len(tiers)} answers to {len(keys)} keys")
            return tiers

        return self._with_wire(ask, deadline)

    def get(
        self, keys: Sequence[bytes], deadline: float, take: Callable[[int, Block, Tier], None]
    ) -> None:
        """Give `take` the place, bytes and tier of each block that is there, in order.

        What `take` raises ends it.
        """

        def ask(wire: Wire) -> None:
            wire.send(Kind.GET, join_keys(keys))
            for place in range(len(keys)):
                head = wire.head(Kind.BLOCK, at_most=MAX_BLOCK_BYTES)
                tier = CODE_TIERS.get(head.code)
                data = wire.read(head.nbytes)
                if tier is not None:
                    take(place, Block(data, head.number), tier)

        self._with_wire(ask, deadline)

    def put(self, tenant: str, blocks: Sequence[tuple[bytes, Block]], deadline: float) -> None:
        """Give the store blocks. What it does with them is its own business, and counted there."""

        def ask(wire: Wire) -> None:
            for some in _batches(blocks):
                wire.send(Kind.PUT, tenant.encode(), number=len(some))
                for key, block in some:
                    wire.send(Kind.BLOCK, key, block.data, number=block.crc)
                wire.head(Kind.TAKEN, at_most=0)

        self._with_wire(ask, deadline)

    def account(self, deadline: float) -> dict[str, Any]:
        """See `BlockStore.account`."""

        def ask(wire: Wire) -> dict[str, Any]:
            wire.send(Kind.ACCOUNT)
            head = wire.head(Kind.ACCOUNT, at_most=MAX_TEXT_BYTES)
            answer: dict[str, Any] = json.loads(wire.read(head.nbytes))
            return answer

        return self._with_wire(ask, deadline)

    def holdings(self, since: bytes, deadline: float) -> Told:
        """See `BlockStore.holdings`."""

        def ask(wire: Wire) -> Told:
            wire.send(Kind.HOLDINGS, since)
            head = wire.head(Kind.HOLDINGS, at_most=MAX_HOLDINGS_BYTES)
            body = bytes(wire.read(head.nbytes))
            if (len(body) - VERSION_BYTES) % SHORT_BYTES or len(body) < VERSION_BYTES:
                raise WireBroken(f"{len(body)} bytes are no holdings")
            starts = range(VERSION_BYTES, len(body), SHORT_BYTES)
            names = [body[at : at + SHORT_BYTES] for at in starts]
            return Told(
                version=body[:VERSION_BYTES],
                whole=bool(head.code),
                added=tuple(names[: head.number]),
                removed=tuple(names[head.number :]),
            )

        return self._with_wire(ask, deadline)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for wire in idle:
            wire.close()

    def _with_wire(self, ask: Callable[[Wire], T], deadline: float) -> T:
        """Ask over a connection nobody uses; it is kept if all went well."""
        if time.monotonic() >= deadline:  # who comes too late says nothing of the store
            raise StoreAway(f"store {self.address}: not asked any more")
        while True:
            wire = self._idle_wire()
            fresh = wire is None
            try:
                wire = wire or self._dial(deadline)
            except (OSError, WireBroken) as error:
                raise self._away(error) from error
            try:
                wire.deadline = deadline
                answer = ask(wire)
            except (OSError, WireBroken, json.JSONDecodeError) as error:
                wire.close()
                if fresh or isinstance(error, TimeoutError):
                    raise self._away(error) from error
                continue  # the store was started again since: the next one, or a new one
            except BaseException:
                wire.close()
                raise
            with self._lock:
                self._idle.append(wire)
            return answer

    def _idle_wire(self) -> Wire | None:
        with self._lock:
            if time.monotonic() < self._away_until:
                raise StoreAway(self._why_away)
            return self._idle.pop() if self._idle else None

    def _dial(self, deadline: float) -> Wire:
        left = min(DIAL_S, deadline - time.monotonic())
        if left <= 0:
            raise TimeoutError("not in time")
        host, port = self.address.rsplit(":", 1)
        connection = socket.create_connection((host, int(port)), timeout=left)
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_hostname=self._hostname)
            wire = Wire(connection)
            wire.deadline = min(deadline, time.monotonic() + DIAL_S)
            wire.greet(self._secret)
        except BaseException:
            connection.close()
            raise
        return wire

    def _away(self, error: Exception) -> StoreAway:
        away = StoreAway(f"store {self.address}: {str(error) or type(error).__name__}")
        with self._lock:
            self._away_until, self._why_away = time.monotonic() + RETRY_S, str(away)
        return away


def _batches(blocks: Sequence[tuple[bytes, Block]]) -> Iterator[list[tuple[bytes, Block]]]:
    some: list[tuple[bytes, Block]] = []
    size = 0
    for key, block in blocks:
        if some and size + len(block.data) > PUT_BYTES:
            yield some
            some, size = [], 0
        some.append((key, block))
        size += len(block.data)
    if some:
        yield some
