"""A site's agent over scripted workers: what it reports, adopts, gives up and drains."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from orchestrator.live.agent import PORTS, SiteAgent, SiteSpec, Unavailable
from orchestrator.live.ray_site import refusal
from orchestrator.membership.inventory import Description, Phase
from orchestrator.membership.reports import read_report
from workers.api.messages import Role
from workers.service.config import WorkerConfig
from workers.storage.process import StoreProcessConfig
from workers.tiers.store import StoreConfig

SECRET = "a-secret-of-this-test"
KEY = {"authorization": f"Bearer {SECRET}"}


async def eventually(good: Callable[[], bool]) -> None:
    async with asyncio.timeout(8.0):
        while True:
            if good():
                return
            await asyncio.sleep(0.02)


class ScriptedWorker:
    """A placed worker that is what the test says; None: its process does not answer."""

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        self.phase: Phase | None = Phase.SERVING
        self.reason: str | None = None
        self.drains = 0
        self.removed = False

    async def describe(self) -> Description:
        if self.phase is None:
            raise Unavailable("the actor is restarting")
        info = {"pid": 7} if self.phase is Phase.SERVING else None
        config = self.config
        return Description(
            roles=config.roles,
            http=f"{config.host}:{config.http_port}",
            kv=f"{config.host}:{config.kv_port}",
            phase=self.phase,
            reason=self.reason,
            draining=self.drains > 0,
            info=info,
        )

    async def drain(self) -> None:
        self.drains += 1

    async def remove(self) -> None:
        self.removed = True


class Nodes:
    """A placer whose workers stay with it when an agent goes."""

    def __init__(self, refused: str | None = None) -> None:
        self.refused = refused
        self.workers: dict[str, ScriptedWorker] = {}
        self.placed: list[str] = []
        self.stores: list[str] = []

    def refusal(self, workers: int) -> str | None:
        return self.refused

    def keep_store(self, config: StoreProcessConfig) -> None:
        self.stores.append(config.name)

    def remove_store(self, name: str) -> None:
        self.stores.remove(name)

    def find(self, name: str) -> ScriptedWorker | None:
        return self.workers.get(name)

    def place(self, config: WorkerConfig) -> ScriptedWorker:
        self.placed.append(config.name)
        self.workers[config.name] = ScriptedWorker(config)
        return self.workers[config.name]


def worker(name: str) -> WorkerConfig:
    return WorkerConfig(
        name=name,
        site="hami",
        pool="p",
        roles=(Role.PREFILL,),
        model="simulated",
        http_port=0,
        kv_port=0,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def spec(*gateways: str, start_s: float = 60.0) -> SiteSpec:
    return SiteSpec(
        site="hami",
        workers=(worker("hami/p/0"), worker("hami/p/1")),
        gateways=gateways,
        gateway_site="shenzhen",
        port=free_port(),
        start_s=start_s,
    )


class Site:
    """A running agent and a client of its front."""

    def __init__(self, told: SiteSpec, http: httpx.AsyncClient) -> None:
        self._url = f"http://127.0.0.1:{told.port}"
        self.http = http

    async def inventory(self) -> dict[str, Any]:
        return (await self.http.get(f"{self._url}/inventory")).json()

    async def post(self, path: str, body: Any = None) -> httpx.Response:
        return await self.http.post(f"{self._url}{path}", json=body)

    async def until(self, good: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(8.0):
            while True:
                inventory = await self.inventory()
                if good(inventory):
                    return inventory
                await asyncio.sleep(0.05)

    async def until_states(self, *states: str) -> list[dict[str, Any]]:
        def good(inventory: dict[str, Any]) -> bool:
            return [w["state"] for w in inventory["workers"]] == list(states)

        return (await self.until(good))["workers"]


@contextlib.asynccontextmanager
async def running(told: SiteSpec, nodes: Nodes) -> AsyncIterator[Site]:
    """An agent that is killed at the end, not stopped."""
    agent = SiteAgent(told, nodes, SECRET, None)
    ready = asyncio.Event()
    task = asyncio.create_task(agent.run(ready.set))
    async with asyncio.timeout(5.0):
        await ready.wait()
    async with httpx.AsyncClient(headers=KEY) as http:
        try:
            yield Site(told, http)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class Gateway:
    """Hears leases."""

    def __init__(self) -> None:
        self.port = free_port()
        self.leases: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async def lease(request: Request) -> JSONResponse:
            self.keys.add(request.headers.get("authorization"))
            self.leases.append(await request.json())
            return JSONResponse({})

        app = Starlette(routes=[Route("/internal/lease", lease, methods=["POST"])])
        config = uvicorn.Config(app, port=self.port, log_config=None, lifespan="off")
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve())
        try:
            yield
        finally:
            server.should_exit = True
            await task

    async def next_lease(self) -> dict[str, Any]:
        count = len(self.leases)
        await eventually(lambda: len(self.leases) > count)
        return self.leases[-1]


def test_workers_are_placed_on_ports_of_their_own_and_reported():
    async def scenario() -> None:
        nodes = Nodes()
        async with running(spec(), nodes) as site:
            workers = await site.until_states("up", "up")
            assert nodes.placed == ["hami/p/0", "hami/p/1"]
            ports = {int(w[plane].rsplit(":", 1)[1]) for w in workers for plane in ("http", "kv")}
            assert len(ports) == 4
            assert all(port in PORTS for port in ports)
            assert workers[0]["info"] == {"pid": 7}
            assert workers[0]["roles"] == ["prefill"]

    asyncio.run(scenario())


def test_what_no_node_can_hold_is_refused_and_nothing_is_placed():
    async def scenario() -> None:
        nodes = Nodes(refused="no node with label site=hami (nodes: 10.0.0.1 with site=mars)")
        async with running(spec(), nodes) as site:
            inventory = await site.inventory()
            assert inventory["refusal"] == nodes.refused
            assert [w["state"] for w in inventory["workers"]] == ["failed", "failed"]
            assert {w["reason"] for w in inventory["workers"]} == {nodes.refused}
            assert nodes.placed == []

    asyncio.run(scenario())


def test_a_sites_store_is_kept_and_ends_with_the_site():
    async def body():
        nodes = Nodes()
        store = StoreProcessConfig(
            name="hami/p/store",
            site="hami",
            pool="p",
            port=1,
            tiers=StoreConfig(memory_bytes=1 << 20),
        )
        async with running(replace(spec(), stores=(store,)), nodes) as site:
            assert nodes.stores == ["hami/p/store"]
            await site.post("/stop")
            await eventually(lambda: nodes.stores == [])

    asyncio.run(body())


def test_the_front_wants_the_key():
    async def scenario() -> None:
        async with running(spec(), Nodes()) as site:
            site.http.headers["authorization"] = "Bearer wrong"
            assert (await site.post("/stop")).status_code == 401
            site.http.headers.update(KEY)
            assert (await site.post("/drain", {"workers": ["nobody"]})).status_code == 404
            assert (await site.post("/drain", {"worker": 1})).status_code == 400

    asyncio.run(scenario())


def test_a_worker_that_dies_restarts_and_one_that_cannot_start_says_why():
    async def scenario() -> None:
        nodes = Nodes()
        async with running(spec(), nodes) as site:
            await site.until_states("up", "up")
            first, second = nodes.workers.values()
            first.phase = None
            second.phase, second.reason = Phase.FAILED, "port 1 on 127.0.0.1: in use"
            workers = await site.until_states("restarting", "failed")
            assert [w["reason"] for w in workers] == ["the actor is restarting", second.reason]
            assert second.removed
            first.phase = Phase.LOADING
            await site.until(lambda i: i["workers"][0]["reason"] == "loading model")
            first.phase = Phase.SERVING
            await site.until_states("up", "failed")

    asyncio.run(scenario())


def test_a_worker_that_never_comes_up_is_given_up_with_its_cause():
    async def scenario() -> None:
        nodes = Nodes()
        told = spec(start_s=1.5)
        async with running(told, nodes) as site:
            await site.until_states("up", "up")
            nodes.workers["hami/p/1"].phase = Phase.LOADING
            workers = await site.until_states("up", "failed")
            assert workers[1]["reason"] == "not up within 1.5 s: loading model"
            assert nodes.workers["hami/p/1"].removed

    asyncio.run(scenario())


def test_a_new_agent_adopts_the_workers_that_run():
    async def scenario() -> None:
        nodes = Nodes()
        async with running(spec(), nodes) as site:
            before = await site.until_states("up", "up")
            epoch = (await site.inventory())["agent_epoch"]
        async with running(spec(), nodes) as site:
            after = await site.until_states("up", "up")
            assert [w["http"] for w in after] == [w["http"] for w in before]
            assert (await site.inventory())["agent_epoch"] > epoch
        assert nodes.placed == ["hami/p/0", "hami/p/1"]
        assert not any(w.removed for w in nodes.workers.values())

    asyncio.run(scenario())


def test_the_lease_is_renewed_and_tells_of_every_worker():
    async def scenario() -> None:
        nodes, gateway = Nodes(), Gateway()
        async with (
            gateway.serving(),
            running(spec(f"http://127.0.0.1:{gateway.port}"), nodes) as site,
        ):
            await site.until_states("up", "up")
            lease = await gateway.next_lease()
            report = read_report(lease)
            assert (report.site, list(report.workers)) == ("hami", ["hami/p/0", "hami/p/1"])
            assert gateway.keys == {KEY["authorization"]}

    asyncio.run(scenario())


def test_every_gateway_is_told_whatever_becomes_of_the_others():
    async def scenario() -> None:
        nodes, one, other = Nodes(), Gateway(), Gateway()
        urls = [f"http://127.0.0.1:{gateway.port}" for gateway in (one, other)]
        async with running(spec(*urls), nodes) as site, one.serving():
            await one.next_lease()
            await site.until(lambda i: i["lease"].startswith("renewed; ConnectError"))
            async with other.serving():
                assert (await other.next_lease())["site"] == "hami"
                await site.until(lambda i: i["lease"] == "renewed")

    asyncio.run(scenario())


def test_drain_and_stop():
    async def scenario() -> None:
        nodes = Nodes()
        async with running(spec(), nodes) as site:
            await site.until_states("up", "up")
            assert (await site.post("/drain", {"workers": ["hami/p/1"]})).status_code == 200
            await site.until_states("up", "draining")
            drained = nodes.workers["hami/p/1"]
            assert drained.drains == 1
            drained.phase = Phase.ENDED
            await site.until_states("up", "drained")
            assert drained.removed
            assert not nodes.workers["hami/p/0"].removed
            assert (await site.post("/stop")).status_code == 200
            await eventually(lambda: nodes.workers["hami/p/0"].removed)

    asyncio.run(scenario())


def test_an_agent_that_cannot_watch_any_more_ends_with_the_cause():
    """Its process ends by it, and the agent that follows adopts the workers."""

    class Broken(ScriptedWorker):
        async def describe(self) -> Description:
            raise LookupError("a defect")

    async def scenario() -> None:
        nodes = Nodes()
        told = spec()
        nodes.workers["hami/p/0"] = Broken(told.workers[0])
        with pytest.raises(LookupError, match="a defect"):
            async with asyncio.timeout(5.0):
                await SiteAgent(told, nodes, SECRET, None).run(lambda: None)
        assert not nodes.workers["hami/p/1"].removed

    asyncio.run(scenario())


def test_an_absent_gateway_is_tried_again_and_workers_go_on():
    async def scenario() -> None:
        nodes, gateway = Nodes(), Gateway()
        async with running(spec(f"http://127.0.0.1:{gateway.port}"), nodes) as site:
            await site.until(lambda i: "ConnectError" in i["lease"])
            await site.until_states("up", "up")
            async with gateway.serving():
                await gateway.next_lease()
                await site.until(lambda i: i["lease"] == "renewed")

    asyncio.run(scenario())


# ---------------------------------------------------------------- placement


def node(site: str | None, cpus: float = 1.0, alive: bool = True) -> dict[str, Any]:
    labels = {"ray.io/node-id": "abc"} | ({} if site is None else {"site": site})
    resources = {"CPU": cpus}
    return {
        "Alive": alive,
        "Labels": labels,
        "NodeManagerAddress": "10.0.0.1",
        "Resources": resources,
    }


def test_a_label_that_no_node_has_is_named_with_what_there_is():
    there = [node("shenzhen"), node("hami", alive=False), node(None)]
    assert refusal(there, "hami", 1) == (
        "no node with label site=hami (nodes: 10.0.0.1 with site=shenzhen, 10.0.0.1 with no labels)"
    )
    assert refusal([], "hami", 1) == "no node with label site=hami (nodes: none)"


def test_workers_that_do_not_fit_are_refused_with_what_is_missing():
    assert refusal([node("hami")], "hami", 10) is None
    assert refusal([node("hami"), node("hami", 0.5)], "hami", 15) is None
    assert refusal([node("hami"), node("shenzhen")], "hami", 11) == (
        "site hami needs 1.1 CPU for 11 workers; its nodes hold 10 workers"
    )
