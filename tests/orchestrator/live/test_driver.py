"""The live driver over real channels: what the core says is done, and its defects stay small."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import pytest
import uvloop
from prometheus_client import CollectorRegistry

from orchestrator.lifecycle.machine import Machine
from orchestrator.live.channel import Place
from orchestrator.live.driver import Driver
from orchestrator.live.openai.service import ModelCard
from orchestrator.metrics.exposition import Metrics
from orchestrator.state.actions import Action, Emit, Fail, Failure, Finish
from orchestrator.state.config import CoreConfig, Deadlines
from orchestrator.state.events import Arrived, Event, Route
from tests.orchestrator.live.channel_peer import (
    WAIT_S,
    Peer,
    eventually,
    messages_line,
    serving,
)
from workers.api.history import extend_history
from workers.api.messages import Load, Role, TokenRun

PREFILL, MAIN = "hami/compute/0", "shenzhen/memory/0"
CARD = ModelCard(name="m", max_context=512, vocab_size=100, created=1, stop_ids=())


class Watch:
    """A stop watch with a defect in the place that the stop string names."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        if stops == ("broken when made",):
            raise LookupError("a defect")
        self.matched: str | None = None

    def push(self, ids: Sequence[int]) -> int | None:
        raise LookupError("a defect")


class Addresses:
    def kv(self, worker: str, seen_from: str) -> str:
        return f"{worker} seen from {seen_from}"

    def emulator(self, a: str, b: str) -> None:
        """Every line is real."""


class World:
    """A driver, a prefill and a main worker."""

    def __init__(self, prefill: Peer, main: Peer, deadlines: Deadlines) -> None:
        self.prefill, self.main = prefill, main
        self.registry = CollectorRegistry()
        self.recorded: list[tuple[float, Event, Sequence[Action]]] = []
        self.metrics = Metrics(self.registry, CARD.name)
        self.driver = Driver(
            CoreConfig(gateway="gw-1", gateway_site="shenzhen", deadlines=deadlines),
            model=CARD,
            tokenizer=None,
            stop_watch=Watch,
            addresses=Addresses(),
            secret="s3cret",
            metrics=self.metrics,
            watchers=(self.metrics,),
            needed=frozenset({PREFILL, MAIN}),
            record=lambda *entry: self.recorded.append(entry),
        )
        self.metrics.watch(self.driver.machine, self.driver.members)

    def join(self, name: str) -> None:
        peer, role = {
            PREFILL: (self.prefill, Role.PREFILL),
            MAIN: (self.main, Role.MAIN),
        }[name]
        peer.name = name
        site, pool, _ = name.split("/")
        url = f"http://127.0.0.1:{peer.port}"
        place = Place(control=url, tokens=url)
        self.driver.join(name, site, pool, frozenset({role}), place)

    async def load(self, name: str, peer: Peer) -> asyncio.StreamWriter:
        """The worker's stream, after its first account of itself."""
        writer = await peer.stream()
        writer.write(messages_line(load_of(name)))
        return writer

    async def all_up(self) -> tuple[asyncio.StreamWriter, asyncio.StreamWriter]:
        self.driver.line("hami", "shenzhen", 0.05, 1e6)
        for name in (PREFILL, MAIN):
            self.join(name)
        writers = await self.load(PREFILL, self.prefill), await self.load(MAIN, self.main)
        await eventually(lambda: self.driver.ready() is None)
        return writers

    def submit(self, name: str, **fields: Any) -> "Client":
        arrived = Arrived(
            **{"request": name, "prompt_ids": (1, 2, 3), "limit": 2, "route": Route.DIRECT} | fields
        )
        client = Client(self.driver, name)
        self.driver.submit(arrived, client.actions.put_nowait)
        return client


class Client:
    """Keeps what it is told."""

    def __init__(self, driver: Driver, request: str) -> None:
        self.actions: asyncio.Queue[Emit | Finish | Fail] = asyncio.Queue()
        self._driver = driver
        self._request = request

    async def take(self) -> Emit | Finish | Fail:
        async with asyncio.timeout(WAIT_S):
            return await self.actions.get()

    def leave(self) -> None:
        self._driver.leave(self._request)


def load_of(name: str) -> Load:
    return Load(
        worker=name,
        running=0,
        prefill_tokens=0,
        kv_free_tokens=2048,
        kv_total_tokens=2048,
        kv_held_tokens=0,
        step_s=0.01,
        prefill_tokens_per_s=100.0,
    )


def run_of(start: dict[str, Any], index: int, *ids: int, after: tuple[int, ...] = ()) -> bytes:
    return messages_line(
        TokenRun(
            request=start["request"],
            epoch=start["epoch"],
            index=index,
            ids=ids,
            hist=extend_history(0, after),
            fed=index,
        )
    )


@contextlib.asynccontextmanager
async def world(deadlines: Deadlines) -> AsyncIterator[World]:
    async with serving() as prefill, serving() as main:
        there = World(prefill, main, deadlines)
        try:
            yield there
        finally:
            await there.driver.close()


def play(
    scenario: Callable[[World], Coroutine[Any, Any, None]], deadlines: Deadlines | None = None
) -> None:
    async def whole() -> None:
        async with world(deadlines or Deadlines()) as there:
            await scenario(there)

    uvloop.run(whole())


def test_a_request_from_start_to_finish() -> None:
    async def scenario(w: World) -> None:
        prefill, main = await w.all_up()
        client = w.submit("r")
        first = await w.prefill.message("start")
        second = await w.main.message("start")
        assert (first["role"], second["role"]) == ("prefill", "main")
        prefill.write(run_of(first, 0, 7))
        assert (await client.take()).ids == (7,)
        assert (await w.main.message("feed"))["ids"] == [7]
        main.write(run_of(second, 1, 8, after=(7,)))
        assert (await client.take()).ids == (8,)
        assert isinstance(await client.take(), Finish)
        assert (await w.main.message("stop"))["epoch"] == second["epoch"]

    play(scenario)


def test_send_kv_gets_the_address_that_the_sender_sees() -> None:
    async def scenario(w: World) -> None:
        await w.all_up()
        w.submit("r")
        message = await w.prefill.message("sendkv")
        assert message["to_worker"] == MAIN
        assert message["address"] == f"{MAIN} seen from hami"

    play(scenario)


@pytest.mark.parametrize("place", ["broken when made", "broken when asked"])
def test_a_defect_of_the_core_ends_one_request_and_the_stream_goes_on(place: str) -> None:
    async def scenario(w: World) -> None:
        prefill, _ = await w.all_up()
        good = w.submit("good")
        start = await w.prefill.message("start")
        bad = w.submit("bad", stop_strings=(place,))
        if place == "broken when asked":
            prefill.write(run_of(await w.prefill.message("start"), 0, 5))
        told = await bad.take()
        assert isinstance(told, Fail)
        assert told.failure is Failure.INTERNAL
        prefill.write(run_of(start, 0, 7))
        assert (await good.take()).ids == (7,)
        assert w.driver.machine.ctx.counts["defects"] == 1
        assert w.prefill.opened.empty(), "the stream was opened again"
        assert list(w.driver.machine.requests) == ["good"]

    play(scenario)


def test_a_deadline_that_is_due_at_once() -> None:
    """uvloop's handle of a call that is due already is not a timer's: it has no time."""

    async def scenario(w: World) -> None:
        await w.all_up()
        client = w.submit("r")
        await asyncio.sleep(0)  # it begins, and its deadline is the shortest there can be
        for _ in range(3):
            w.driver.line("hami", "shenzhen", 0.05, 1e6)
        assert isinstance(await client.take(), Fail)
        assert w.driver.machine.ctx.counts["prefill_late"] > 0

    play(scenario, Deadlines(prefill=0.0001, queue=0.2))


def test_a_client_that_leaves_stops_every_leg() -> None:
    async def scenario(w: World) -> None:
        await w.all_up()
        client = w.submit("r")
        await w.prefill.message("start")
        client.leave()
        assert (await w.prefill.message("stop"))["request"] == "r"
        assert (await w.main.message("stop"))["request"] == "r"
        assert w.driver.status()["requests"] == {"open": 0, "queued": 0}

    play(scenario)


def test_close_tells_the_clients_and_delivers_the_stops() -> None:
    async def whole() -> None:
        async with world(Deadlines()) as w:
            await w.all_up()
            client = w.submit("r")
            await w.prefill.message("start")
            await w.driver.close()
            told = await client.take()
            assert isinstance(told, Fail)
            assert told.failure is Failure.UNAVAILABLE
            assert w.driver.ready() == "the service is shutting down"
            for peer in (w.prefill, w.main):  # there already: close has waited for it
                kinds = [kind for post in drained(peer) for kind in post.kinds]
                assert "stop" in kinds

    uvloop.run(whole())


def drained(peer: Peer) -> list[Any]:
    return [peer.posts.get_nowait() for _ in range(peer.posts.qsize())]


def test_ready_once_all_were_up_and_while_one_is() -> None:
    async def scenario(w: World) -> None:
        assert w.driver.ready() == f"waiting for workers: {PREFILL}, {MAIN}"
        w.join(PREFILL)
        await w.load(PREFILL, w.prefill)
        await eventually(lambda: w.driver.ready() == f"waiting for workers: {MAIN}")
        w.join(MAIN)
        await w.load(MAIN, w.main)
        await eventually(lambda: w.driver.ready() is None)
        await w.driver.remove(MAIN)
        assert w.driver.ready() is None, "what has left is not waited for"
        w.driver.drain(PREFILL)
        assert w.driver.ready() == "no worker is up"
        w.driver.revive(PREFILL)
        assert w.driver.ready() is None

    play(scenario)


def test_a_lost_worker_shows_in_status_and_leaves_no_sample() -> None:
    async def scenario(w: World) -> None:
        await w.all_up()
        labels = {"worker": MAIN, "site": "shenzhen", "pool": "memory"}
        assert w.registry.get_sample_value("pdd_kv_free_tokens", labels) == 2048
        await w.main.stop()
        await eventually(lambda: MAIN not in w.driver.machine.ctx.world.workers)
        main = next(x for x in w.driver.status()["workers"] if x["name"] == MAIN)
        assert (main["state"], main["pid"], main["load"]) == ("down", None, None)
        assert w.registry.get_sample_value("pdd_kv_free_tokens", labels) is None
        await w.main.start()
        await eventually(lambda: MAIN in w.driver.machine.ctx.world.workers)
        assert w.driver.machine.ctx.counts["workers_lost"] == 1

    play(scenario)


def test_what_was_recorded_gives_the_same_actions() -> None:
    """The record is complete: a fresh machine that is fed it is in the same state too."""

    async def scenario(w: World) -> None:
        prefill, _ = await w.all_up()
        client = w.submit("r")
        prefill.write(run_of(await w.prefill.message("start"), 0, 7))
        await client.take()
        fresh = Machine(w.driver.config, Watch)
        for now, event, actions in w.recorded:
            assert fresh.handle(event, now) == actions
        assert fresh.requests.keys() == w.driver.machine.requests.keys()
        assert fresh.ctx.counts == w.driver.machine.ctx.counts
        assert fresh.next_deadline() == w.driver.machine.next_deadline()

    play(scenario)
