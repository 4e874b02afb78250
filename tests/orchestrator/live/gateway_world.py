"""A gateway as a whole on one socket, with workers whose words the test writes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import httpx
import uvloop

from orchestrator.live.directory import Directory
from orchestrator.live.gateway import Gateway, load_tokenizer, read_card, take_port
from orchestrator.live.openai.border.door import Door
from orchestrator.topology.schema import Topology
from tests.orchestrator.live.channel_peer import Peer, messages_line, serving
from workers.api.history import extend_history
from workers.api.messages import Load, TokenRun
from workers.engines.models import resolve_model

MODEL = "smollm2-135m"
TOPOLOGY = Topology.model_validate(
    {
        "model": MODEL,
        "sites": {
            "hami": {
                "pools": {
                    "p": {"chip": "cpu", "roles": ["prefill"]},
                    "r": {"chip": "cpu", "roles": ["relay"]},
                }
            },
            "shenzhen": {"pools": {"q": {"chip": "cpu", "roles": ["main"]}}},
        },
        "links": [{"between": ["hami", "shenzhen"], "delay": 0.025, "bandwidth": 1e6}],
        "gateway": {"site": "shenzhen"},
        "policy": {"route": "relay", "handoff": "catch-up"},
        "security": {"api_keys_env": "PDD_TEST_KEYS"},
    }
)
WORKERS = {"hami/p/0": "prefill", "hami/r/0": "relay", "shenzhen/q/0": "main"}
KEY = {"authorization": "Bearer k1"}
SECRET = {"authorization": "Bearer s3cret"}


class World:
    """A running gateway, its three workers and a client."""

    def __init__(
        self,
        gateway: Gateway,
        url: str,
        internal: str,
        http: httpx.AsyncClient,
        peers: dict[str, Peer],
    ) -> None:
        self.gateway = gateway
        self.url, self.internal, self.http, self.peers = url, internal, http, peers
        self.writers: dict[str, asyncio.StreamWriter] = {}

    async def lease(
        self, site: str, headers: dict[str, str] = SECRET, state: str = "up"
    ) -> httpx.Response:
        workers = [
            {
                "name": name,
                "pool": name.split("/")[1],
                "roles": [role],
                "state": state,
                "reason": None,
                "http": f"127.0.0.1:{self.peers[name].port}",
                "kv": "127.0.0.1:9",
            }
            for name, role in WORKERS.items()
            if name.startswith(site)
        ]
        body = {"site": site, "agent_epoch": 1, "workers": workers}
        return await self.http.post(f"{self.internal}/internal/lease", json=body, headers=headers)

    async def get(self, path: str) -> httpx.Response:
        return await self.http.get(f"{self.url}{path}", headers=KEY)

    async def all_up(self) -> None:
        for site in TOPOLOGY.sites:
            assert (await self.lease(site)).status_code == 200
        for name, peer in self.peers.items():
            self.writers[name] = await peer.stream()
            self.writers[name].write(messages_line(load_of(name)))
        await self.until("/ready", lambda answer: answer.status_code == 200)

    async def until(self, path: str, good: Callable[[httpx.Response], bool]) -> httpx.Response:
        """What `path` answers once that is good."""
        async with asyncio.timeout(8.0):
            while True:
                answer = await self.get(path)
                if good(answer):
                    return answer
                await asyncio.sleep(0.02)

    def says(self, worker: str, start: dict[str, Any], index: int, law: list[int], id: int) -> None:
        run = TokenRun(
            request=start["request"],
            epoch=start["epoch"],
            index=index,
            ids=(id,),
            hist=extend_history(0, law),
            fed=len(law),
        )
        self.writers[worker].write(messages_line(run))

    async def law_reaches(self, worker: str, length: int) -> None:
        while (await self.peers[worker].message("feed"))["law"] < length:
            pass

    def complete(self, **fields: Any) -> "asyncio.Task[httpx.Response]":
        body = {
            "model": MODEL,
            "prompt": [1, 2, 3],
            "max_tokens": 3,
            "temperature": 0,
            "pdd_timings": True,
            "pdd_token_ids": True,
        } | fields
        url = f"{self.url}/v1/completions"
        return asyncio.create_task(self.http.post(url, json=body, headers=KEY))


def load_of(name: str) -> Load:
    return Load(
        worker=name,
        running=0,
        prefill_tokens=0,
        kv_free_tokens=2048,
        kv_total_tokens=2048,
        kv_held_tokens=0,
        step_s=0.02,
        prefill_tokens_per_s=100.0,
    )


@contextlib.asynccontextmanager
async def world(topology: Topology = TOPOLOGY, *, replaces: bool = False) -> AsyncIterator[World]:
    directory = resolve_model(MODEL)
    gateway = Gateway(
        topology,
        name="gw-1",
        card=read_card(MODEL, directory),
        tokenizer=load_tokenizer(MODEL, directory),
        directory=Directory(topology, None),
        secret="s3cret",
        door=Door({"k1": "default"}),
        replaces=replaces,
    )
    stop = asyncio.Event()
    with (
        contextlib.closing(take_port("127.0.0.1", 0)) as public,
        contextlib.closing(take_port("127.0.0.1", 0)) as internal,
    ):
        urls = [f"http://127.0.0.1:{sock.getsockname()[1]}" for sock in (public, internal)]
        running = asyncio.create_task(gateway.run(public, internal, stop))
        async with contextlib.AsyncExitStack() as stack:
            peers = {name: await stack.enter_async_context(serving()) for name in WORKERS}
            for name, peer in peers.items():
                peer.name = name
            http = await stack.enter_async_context(httpx.AsyncClient(timeout=8.0))
            try:
                yield World(gateway, *urls, http, peers)
            finally:
                stop.set()
                async with asyncio.timeout(8.0):
                    await running


def play(
    scenario: Callable[[World], Coroutine[Any, Any, None]],
    topology: Topology = TOPOLOGY,
    *,
    replaces: bool = False,
) -> None:
    async def whole() -> None:
        async with world(topology, replaces=replaces) as there:
            await scenario(there)

    uvloop.run(whole())
