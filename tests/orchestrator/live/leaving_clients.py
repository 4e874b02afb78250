"""Many clients at once, some of which leave at a random moment: a process of its own.

    python -m tests.orchestrator.live.leaving_clients BASE REQUESTS AT_ONCE LEAVING SEED

Raw sockets, so that a client costs next to nothing and really leaves. Prints one JSON object: how
many answers came to their end, how many were left, and what else happened.
"""

import asyncio
import json
import random
import sys
from collections import Counter

import uvloop

TOKENS = 24
WAIT_S = 120.0


def request(host: str, rng: random.Random) -> bytes:
    """A completion, streamed or not; prompts begin alike or not."""
    start = rng.randrange(5)
    body = json.dumps(
        {
            "model": "smollm2-135m",
            "prompt": [1000 + start * 64 + i for i in range(rng.choice((8, 20, 40)))],
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "stream": rng.random() < 0.8,
            "n": 2 if rng.random() < 0.1 else 1,
        }
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Content-Type: application/json\r\nConnection: close\r\n\r\n" + body


async def one(host: str, port: int, rng: random.Random, leaves: bool) -> str:
    """What became of one request."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(request(host, rng))
        try:
            async with asyncio.timeout(rng.uniform(0.0, 1.5) if leaves else WAIT_S):
                answer = await reader.read(-1)
        except TimeoutError:
            return "left" if leaves else "hangs"
        status = answer[9:12].decode()
        whole = b"[DONE]" in answer or b'"total_tokens"' in answer
        return status if status != "200" or whole else "cut off"
    finally:
        if leaves:
            writer.transport.abort()
        writer.close()


async def main() -> None:
    host, port = sys.argv[1].removeprefix("http://").split(":")
    requests, at_once, seed = int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[5])
    leaving = float(sys.argv[4])
    rng = random.Random(seed)
    turns = asyncio.Semaphore(at_once)
    told: Counter[str] = Counter()

    async def turn(number: int) -> None:
        async with turns:
            own = random.Random(seed * 1_000_000 + number)
            told[await one(host, int(port), own, leaves=own.random() < leaving)] += 1

    rng.shuffle(numbers := list(range(requests)))
    await asyncio.gather(*map(turn, numbers))
    print(json.dumps(told))


if __name__ == "__main__":
    uvloop.run(main())
