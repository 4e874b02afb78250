"""What operators ask of a running gateway: refused where it makes no sense, else carried out."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from orchestrator.live.openai.errors import ApiError
from orchestrator.live.orders import Orders
from orchestrator.membership.members import Members
from orchestrator.membership.reach import CameUp
from orchestrator.membership.reports import Hello
from orchestrator.topology.schema import Topology
from tests.orchestrator.live.bare_service import Bare, bare_service, until
from workers.api.messages import Role

WORKERS = ("hami/p/0", "shenzhen/m/0", "shenzhen/m/1")


class Asked:
    """A roster that only notes what it is asked."""

    def __init__(self) -> None:
        self.of: list[tuple[str, bool | None]] = []

    async def drain(self, site: str, *, undo: bool) -> None:
        self.of.append((site, undo))

    async def replace(self, worker: str) -> None:
        self.of.append((worker, None))


def members(*up: str) -> Members:
    found = Members(frozenset(), ["hami", "shenzhen"])
    for name in WORKERS:
        site, pool, _ = name.split("/")
        found.join(name, site, pool, frozenset({Role.MAIN}))
    for name in up:
        hello = Hello(
            worker=name,
            incarnation="one",
            pid=1,
            slots=8,
            max_context=4096,
            kv_total_tokens=4096,
            kv_bytes_per_token=8,
        )
        found.learn(name, CameUp(hello=hello))
    return found


def take(body: Any, *up: str) -> tuple[list[tuple[str, bool | None]], dict[str, Any]]:
    asked = Asked()
    return asked.of, asyncio.run(Orders(members(*up), asked).take(body))


def test_orders() -> None:
    told = {"site": "shenzhen", "state": "up", "workers": ["shenzhen/m/0", "shenzhen/m/1"]}
    assert take({"site": "shenzhen"}, *WORKERS) == ([("shenzhen", False)], told)
    assert take({"site": "shenzhen", "undo": True}, *WORKERS) == ([("shenzhen", True)], told)
    told = {"worker": "hami/p/0", "state": "up"}
    assert take({"worker": "hami/p/0"}, *WORKERS) == ([("hami/p/0", None)], told)
    lost = take({"site": "hami", "undo": True})[1]
    assert lost["state"] == "lost", "to undo it nobody needs to be there"


@pytest.mark.parametrize(
    ("body", "status", "what"),
    [
        ([], 400, "must be"),
        ({}, 400, "must be"),
        ({"site": 1}, 400, "must be"),
        ({"site": "hami", "undo": 1}, 400, "must be"),
        ({"site": "hami", "force": True}, 400, "must be"),
        ({"worker": "hami/p/0", "undo": True}, 400, "must be"),
        ({"site": "mars"}, 404, "no site 'mars'; there are hami, shenzhen"),
        ({"worker": "hami/p/9"}, 404, "no worker 'hami/p/9'; there are hami/p/0, shenzhen/m/0"),
        ({"site": "shenzhen"}, 409, "without shenzhen nobody serves"),
        ({"worker": "shenzhen/m/0"}, 409, "without shenzhen/m/0 nobody serves"),
    ],
)
def test_what_makes_no_sense_is_refused(body: Any, status: int, what: str) -> None:
    asked = Asked()
    with pytest.raises(ApiError, match=what) as refused:
        asyncio.run(Orders(members("shenzhen/m/0"), asked).take(body))
    assert refused.value.status == status
    assert asked.of == []


def test_a_worker_that_leaves_while_it_is_to_be_replaced() -> None:
    there = members(*WORKERS)

    class Leaving(Asked):
        async def replace(self, worker: str) -> None:
            there.remove(worker)

    with pytest.raises(ApiError, match="no worker 'hami/p/0'") as refused:
        asyncio.run(Orders(there, Leaving()).take({"worker": "hami/p/0"}))
    assert refused.value.status == 404


# ---------------------------------------------------------------- real gateways and workers

POOL = {
    "chip": "cpu",
    "engine": "simulated",
    "slots": 32,
    "kv_tokens": 8192,
    "simulate": {"prefill_tokens_per_s": 20_000.0, "step": 0.02},
}
TOPOLOGY = Topology.model_validate(
    {
        "model": "smollm2-135m",
        "sites": {"hami": {"pools": {"p": POOL}}, "shenzhen": {"pools": {"m": POOL}}},
        "links": [{"between": ["hami", "shenzhen"], "delay": 0.0, "bandwidth": 1e9}],
        "gateway": {"site": "hami"},  # it is nearest to its own site
        "policy": {"route": "local"},
    }
)
OUTPUT = 150  # three seconds


def play(scenario: Callable[[Bare], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        async with bare_service(TOPOLOGY, gateways=2) as bare:
            await scenario(bare)

    uvloop.run(whole())


async def states(bare: Bare, url: str) -> dict[str, str]:
    """Sites and workers, as a gateway sees them."""
    told = await bare.status(url)
    return {of["name"]: of["state"] for of in (*told["sites"], *told["workers"])}


async def ask(bare: Bare, url: str, prompt: list[int], output: int = OUTPUT) -> list[int]:
    body = {"model": "smollm2-135m", "prompt": prompt, "max_tokens": output, "ignore_eos": True}
    more = {"temperature": 0, "pdd_timings": True, "pdd_token_ids": True}
    answer = await bare.http.post(f"{url}/v1/completions", json=body | more)
    assert answer.status_code == 200, answer.text
    ids: list[int] = answer.json()["pdd"]["token_ids"]
    return ids


async def busy(bare: Bare) -> str:
    """A worker that has legs; empty: none has."""
    for name, handle in bare.placer.placed.items():
        if (await handle.blocks())["legs"]:
            return name
    return ""


async def order(bare: Bare, url: str, **body: Any) -> dict[str, Any]:
    answer = await bare.http.post(f"{url}/pdd/drain", json=body)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


@pytest.mark.timeout(240)
def test_a_site_drains_at_every_gateway_and_comes_back_and_no_answer_is_lost() -> None:
    async def scenario(bare: Bare) -> None:
        one, other = bare.urls
        urls = itertools.cycle(bare.urls)
        prompts = [list(range(1000 + i, 1100 + i)) for i in range(8)]
        wanted = [await ask(bare, one, prompt, 20) for prompt in prompts]
        running = [asyncio.create_task(ask(bare, next(urls), prompt)) for prompt in prompts]
        await until(lambda: busy(bare), "somebody serves", 2.5)
        worker = await busy(bare)
        site = worker.split("/")[0]
        (rest,) = bare.placer.placed.keys() - {worker}
        process = bare.placer.placed[worker].process
        assert (await order(bare, one, site=site))["state"] == "draining", "at once"
        refused = await bare.http.post(f"{one}/pdd/drain", json={"site": rest.split("/")[0]})
        assert refused.status_code == 409
        assert not any(task.done() for task in running)
        running += [asyncio.create_task(ask(bare, next(urls), prompt)) for prompt in prompts]
        answers = await asyncio.gather(*running)
        assert [ids[:20] for ids in answers] == wanted * 2
        assert [len(ids) for ids in answers] == [OUTPUT] * 16
        away = {site: "drained", rest.split("/")[0]: "up", rest: "up"}

        async def drained() -> bool:
            return [await states(bare, url) for url in bare.urls] == [away, away]

        await until(drained, "both know that it is drained")
        assert process.wait(10) == 0, "it ended in peace"
        assert (await bare.http.get(f"{other}/ready")).status_code == 200
        await order(bare, other, site=site, undo=True)

        async def back() -> bool:
            seen = [await states(bare, url) for url in bare.urls]
            return all(of.get(worker) == "up" == of[site] for of in seen)

        await until(back, "both have it again", 60.0)

    play(scenario)


@pytest.mark.timeout(240)
def test_a_worker_is_replaced_in_peace() -> None:
    async def scenario(bare: Bare) -> None:
        one, other = bare.urls
        prompts = [list(range(2000 + i, 2100 + i)) for i in range(8)]
        running = [asyncio.create_task(ask(bare, one, prompt)) for prompt in prompts]
        await until(lambda: busy(bare), "somebody serves", 2.5)
        worker = await busy(bare)
        before = bare.placer.placed[worker].process
        assert await order(bare, other, worker=worker) == {"worker": worker, "state": "draining"}
        assert [len(ids) for ids in await asyncio.gather(*running)] == [OUTPUT] * 8
        assert await asyncio.to_thread(before.wait, 20) == 0

        async def replaced() -> bool:
            told = {w["name"]: w for w in (await bare.status(one))["workers"]}.get(worker)
            return told is not None and told["state"] == "up" and told["pid"] != before.pid

        await until(replaced, "another process took its place", 60.0)
        now = bare.placer.placed[worker].process
        await asyncio.sleep(3.0)  # some renewals: it was to be replaced once
        assert bare.placer.placed[worker].process is now
        assert (await states(bare, other))[worker] == "up"

    play(scenario)
