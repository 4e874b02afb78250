"""Several gateways over the same workers: behind one address as processes, and at two."""

import asyncio
import contextlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import uvloop

from orchestrator.errors import UserError
from orchestrator.live import gateway_processes
from orchestrator.live.gateway import take_port
from orchestrator.live.gateway_process import Order
from orchestrator.live.gateway_processes import GatewayProcesses, check_ports
from orchestrator.live.ports import free_port
from orchestrator.live.processes import LaunchFailed
from orchestrator.live.startable import check_startable
from orchestrator.topology.load import load_topology
from orchestrator.topology.schema import Topology
from tests.orchestrator.live.bare_service import HOST, Bare, bare_service, until

LEASE_S = 5.0
POOL = {"chip": "cpu", "engine": "simulated", "slots": 32, "kv_tokens": 8192, "chunk_tokens": 512}
SPEED = {"simulate": {"prefill_tokens_per_s": 20_000.0, "step": 0.02}}


def free_ports(count: int) -> int:
    """The first of so many free ones in a row, where the kernel gives none to connections."""
    while True:
        first = free_port(HOST, set())
        with contextlib.ExitStack() as taken, contextlib.suppress(UserError):
            for port in range(first, first + count):
                taken.enter_context(contextlib.closing(take_port(HOST, port)))
            return first


def topology(processes: int, slots: int = 32, workers: int = 1) -> Topology:
    """`workers` in each pool."""
    port = free_ports(processes + 1)
    pool = POOL | SPEED | {"slots": slots, "instances": workers, "count": workers}
    return Topology.model_validate(
        {
            "model": "smollm2-135m",
            "sites": {
                "hami": {"pools": {"p": pool | {"roles": ["prefill", "relay"]}}},
                "shenzhen": {"pools": {"m": pool | {"roles": ["main"]}}},
            },
            "links": [{"between": ["hami", "shenzhen"], "delay": 0.0, "bandwidth": 1e9}],
            "gateway": {"site": "shenzhen", "host": HOST, "port": port, "processes": processes},
            "policy": {"deadlines": {"lease": LEASE_S}},
        }
    )


async def ask(
    url: str, tokens: int, heard: Callable[[], object] = lambda: None, **fields: Any
) -> tuple[str, str]:
    """Which gateway took it, and what became of it. On a connection of its own.

    `heard` is called at each part.
    """
    async with httpx.AsyncClient(timeout=60.0, trust_env=False) as http:
        return await ask_with(http, url, tokens, heard, **fields)


async def ask_with(
    http: httpx.AsyncClient,
    url: str,
    tokens: int,
    heard: Callable[[], object] = lambda: None,
    **fields: Any,
) -> tuple[str, str]:
    """As `ask`, with a client that may have connections already."""
    body = {
        "model": "smollm2-135m",
        "prompt": list(range(1000, 1064)),
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
    }
    text, name = "", ""
    try:
        async with http.stream("POST", f"{url}/v1/completions", json=body | fields) as answer:
            if answer.status_code != 200:
                return name, str(answer.status_code)
            async for part in answer.aiter_text():
                text += part
                name = name or json.loads(text.split("\n")[0][6:])["id"]
                heard()
    except httpx.TransportError:
        return name, "broken"
    if '{"error"' in text:
        return name, "failed"
    return name, "whole" if text.endswith("data: [DONE]\n\n") else "cut off"


def place(name: str) -> str:
    """Of an answer's id: gw-<hex>-<number>-<count>."""
    found = re.search(r"gw-[0-9a-f]+-(\d)-", name)
    return found[1] if found else "?"


def listener(port: int) -> psutil.Process:
    """The child of this test that has the port."""
    (found,) = (
        child
        for child in psutil.Process().children()
        if any(c.laddr.port == port for c in child.net_connections("tcp") if c.status == "LISTEN")
    )
    return found


def play(scenario: Callable[[Bare], Coroutine[Any, Any, None]], where: Topology) -> None:
    async def whole() -> None:
        count = 2 if where.gateway.processes == 1 else 1
        async with bare_service(where, gateways=count) as bare:
            await scenario(bare)

    uvloop.run(whole())


@pytest.mark.timeout(240)
def test_one_that_dies_costs_its_own_streams_and_no_other() -> None:
    async def scenario(bare: Bare) -> None:
        *own, shared = bare.urls
        names = {(await bare.status(url))["gateway"]["name"] for url in own}
        assert {name[-2:] for name in names} == {"-1", "-2"}
        for url in own:
            scraped = (await bare.http.get(f"{url}/metrics")).text
            name = (await bare.status(url))["gateway"]["name"]
            assert f'pdd_gateway_info{{gateway="{name}"}} 1.0' in scraped
        begun: set[int] = set()
        tasks = [
            asyncio.create_task(ask(shared, 150, partial(begun.add, number)))
            for number in range(16)
        ]

        async def all_begun() -> bool:
            return len(begun) == 16

        await until(all_begun, "each has a part, by which it knows its gateway", 30.0)
        held = [(await bare.status(url))["requests"]["open"] for url in own]
        assert sum(held) == 16
        assert min(held) >= 1, "both have some"
        listener(bare.topology.gateway.port + 1).kill()
        became = Counter([(place(name), what) for name, what in await asyncio.gather(*tasks)])
        assert became == {("1", "broken"): held[0], ("2", "whole"): held[1]}
        assert Counter([what for _, what in [await ask(shared, 4) for _ in range(4)]]) == {
            "whole": 4
        }
        await bare.until_free(LEASE_S + 5.0)
        await until(lambda: _serves(own[0]), "another takes its place", 60.0)
        again = {(await bare.status(url))["gateway"]["name"] for url in own}
        assert len(again & names) == 1
        assert any("gateway 1 ended" in line for line in bare.told)

    play(scenario, topology(2))


@pytest.mark.timeout(300)
def test_every_worker_and_every_gateway_is_restarted_and_no_request_fails() -> None:
    async def scenario(bare: Bare) -> None:
        *own, shared = bare.urls
        became: list[str] = []
        over = asyncio.Event()

        async def client(tokens: int, *, keeps: bool) -> None:
            async with httpx.AsyncClient(timeout=60.0, trust_env=False) as http:
                while not over.is_set():
                    answer = ask_with(http, shared, tokens) if keeps else ask(shared, tokens)
                    became.append((await answer)[1])

        clients = [
            asyncio.create_task(client(tokens, keeps=keeps))
            for tokens in (5, 50, 150)
            for keeps in (False, True)
        ]
        for worker in sorted(bare.placer.placed):
            before = bare.placer.placed[worker].process
            asked = await bare.http.post(f"{own[0]}/pdd/drain", json={"worker": worker})
            assert asked.status_code == 200, asked.text
            assert await asyncio.to_thread(before.wait, 30) == 0
            up = partial(_up_as_another, bare, own, worker, before.pid)
            await until(up, f"another is {worker}", 60.0)
        assert set(became) == {"whole"}, f"workers replaced: {Counter(became)}"
        for number, url in enumerate(own, start=1):
            begun = asyncio.Event()
            long = asyncio.create_task(ask(url, 200, begun.set))
            await begun.wait()
            process = listener(bare.topology.gateway.port + number)
            process.terminate()
            name, what = await long
            assert (place(name), what) == (str(number), "whole")
            gone = partial(_gone, process)
            await until(gone, f"gateway {number} ends when its streams have", 30.0)
            await until(partial(_serves, url), f"another is gateway {number}", 60.0)
        over.set()
        await asyncio.gather(*clients)
        assert set(became) == {"whole"}, f"gateways too: {Counter(became)}"
        await bare.until_free(2.0)

    play(scenario, topology(2, workers=2))


async def _up_as_another(bare: Bare, urls: list[str], worker: str, pid: int) -> bool:
    """Whether every gateway sees the worker up, in another process."""
    for url in urls:
        told = {w["name"]: w for w in (await bare.status(url))["workers"]}.get(worker)
        if told is None or told["state"] != "up" or told["pid"] == pid:
            return False
    return True


async def _gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


async def _serves(url: str) -> bool:
    return (await ask(url, 2))[1] == "whole"


@pytest.mark.timeout(240)
def test_two_at_two_addresses_share_workers_that_are_full() -> None:
    """Each knows its own legs only: what a worker refuses waits its turn, and is no error."""

    async def scenario(bare: Bare) -> None:
        one, other = bare.urls
        tasks = [asyncio.create_task(ask(url, 40)) for url in (one, other) * 8]
        became = Counter(what for _, what in await asyncio.gather(*tasks))
        assert became == {"whole": 16}
        await bare.until_free(2.0)
        counts = [(await bare.status(url))["counts"] for url in bare.urls]
        assert sum(count.get("refused", 0) for count in counts) > 0

    play(scenario, topology(1, slots=4))


def test_an_order_is_read_as_it_was_written(root: Any, tmp_path: Any) -> None:
    for file in (root / "configs" / "topologies").glob("*.yaml"):
        order = Order(
            topology=load_topology(file),
            model=tmp_path,
            number=2,
            name="gw-1-2",
            internal=20_001,
            emulator=20_002,
            log=tmp_path / "log",
            replaces=True,
        )
        assert Order.read(order.write()) == order
        assert order.own_port == order.topology.gateway.port + 2


@pytest.mark.parametrize("number", [0, 1, 2])
def test_another_deployments_port_is_not_shared(number: int) -> None:
    where = topology(2)
    port = where.gateway.port + number
    with (
        contextlib.closing(take_port(HOST, port, shared=True)),
        pytest.raises(UserError, match=rf"gateway\.port: cannot listen on {HOST}:{port}"),
    ):
        check_ports(where)
    check_ports(where)


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ("echo '{x'", ": not understood: "),
        ("exit 3", ": code 3"),
        ("true", "the gateways do not serve within 0.5 s"),
    ],
)
def test_gateways_that_do_not_come_up_say_why(
    says: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nread order\n{says}\nread until_the_end\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(gateway_processes, "UP_S", 0.5)

    async def scenario() -> None:
        processes = GatewayProcesses(
            topology(2),
            model=tmp_path,
            internal=[1, 2],
            emulator=None,
            secret="s3cret",
            log_dir=None,
            tell=lambda line: None,
        )
        try:
            with pytest.raises(LaunchFailed, match=re.escape(reason)):
                await processes.up()
        finally:
            await processes.stop()

    uvloop.run(scenario())


def test_what_several_gateways_cannot_do_is_refused(root: Any) -> None:
    planned = load_topology(root / "configs" / "topologies" / "laptop-planned.yaml")
    several = planned.gateway.model_copy(update={"processes": 2})
    with pytest.raises(UserError, match=r"gateway\.processes: .*replan"):
        check_startable(planned.model_copy(update={"gateway": several}))
    last = several.model_copy(update={"port": 65_534})
    with pytest.raises(UserError, match=r"gateway\.port: no port above"):
        check_startable(planned.model_copy(update={"gateway": last, "replan": None}))
