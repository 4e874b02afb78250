"""After many clients, some of which left at a random moment, nothing is left of any of them.

The full measure (2,000 requests, 256 at once, three rounds) is `make leaks`: this file with
PDD_LEAKS=full.
"""

import asyncio
import ctypes
import gc
import json
import os
import sys
from dataclasses import dataclass

import psutil
import pytest
import uvloop

from orchestrator.membership.outbox import POSTS_AT_ONCE
from orchestrator.topology.schema import Topology
from tests.orchestrator.live.bare_service import Bare, bare_service, until

FULL = os.environ.get("PDD_LEAKS") == "full"
REQUESTS, AT_ONCE, ROUNDS = (2000, 256, 3) if FULL else (300, 64, 3)
LEAVING = 0.1
FREE_S = 5.0
# A worker is posted to over so many connections at most, on each of its two paths.
POSTS = 3 * 2 * POSTS_AT_ONCE
# What the first round leaves for good: caches of tokens' names, of grammars, of prompts' blocks.
FLAT_BYTES = 4 << 20

POOL = {"chip": "cpu", "engine": "simulated", "slots": 64, "kv_tokens": 32768, "chunk_tokens": 512}
FAST = {"simulate": {"prefill_tokens_per_s": 50_000.0, "step": 0.01}}
TOPOLOGY = Topology.model_validate(
    {
        "model": "smollm2-135m",
        "sites": {
            "hami": {
                "pools": {
                    "p": POOL | FAST | {"roles": ["prefill"]},
                    "r": POOL | FAST | {"roles": ["relay"]},
                }
            },
            "shenzhen": {"pools": {"m": POOL | FAST | {"roles": ["main"]}}},
        },
        "links": [{"between": ["hami", "shenzhen"], "delay": 0.0, "bandwidth": 1e9}],
        "gateway": {"site": "shenzhen"},
        "policy": {"codec": "raw", "queue_limit": 512, "deadlines": {"queue": 90.0}},
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What this process, the gateway's, holds: connections of clients and others, other files."""

    tasks: int
    clients: int
    others: int
    files: int
    bytes: int

    def within(self, before: "Held") -> bool:
        """No more than before. Connections for posts to workers are kept, in bounds."""
        return (
            self.tasks <= before.tasks
            and self.clients <= before.clients
            and self.files <= before.files
            and self.others <= before.others + POSTS
        )


def held(port: int) -> Held:
    """Now; `port` is where clients come."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is free goes back, so that what stays is held
    process = psutil.Process()
    connections = process.net_connections("tcp")
    clients = sum(c.laddr.port == port for c in connections)
    return Held(
        tasks=len(asyncio.all_tasks()),
        clients=clients,
        others=len(connections) - clients,
        files=process.num_fds() - len(connections),
        bytes=process.memory_info().rss,
    )


async def ask(url: str, requests: int, seed: int) -> dict[str, int]:
    """What became of the requests, by kind."""
    clients = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.orchestrator.live.leaving_clients", url),
        *(str(requests), str(AT_ONCE), str(LEAVING), str(seed)),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await clients.communicate()
    assert clients.returncode == 0
    told: dict[str, int] = json.loads(out)
    return told


async def settled(bare: Bare, before: Held | None) -> Held:
    """Once every worker is free and the gateway has no more open than before."""
    await bare.until_free(FREE_S)
    status = await bare.status(bare.urls[0])
    assert status["requests"] == {"open": 0, "queued": 0}

    port = int(bare.urls[0].rpartition(":")[2])

    async def back() -> bool:
        return before is None or held(port).within(before)

    await until(back, f"no more than {before}, it is {held(port)}", FREE_S)
    return held(port)


@pytest.mark.timeout(1800 if FULL else 400)
def test_nothing_is_left_of_clients_that_leave() -> None:
    async def whole() -> None:
        async with bare_service(TOPOLOGY) as bare:
            url = bare.urls[0]
            warm = await ask(url, AT_ONCE, 0)
            assert set(warm) <= {"200", "left"}, warm
            rounds = [await settled(bare, None)]
            for number in range(1, ROUNDS + 1):
                told = await ask(url, REQUESTS, number)
                assert set(told) == {"200", "left"}, told
                assert sum(told.values()) == REQUESTS
                assert told["left"] > REQUESTS * LEAVING / 4, "they leave before the end"
                rounds.append(await settled(bare, rounds[0]))
                print(told, rounds[-1])
            grown = rounds[-1].bytes - rounds[1].bytes
            assert grown < FLAT_BYTES, [one.bytes for one in rounds]

    uvloop.run(whole())
