"""A site's agent over scripted workers: what it reports, adopts, gives up and drains."""

import asyncio
import contextlib
import json
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

from orchestrator.live import agent as agents
from orchestrator.live.agent import WORKERS, SiteAgent, SiteSpec, Unavailable
from orchestrator.live.ports import PORTS
from orchestrator.live.ray_site import refusal
from orchestrator.membership.inventory import Description, Phase
from orchestrator.membership.reports import read_report
from orchestrator.membership.standing import Standing
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
        self.status = 200
        self.leases: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.says: Any = {"renewed": True, "stores": {}, "standing": Standing().told()}

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async def lease(request: Request) -> JSONResponse:
            self.keys.add(request.headers.get("authorization"))
            self.leases.append(await request.json())
            return JSONResponse(self.says, status_code=self.status)

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


@pytest.mark.parametrize(
    "says",
    [
        {},
        [],
        {"stores": 1},
        {"stores": {}},
        {"stores": {}, "standing": {}},
        {"stores": {"p": 7}, "standing": Standing().told()},
        {"stores": {"p": "no hex"}, "standing": Standing().told()},
    ],
)
def test_what_answers_for_a_gateway_in_other_words_is_none(says: Any):
    """As a proxy's page with status 200: tried again, and the workers go on."""

    async def scenario() -> None:
        nodes, gateway = Nodes(), Gateway()
        gateway.says = says
        where = f"http://127.0.0.1:{gateway.port}"
        async with gateway.serving(), running(spec(where), nodes) as site:
            await site.until(lambda i: "Error" in i["lease"])
            gateway.says = {"renewed": True, "stores": {}, "standing": Standing().told()}
            await site.until(lambda i: i["lease"] == "renewed")
            await site.until_states("up", "up")

    asyncio.run(scenario())


def test_a_gateways_word_drains_the_site_and_brings_it_back():
    async def scenario() -> None:
        nodes, gateway = Nodes(), Gateway()
        store = StoreProcessConfig(
            name="hami/p/store",
            site="hami",
            pool="p",
            port=1,
            tiers=StoreConfig(memory_bytes=1 << 20),
        )
        told = replace(spec(f"http://127.0.0.1:{gateway.port}"), stores=(store,))

        def wants(**standing: Any) -> None:
            gateway.says = {"stores": {}, "standing": Standing(**standing).told()}

        async with gateway.serving(), running(told, nodes) as site:
            await site.until_states("up", "up")
            wants(version=1, drained=True)
            await site.until_states("draining", "draining")
            first, second = nodes.workers.values()
            assert (first.drains, second.drains) == (1, 1)
            first.phase = Phase.ENDED
            await site.until_states("drained", "draining")
            assert nodes.stores == ["hami/p/store"], "somebody may still load from it"
            second.phase = Phase.ENDED
            await site.until_states("drained", "drained")
            await eventually(lambda: nodes.stores == [])
            assert read_report(await gateway.next_lease()).standing == Standing(
                version=1, drained=True
            )
            wants(version=2)
            await site.until_states("up", "up")
            assert (first.removed, second.removed, nodes.stores) == (True, True, ["hami/p/store"])
            assert nodes.placed == 2 * ["hami/p/0", "hami/p/1"]
            wants(version=3, replace=frozenset({"hami/p/1"}))
            await site.until_states("up", "draining")
            nodes.workers["hami/p/1"].phase = Phase.ENDED
            await site.until_states("up", "up")
            assert nodes.placed[4:] == ["hami/p/1"]

    asyncio.run(scenario())


def test_other_workers_are_told_and_remembered(tmp_path):
    async def scenario() -> None:
        nodes = Nodes()
        told = replace(spec(), kept=tmp_path / "workers.json")
        async with running(told, nodes) as site:
            await site.until_states("up", "up")
            wanted = (replace(told.workers[0], slots=9), worker("hami/p/2"))
            answer = await site.post("/workers", json.loads(WORKERS.dump_json(wanted)))
            assert answer.json() == {"workers": ["hami/p/0", "hami/p/2"]}
            await site.until_states("draining", "draining", "up")
            nodes.workers["hami/p/0"].phase = nodes.workers["hami/p/1"].phase = Phase.ENDED
            await site.until_states("up", "up")
            assert nodes.workers["hami/p/0"].config.slots == 9
            assert nodes.workers["hami/p/1"].removed
            before = dict(nodes.workers)
            nodes.refused = "site hami needs 0.3 CPU for 3 workers; its nodes hold 2 workers"
            refused = await site.post("/workers", json.loads(WORKERS.dump_json(told.workers)))
            assert (refused.status_code, refused.json()) == (409, {"error": nodes.refused})
            assert (await site.post("/workers", [{"name": "x"}])).status_code == 409
            nodes.refused = None
        async with running(replace(told, port=free_port()), nodes) as site:
            await site.until_states("up", "up")
        assert nodes.workers == before, "the agent that follows knows as much"
        assert nodes.placed == ["hami/p/0", "hami/p/1", "hami/p/2", "hami/p/0"]

    asyncio.run(scenario())


def test_an_agent_ends_what_still_drains_when_it_began(tmp_path):
    async def scenario() -> None:
        nodes = Nodes()
        told = replace(spec(), kept=tmp_path / "workers.json")
        agent = asyncio.create_task(SiteAgent(told, nodes, SECRET, None).run(lambda: None))
        async with httpx.AsyncClient(headers=KEY) as http:
            site = Site(told, http)
            await eventually(lambda: len(nodes.workers) == 2)
            await site.until_states("up", "up")
            for wanted in ((told.workers[0],), (told.workers[0], worker("hami/p/2"))):
                assert (await site.post("/workers", as_json(*wanted))).status_code == 200
            agent.cancel()  # as it ends without having removed anybody
            await asyncio.gather(agent, return_exceptions=True)
        old = nodes.workers["hami/p/1"]
        assert old.drains
        assert not old.removed
        async with running(replace(told, port=free_port()), nodes) as site:
            found = await site.until_states("up", "up", "draining")
            assert found[2]["name"] == "hami/p/1"
            old.phase = Phase.ENDED
            await site.until_states("up", "up")
            assert old.removed
            del nodes.workers["hami/p/1"]
        async with running(replace(told, port=free_port()), nodes) as site:
            await site.until_states("up", "up")
        assert nodes.placed == ["hami/p/0", "hami/p/1", "hami/p/2"]

    asyncio.run(scenario())


def test_declared_ports_stay_with_those_that_have_them():
    async def scenario() -> None:
        nodes, first = Nodes(), free_port()

        def on(name: str, offset: int) -> WorkerConfig:
            ports = {"http_port": first + offset, "kv_port": first + offset + 1}
            return replace(worker(name), **ports)

        told = replace(spec(), workers=(on("hami/p/0", 0), on("hami/q/0", 2)))
        async with running(told, nodes) as site:
            await site.until_states("up", "up")
            wanted = (on("hami/p/0", 0), on("hami/p/1", 2), on("hami/q/0", 4))
            await site.post("/workers", json.loads(WORKERS.dump_json(wanted)))
            await site.until_states("up", "up", "up")
            assert nodes.placed == ["hami/p/0", "hami/q/0", "hami/p/1"], "nobody was renewed"
            ports = {name: w.config.http_port - first for name, w in nodes.workers.items()}
            assert ports == {"hami/p/0": 0, "hami/q/0": 2, "hami/p/1": 4}

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


def test_the_last_report_tells_what_has_been_drained():
    async def scenario() -> None:
        nodes, gateway = Nodes(), Gateway()
        async with (
            gateway.serving(),
            running(spec(f"http://127.0.0.1:{gateway.port}"), nodes) as site,
        ):
            workers = [w["name"] for w in await site.until_states("up", "up")]
            await site.post("/drain", {"workers": workers})
            for worker in nodes.workers.values():
                worker.phase = Phase.ENDED
            await site.until_states("drained", "drained")
            await gateway.next_lease()  # of before, on its way
            gateway.leases.clear()
            await site.post("/stop")
            await eventually(lambda: len(gateway.leases) > 0)
            assert {w["state"] for w in gateway.leases[-1]["workers"]} == {"drained"}

    asyncio.run(scenario())


def test_a_gateway_of_another_secret_is_told_of_in_one_line():
    async def scenario() -> None:
        gateway = Gateway()
        gateway.status = 401
        async with (
            gateway.serving(),
            running(spec(f"http://127.0.0.1:{gateway.port}"), Nodes()) as site,
        ):
            refused = "refused: PDD_SECRET here is not the gateway's"
            await site.until(lambda i: i["lease"] == refused)
            gateway.status = 200
            await site.until(lambda i: i["lease"] == "renewed")

    asyncio.run(scenario())


def test_ports_that_are_given_are_kept():
    async def scenario() -> None:
        nodes, told = Nodes(), spec()
        http, kv = free_port(), free_port()
        given = replace(told.workers[0], http_port=http, kv_port=kv)
        async with running(replace(told, workers=(given, told.workers[1])), nodes) as site:
            first, second = await site.until_states("up", "up")
            assert (first["http"], first["kv"]) == (f"127.0.0.1:{http}", f"127.0.0.1:{kv}")
            assert int(second["http"].rsplit(":", 1)[1]) in PORTS

    asyncio.run(scenario())


def as_json(*workers: WorkerConfig) -> Any:
    return json.loads(WORKERS.dump_json(workers))


def test_a_pool_in_the_place_of_another_has_to_wait_for_its_ports():
    async def scenario() -> None:
        told, nodes = spec(), Nodes()
        ports = iter(range(20_001, 20_005))
        placed = [replace(w, http_port=next(ports), kv_port=next(ports)) for w in told.workers]
        async with running(replace(told, workers=tuple(placed)), nodes) as site:
            await site.until_states("up", "up")
            others = [replace(worker, name=worker.name.replace("/p/", "/q/")) for worker in placed]
            refused = await site.post("/workers", as_json(*others))
            assert refused.status_code == 409
            assert "no port of the site is left for hami/q/0" in refused.json()["error"]
            assert (await site.post("/workers", as_json(placed[0]))).status_code == 200
            assert (await site.post("/workers", {"workers": "x" * 40})).status_code == 409
            await site.until(lambda i: i["workers"][0]["state"] == "up")
            assert nodes.placed == ["hami/p/0", "hami/p/1"]

    asyncio.run(scenario())


def test_what_was_refused_for_want_of_room_starts_when_less_is_asked_for():
    async def scenario() -> None:
        told, nodes = spec(), Nodes(refused="its nodes hold 1 worker")
        async with running(told, nodes) as site:
            await site.until_states("failed", "failed")
            nodes.refused = None
            assert (await site.post("/workers", as_json(told.workers[0]))).status_code == 200
            workers = await site.until_states("up")
            assert workers[0]["name"] == "hami/p/0"
            assert (await site.inventory())["refusal"] is None

    asyncio.run(scenario())


def test_a_worker_that_hears_no_order_holds_nobody_up(monkeypatch):
    class Deaf(ScriptedWorker):
        async def drain(self) -> None:
            await asyncio.Event().wait()

    async def scenario() -> None:
        monkeypatch.setattr(agents, "ORDER_S", 0.1)
        told, nodes = spec(), Nodes()
        nodes.workers["hami/p/0"] = Deaf(told.workers[0])
        async with running(told, nodes) as site:
            await site.until_states("up", "up")
            both = {"workers": ["hami/p/0", "hami/p/1"]}
            assert (await site.post("/drain", both)).status_code == 200
            assert nodes.workers["hami/p/1"].drains == 1

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
