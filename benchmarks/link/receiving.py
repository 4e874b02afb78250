"""The receiving process: a KV server whose sink is a pool of ordinary memory.

Each line on standard input is an order: {"begin": ...} starts to count memory and sets how many
pieces pass between two damaged ones (null: none), {"kill": true} breaks a connection that is in
use, and {"asked": ...} asks what was seen.
"""

import asyncio
import json
import sys
from time import monotonic
from typing import Any

import numpy as np
import uvloop

from benchmarks.link.kv import HEADS, LAYERS, SIZE
from benchmarks.link.memory import Memory
from transport.base import Offer, Slice, StreamId, StreamStats
from transport.memory import keep_freed_memory
from transport.stream.frames import Data
from transport.stream.reader import Arrived
from transport.tcp.server import KVServer

SECRET, MODEL, LAYOUT = "bench", "smollm2", "one array"


class Pool:
    """[layers, 2, tokens, heads, size]: every put is copied in, as an engine's would be."""

    def __init__(self, tokens: int) -> None:
        self._rows = np.ones((LAYERS, 2, tokens, HEADS, SIZE), np.uint16)

    def offered(self, offer: Offer) -> int:
        return 0

    def put(self, stream: StreamId, piece: Slice) -> None:
        layer, part, start, stop = piece.key
        self._rows[layer, "kv".index(part), start:stop] = piece.data

    def completed(self, stream: StreamId, stats: StreamStats) -> None:
        tell(request=stream.request, done_at=monotonic(), wire_bytes=stats.bytes_wire)

    def broken(self, stream: StreamId, reason: str) -> None:
        tell(request=stream.request, broken=reason)


class WatchedServer(KVServer):
    """Notes when the last byte of a piece was there, before it is decoded; does some harm."""

    read_at = 0.0
    damaged = 0
    every: int | None = None
    _pieces = 0
    _last: Any = None

    def decode(self, conn: Any, arrived: Arrived, data: Data) -> None:
        self.read_at, self._last = monotonic(), conn
        self._pieces += 1
        if self.every is not None and self._pieces % self.every == 0:
            self.damaged += 1
            assert isinstance(arrived.body, memoryview)
            arrived.body[len(arrived.body) // 2] ^= 1
        super().decode(conn, arrived, data)

    def kill(self) -> None:
        """Break the connection that brought the last piece."""
        self._last.wire.fail(ConnectionAbortedError("killed for the measurement"))


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


async def main(host: str, tokens: int) -> None:
    keep_freed_memory()
    memory = Memory()
    server = WatchedServer(
        Pool(tokens), name="receiver", secret=SECRET, model=MODEL, layout=LAYOUT, host=host
    )
    await server.start()
    tell(port=server.port)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        if "begin" in order:
            server.every, server.damaged = order["damage_every"], 0
            memory.begin()
        elif "kill" in order:
            server.kill()
        else:
            tell(read_at=server.read_at, damaged=server.damaged, grown_bytes=memory.grown_bytes)
    await server.close()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
