"""The dashboard, the alerts and what they read: names that exist, queries that find something."""

import asyncio
import contextlib
import copy
import itertools
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from orchestrator.lifecycle.machine import Machine
from orchestrator.live.ports import free_port
from orchestrator.membership.members import Members
from orchestrator.metrics.exposition import Metrics
from orchestrator.state.config import CoreConfig
from orchestrator.topology.schema import Topology
from orchestrator.virtual.gateway import IdWatch
from tests.orchestrator.live.bare_service import Bare, bare_service

CONTENT: dict[str, Any] = {
    "model": "smollm2-135m",
    "sites": {
        "hami": {
            "pools": {
                "compute": {
                    "chip": "cpu",
                    "roles": ["prefill"],
                    "engine": "simulated",
                    "kv_tokens": 2048,
                },
                "relay": {"chip": "cpu", "roles": ["relay"], "engine": "simulated"},
            }
        },
        "shenzhen": {
            "pools": {"memory": {"chip": "cpu", "roles": ["main"], "engine": "simulated"}}
        },
    },
    # `emulate`: nothing emulates it here, but senders keep to its rate.
    "links": [{"between": ["hami", "shenzhen"], "delay": 0.01, "bandwidth": 4e6, "emulate": True}],
    "gateway": {"site": "shenzhen"},
    "policy": {"route": "relay", "handoff": "catch-up"},
}
STORE = {"dram": 32 << 20}  # a part of what is asked for, so that blocks have to leave
WITHIN_S = 90.0


def topology(folder: Path) -> Topology:
    """Two sites, of which one keeps what it computes."""
    nvme = {"path": str(folder / "blocks"), "size": 512 << 20}
    content = copy.deepcopy(CONTENT)
    content["sites"]["hami"]["pools"]["compute"]["kv_store"] = {**STORE, "nvme": nvme}
    return Topology.model_validate(content)


@pytest.fixture(scope="module")
def folder(root: Path) -> Path:
    return root / "configs" / "observability"


@pytest.fixture(scope="module")
def queries(folder: Path) -> list[str]:
    """What the dashboard's panels ask."""
    dashboard = json.loads((folder / "grafana-dashboard.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]


def rules(folder: Path) -> Iterator[dict[str, Any]]:
    for group in YAML(typ="safe").load(folder / "alerts.yaml")["groups"]:
        yield from group["rules"]


def promtool(*arguments: str | Path, given: bytes | None = None) -> None:
    """Run it, which must find nothing."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("no promtool (Debian: apt-get install prometheus)")
    done = subprocess.run([tool, *arguments], input=given, capture_output=True, timeout=60)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def test_every_name_that_is_asked_for_exists(folder: Path, queries: list[str]) -> None:
    metrics = Metrics(CollectorRegistry(), "m")
    config = CoreConfig(gateway="g", gateway_site="hami")
    metrics.watch(Machine(config, IdWatch), Members(frozenset()))
    named = set()
    for family in text_string_to_metric_families(metrics.render().decode()):
        endings = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
        named |= {family.name + ending for ending in endings.get(family.type, [""])}
    asked = [*queries, *(rule["expr"] for rule in rules(folder))]
    assert len(queries) > 40
    for expression in asked:
        names = re.findall(r"\bpdd_\w+", expression)
        assert names or expression == 'up{job="pdd"} == 0', expression
        assert not set(names) - named, expression


def test_promtool_finds_nothing_in_the_rules(folder: Path) -> None:
    promtool("check", "rules", folder / "alerts.yaml")
    promtool("check", "config", folder / "prometheus.yaml")


def test_alerts_fire_when_they_should_and_only_then() -> None:
    promtool("test", "rules", Path(__file__).with_name("alerts_test.yaml"))


def test_every_alert_says_what_to_do(folder: Path) -> None:
    names = [rule["alert"] for rule in rules(folder)]
    assert len(names) == len(set(names)) >= 12
    for rule in rules(folder):
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert set(rule["annotations"]) == {"summary", "description"}


def test_transfers_that_hang_are_told_whatever_health_says(folder: Path, tmp_path: Path) -> None:
    """KV waits and not a byte of it is sent: somebody is paged within a minute, while every process
    is up and answers.
    """
    ends = 'from="hami",to="shenzhen"'
    content = {
        "rule_files": [str(tmp_path / "alerts.yaml")],
        "evaluation_interval": "10s",
        "tests": [
            {
                "interval": "10s",
                "input_series": [
                    {"series": f"pdd_link_queue_bytes{{{ends}}}", "values": "0x6 5000000x30"},
                    {
                        "series": f"pdd_kv_sent_bytes_total{{{ends}}}",
                        "values": "0+1000000x6 6000000x30",
                    },
                ],
                "alert_rule_test": [
                    {"eval_time": "1m", "alertname": "PddLineStands", "exp_alerts": []},
                    {
                        "eval_time": "3m",
                        "alertname": "PddLineStands",
                        "exp_alerts": [
                            {"exp_labels": {"from": "hami", "to": "shenzhen", "severity": "page"}}
                        ],
                    },
                ],
            }
        ],
    }
    # What it says to people is not looked at here.
    told = YAML(typ="safe").load(folder / "alerts.yaml")
    for rule in (rule for group in told["groups"] for rule in group["rules"]):
        rule.pop("annotations")
    YAML().dump(told, tmp_path / "alerts.yaml")
    YAML().dump(content, tmp_path / "test.yaml")
    promtool("test", "rules", tmp_path / "test.yaml")


@pytest.mark.timeout(300)
def test_each_query_of_the_dashboard_finds_something(queries: list[str], tmp_path: Path) -> None:
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        pytest.skip("no prometheus (Debian: apt-get install prometheus)")
    service = topology(tmp_path)

    async def whole() -> None:
        async with (
            bare_service(service, model=service.model) as bare,  # its KV fills the line
            scraping(prometheus, bare.urls[0], tmp_path) as store,
            traffic(bare),
        ):
            await intrude(bare.placer.stores["hami/compute/store"].address)
            scraped = (await bare.http.get(f"{bare.urls[0]}/metrics")).content
            promtool("check", "metrics", given=scraped)
            losses = [query for query in queries if "legs_lost" in query]
            others = [query for query in queries if query not in losses]
            assert await unanswered(bare.http, store, others) == []
            bare.placer.placed["shenzhen/memory/0"].kill()
            assert await unanswered(bare.http, store, losses) == []

    uvloop.run(whole())


@contextlib.asynccontextmanager
async def scraping(prometheus: str, gateway: str, folder: Path) -> AsyncIterator[str]:
    """A real Prometheus that reads the gateway every second; where it is asked."""
    config = folder / "prometheus.yaml"
    target = gateway.removeprefix("http://")
    config.write_text(
        "global: {scrape_interval: 1s}\n"
        f'scrape_configs: [{{job_name: pdd, static_configs: [{{targets: ["{target}"]}}]}}]\n'
    )
    port = free_port("127.0.0.1", set())
    process = await asyncio.create_subprocess_exec(
        prometheus,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


async def unanswered(http: httpx.AsyncClient, store: str, queries: list[str]) -> list[str]:
    """Those without data, once there are none or the time is up."""
    left, loop = queries, asyncio.get_running_loop()
    end = loop.time() + WITHIN_S
    while left and loop.time() < end:
        await asyncio.sleep(1.0)
        left = [query for query in left if not await finds(http, store, query)]
    return left


async def finds(http: httpx.AsyncClient, store: str, query: str) -> bool:
    """Whether a query has a value that is a number, over the last seconds."""
    asked = query.replace("$__rate_interval", "20s").replace("$model", ".*").replace("$site", ".*")
    try:
        answer = await http.get(f"{store}/api/v1/query", params={"query": asked})
    except httpx.TransportError:
        return False  # it starts
    told = answer.json()
    assert told["status"] == "success", (query, told)
    return any(one["value"][1] != "NaN" for one in told["data"]["result"])


async def intrude(address: str) -> None:
    """Somebody who has no business there connects to a store, which is a defect it counts."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET / HTTP/1.1".ljust(64))
    with contextlib.suppress(ConnectionResetError):
        await reader.read()
    writer.close()


@contextlib.asynccontextmanager
async def traffic(bare: Bare) -> AsyncIterator[None]:
    """Requests all the time: relayed ones over a full line, a few that fail, and some that come
    again when the worker has forgotten them.
    """

    async def client(seed: int) -> None:
        for i in itertools.count():
            prompt = [(seed * 1009 + i * 101 + k) % 40_000 + 2 for k in range(120)]
            body = {
                "model": bare.topology.model,
                "prompt": prompt * (8 if i % 4 == 3 else 1),
                "max_tokens": 300 if i % 5 else 8000,  # the latter fits nobody
                "ignore_eos": True,
                "temperature": 0,
            }
            with contextlib.suppress(httpx.HTTPError):
                await bare.http.post(f"{bare.urls[0]}/v1/completions", json=body, timeout=60.0)

    async def again() -> None:
        """Three prompts over and over: main keeps them all, prefill has no room for two."""
        for i in itertools.count():
            body = {
                "model": bare.topology.model,
                "prompt": [(i % 3 * 1009 + k * 7) % 40_000 + 2 for k in range(1200)],
                "max_tokens": 2,
            }
            with contextlib.suppress(httpx.HTTPError):
                await bare.http.post(f"{bare.urls[0]}/v1/completions", json=body, timeout=60.0)

    tasks = [asyncio.create_task(client(seed)) for seed in range(6)]
    tasks.append(asyncio.create_task(again()))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
