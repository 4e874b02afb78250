"""The sending process: one KV client, and a transfer for each line it is told."""

import asyncio
import json
import sys
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import uvloop

from benchmarks.link.kv import LAYERS, TOKEN_BYTES, slices, tiled
from benchmarks.link.memory import Memory
from benchmarks.link.receiving import LAYOUT, MODEL, SECRET, tell
from transport.base import Offer, StreamId
from transport.memory import keep_freed_memory
from transport.tcp.client import KVClient
from transport.tcp.peer import Route


async def transfer(
    client: KVClient, route: Route, kv: np.ndarray, order: dict[str, Any], memory: Memory
) -> None:
    """Send the first `tokens` of everything, and say when it began and what it took."""
    tokens = order["tokens"]
    pieces = list(slices(kv[:, :, :tokens], order["slice_tokens"]))
    memory.begin()
    offer = Offer(
        stream=StreamId(order["request"], 0, 1),
        start=0,
        stop=tokens,
        slices_per_token=2 * LAYERS,
        cache_salt="",
        blocks=(),
    )
    began = monotonic()
    stream = await client.open(route, offer, order["codec"], token_bytes=TOKEN_BYTES, early=True)
    for piece in pieces:
        await stream.send(piece)
    await stream.finish()
    sent, again = stream.sent_bytes
    tell(
        request=order["request"],
        began=began,
        sent_bytes=sent,
        resent_bytes=again,
        grown_bytes=memory.grown_bytes,
    )


async def main(address: str, path: str, tokens: int, connections: int) -> None:
    keep_freed_memory()
    kv = tiled(Path(path), tokens)
    client = KVClient(
        name="sender", secret=SECRET, model=MODEL, layout=LAYOUT, connections=connections
    )
    memory = Memory()
    tell(ready=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        await transfer(client, Route(address=address), kv, json.loads(line), memory)
    await client.close()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
