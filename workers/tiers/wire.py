"""What a worker and a store say to each other: one question at a time on a connection.

    FIND  keys; code 1: to save      -> FOUND  one byte a key
          what is not there
    GET   keys                       -> BLOCK  one for each key, in their order; empty: not here
    PUT   tenant, then BLOCKs,       -> TAKEN
          each with its key before its bytes
    ACCOUNT                          -> ACCOUNT  JSON
    HOLDINGS a version, or nothing   -> HOLDINGS the version then, then short names (`holdings`):
                                        as many that came as the number says, then those that went

A head is kind u8, code u8, two bytes of nothing, number u32, length u64, little-endian. Before the
first question both prove that they know the deployment's secret.
"""

import hmac
import secrets
import socket
import struct
import time
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from workers.tiers.blocks import KEY_BYTES, Tier
from workers.tiers.holdings import SHORT_BYTES, TOLD_AT_ONCE, VERSION_BYTES

_HEAD = struct.Struct("<BBxxIQ")
_NONCE_BYTES, _DIGEST_BYTES = 16, 32
MAX_KEYS = 1 << 16
MAX_BLOCK_BYTES = 64 << 20
MAX_PUT_BYTES = 64 << 20
MAX_TEXT_BYTES = 1 << 20
MAX_HOLDINGS_BYTES = VERSION_BYTES + TOLD_AT_ONCE * SHORT_BYTES
# Between questions a connection is silent, and the other end's host may vanish.
_KEEPALIVE = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}
# A tier as a byte of FOUND, and as a BLOCK's code; 0: not here.
TIER_CODES: dict[Tier | None, int] = {None: 0, Tier.MEMORY: 1, Tier.FILES: 2}
CODE_TIERS = {code: tier for tier, code in TIER_CODES.items()}


class WireBroken(Exception):
    """The other end does not keep to the protocol, or is not of this deployment."""


class Kind(IntEnum):
    """What a message is; see the module's docstring."""

    FIND = 1
    FOUND = 2
    GET = 3
    BLOCK = 4
    PUT = 5
    TAKEN = 6
    ACCOUNT = 7
    HOLDINGS = 8


class Head(NamedTuple):
    """`code` and `number` mean what the kind says: a BLOCK's tier and its checksum."""

    kind: Kind
    code: int
    number: int
    nbytes: int


class Wire:
    """One connection. Every verb raises OSError (TimeoutError past `deadline`) and WireBroken."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self.deadline: float | None = None  # of monotonic time; None: none
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE.items():
                connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def close(self) -> None:
        self._socket.close()

    def hang_up(self) -> None:
        """End whatever another thread does with it."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def send(
        self, kind: Kind, *parts: bytes | bytearray | memoryview, code: int = 0, number: int = 0
    ) -> None:
        """One message; its body is all `parts`."""
        head = _HEAD.pack(kind, code, number, sum(map(len, parts)))
        small = b"".join((head, *(part for part in parts if len(part) <= KEY_BYTES)))
        self._limit()
        self._socket.sendall(small)
        for part in parts:
            if len(part) > KEY_BYTES:
                self._limit()
                self._socket.sendall(part)

    def head(self, *kinds: Kind, at_most: int) -> Head:
        """The next message's head, of one of these kinds."""
        kind, code, number, nbytes = _HEAD.unpack(self.read(_HEAD.size))
        if kind not in kinds:
            raise WireBroken(f"kind {kind} where one of {[k.name for k in kinds]} belongs")
        if nbytes > at_most:
            raise WireBroken(f"{nbytes} bytes, at most {at_most} are taken")
        return Head(Kind(kind), code, number, nbytes)

    def read(self, nbytes: int) -> bytearray:
        """So many bytes, all of them."""
        data = bytearray(nbytes)
        view = memoryview(data)
        while view:
            self._limit()
            more = self._socket.recv_into(view)
            if not more:
                raise ConnectionResetError("the other end has closed the connection")
            view = view[more:]
        return data

    def _limit(self) -> None:
        if self.deadline is None:
            self._socket.settimeout(None)
            return
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("not in time")
        self._socket.settimeout(left)

    # ------------------------------------------------------------ who is there

    def greet(self, secret: bytes) -> None:
        """The connecting end's part; it proves itself first, so a stranger learns nothing."""
        theirs, mine = bytes(self.read(_NONCE_BYTES)), secrets.token_bytes(_NONCE_BYTES)
        self._socket.sendall(mine + _proof(secret, b"worker", mine, theirs))
        if not hmac.compare_digest(
            self.read(_DIGEST_BYTES), _proof(secret, b"store", mine, theirs)
        ):
            raise WireBroken("the store does not know this deployment's secret")

    def receive(self, secret: bytes) -> None:
        """The listening end's part."""
        mine = secrets.token_bytes(_NONCE_BYTES)
        self._limit()
        self._socket.sendall(mine)
        theirs = bytes(self.read(_NONCE_BYTES))
        if not hmac.compare_digest(
            self.read(_DIGEST_BYTES), _proof(secret, b"worker", theirs, mine)
        ):
            raise WireBroken("who connects does not know this deployment's secret")
        self._socket.sendall(_proof(secret, b"store", theirs, mine))


def _proof(secret: bytes, side: bytes, connecting: bytes, listening: bytes) -> bytes:
    return hmac.digest(secret, b"pdd store " + side + connecting + listening, "sha256")


def join_keys(keys: Sequence[bytes]) -> bytes:
    return b"".join(keys)


def split_keys(data: bytearray) -> list[bytes]:
    """Raises WireBroken."""
    if len(data) % KEY_BYTES:
        raise WireBroken(f"{len(data)} bytes are no keys")
    return [bytes(data[at : at + KEY_BYTES]) for at in range(0, len(data), KEY_BYTES)]
