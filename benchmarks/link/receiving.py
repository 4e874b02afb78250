"""The receiving process: a KV server whose sink is a pool of ordinary memory."""

import asyncio
import json
import resource
import sys
from time import monotonic
from typing import Any

import numpy as np
import uvloop

from benchmarks.link.kv import HEADS, LAYERS, SIZE
from transport.base import Offer, Slice, StreamId, StreamStats
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


class TimedServer(KVServer):
    """Notes when the last byte of a piece was there, before it is decoded."""

    read_at = 0.0

    def decode(self, conn: Any, arrived: Arrived, data: Data) -> None:
        self.read_at = monotonic()
        super().decode(conn, arrived, data)


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


async def main(host: str, tokens: int) -> None:
    server = TimedServer(
        Pool(tokens), name="receiver", secret=SECRET, model=MODEL, layout=LAYOUT, host=host
    )
    await server.start()
    tell(port=server.port)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        # Asked after each transfer; peak memory since the process began, in KiB as Linux counts.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        tell(asked=line.strip(), read_at=server.read_at, peak_bytes=peak)
    await server.close()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
