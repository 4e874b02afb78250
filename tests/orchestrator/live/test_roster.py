"""Leases: what an agent's report does to the workers that the gateway knows."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import uvloop
from prometheus_client import CollectorRegistry

from orchestrator.live.channel import Place
from orchestrator.live.directory import Directory
from orchestrator.live.driver import Driver
from orchestrator.live.openai.service import ModelCard
from orchestrator.live.roster import Roster, expected_workers
from orchestrator.membership.reports import LeaseRefused
from orchestrator.metrics.exposition import Metrics
from orchestrator.state.config import CoreConfig
from orchestrator.topology.schema import Topology
from tests.orchestrator.live.channel_peer import WAIT_S, eventually
from workers.api.messages import Role

LEASE_S = 0.2
TOPOLOGY = Topology.model_validate(
    {
        "model": "m",
        "sites": {
            "hami": {"pools": {"p": {"chip": "cpu", "instances": 2, "roles": ["prefill"]}}},
            "shenzhen": {"pools": {"q": {"chip": "cpu", "roles": ["main"]}}},
        },
        "links": [{"between": ["hami", "shenzhen"], "delay": 0.025, "bandwidth": 1e6}],
        "gateway": {"site": "shenzhen"},
    }
)
CARD = ModelCard(name="m", max_context=512, vocab_size=100, created=1, stop_ids=())


class World:
    """A roster over a real driver; nobody listens where its workers are said to be."""

    def __init__(self) -> None:
        self.driver = Driver(
            CoreConfig(gateway="gw-1", gateway_site="shenzhen"),
            model=CARD,
            tokenizer=None,
            stop_watch=lambda stops: None,
            addresses=Directory(TOPOLOGY, None),
            secret="s",
            metrics=Metrics(CollectorRegistry(), "m"),
            needed=expected_workers(TOPOLOGY),
        )
        deadlines = TOPOLOGY.policy.deadlines.model_copy(update={"lease_s": LEASE_S})
        policy = TOPOLOGY.policy.model_copy(update={"deadlines": deadlines})
        self.directory = Directory(TOPOLOGY, None)
        self.roster = Roster(
            TOPOLOGY.model_copy(update={"policy": policy}), self.driver, self.directory
        )

    @property
    def draining(self) -> dict[str, bool]:
        return {name: member.draining for name, member in self.driver.members.by_name.items()}


def worker(name: str, **fields: Any) -> dict[str, Any]:
    _, pool, number = name.split("/")
    return {
        "name": name,
        "pool": pool,
        "roles": ["prefill"],
        "state": "up",
        "reason": None,
        "http": f"127.0.0.1:{number}1",
        "kv": f"127.0.0.1:{number}2",
        "info": {"pid": 1},
    } | fields


def report(*workers: dict[str, Any], epoch: int = 1) -> dict[str, Any]:
    site = workers[0]["name"].split("/")[0] if workers else "hami"
    return {"site": site, "agent_epoch": epoch, "workers": list(workers), "lease": "renewed"}


H0, H1, S0 = worker("hami/p/0"), worker("hami/p/1"), worker("shenzhen/q/0", roles=["main"])


@contextlib.asynccontextmanager
async def watched(world: World) -> AsyncIterator[None]:
    watching = asyncio.create_task(world.roster.watch())
    try:
        yield
        assert not watching.done()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def play(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        world = World()
        try:
            await scenario(world)
        finally:
            await world.driver.close()

    uvloop.run(whole())


def test_reported_workers_join_where_the_report_says() -> None:
    async def scenario(w: World) -> None:
        await w.roster.renew(report(H0, H1))
        await w.roster.renew(report(S0))
        assert w.driver.members.by_name.keys() == expected_workers(TOPOLOGY)
        member = w.driver.members.by_name["hami/p/1"]
        assert (member.site, member.pool, member.roles) == ("hami", "p", {Role.PREFILL})
        assert w.driver.channels["hami/p/1"].place.control == "http://127.0.0.1:11"
        assert w.directory.kv("hami/p/1", "shenzhen") == "127.0.0.1:12@hami"

    play(scenario)


def test_a_worker_that_moved_keeps_its_channel() -> None:
    async def scenario(w: World) -> None:
        await w.roster.renew(report(H0))
        channel = w.driver.channels["hami/p/0"]
        await w.roster.renew(report(H0 | {"http": "127.0.0.1:99"}))
        assert w.driver.channels["hami/p/0"] is channel
        assert channel.place.tokens == "http://127.0.0.1:99"

    play(scenario)


def test_a_lapsed_lease_drains_its_site_only_and_a_renewal_ends_that() -> None:
    async def scenario(w: World) -> None:
        await w.roster.renew(report(H0))
        async with watched(w):
            async with asyncio.timeout(WAIT_S):
                await w.roster.renew(report(S0))
                while not w.draining["hami/p/0"]:
                    await w.roster.renew(report(S0))
                    await asyncio.sleep(0.01)
            assert w.draining == {"hami/p/0": True, "shenzhen/q/0": False}
            await w.roster.renew(report(H0))
            assert w.draining == {"hami/p/0": False, "shenzhen/q/0": False}
            await eventually(lambda: w.draining["hami/p/0"])  # it can lapse again

    play(scenario)


def test_a_renewal_that_takes_too_long_does_not_outlast_its_lease() -> None:
    """What it brings is carried out before the lapse, not after it."""

    async def scenario(w: World) -> None:
        quick = w.directory.add

        async def slow(*where: str) -> Place:
            await asyncio.sleep(2 * LEASE_S)
            return await quick(*where)

        async with watched(w):
            await w.roster.renew(report(H0))
            w.directory.add = slow
            await w.roster.renew(report(H0))
            await eventually(lambda: w.draining["hami/p/0"])

    play(scenario)


def test_what_its_agent_drains_is_not_revived_by_the_next_renewal() -> None:
    async def scenario(w: World) -> None:
        await w.roster.renew(report(H0, H1))
        for _ in range(2):
            await w.roster.renew(report(H0, H1 | {"state": "draining"}))
            assert w.draining == {"hami/p/0": False, "hami/p/1": True}
        await w.roster.renew(report(H0, H1 | {"state": "drained"}))
        assert w.draining == {"hami/p/0": False}

    play(scenario)


def test_an_older_agent_is_refused_and_changes_nothing() -> None:
    async def scenario(w: World) -> None:
        await w.roster.renew(report(H0, epoch=2))
        with pytest.raises(LeaseRefused, match="a newer agent of hami holds the lease"):
            await w.roster.renew(report(H0 | {"state": "failed"}, epoch=1))
        assert w.draining == {"hami/p/0": False}
        await w.roster.renew(report(H0 | {"state": "failed"}, epoch=3))
        assert w.draining == {}

    play(scenario)


def test_a_failed_worker_is_removed_and_told_with_its_cause() -> None:
    async def scenario(w: World) -> None:
        await w.roster.renew(report(H0, H1))
        assert w.roster.failures() == {}
        for _ in range(2):
            await w.roster.renew(report(H0, H1 | {"state": "failed", "reason": "no memory"}))
        assert w.draining == {"hami/p/0": False}
        assert w.roster.failures() == {"hami/p/1": "no memory"}

    play(scenario)


def test_a_worker_that_is_no_longer_reported_has_left() -> None:
    async def scenario(w: World) -> None:
        await w.roster.renew(report(H0, H1))
        await w.roster.renew(report(H1, epoch=2))
        assert w.draining == {"hami/p/1": False}

    play(scenario)


@pytest.mark.parametrize("state", ["starting", "restarting"])
def test_the_stream_and_not_the_agent_says_when_a_worker_is_gone(state: str) -> None:
    async def scenario(w: World) -> None:
        await w.roster.renew(report(H0 | {"state": state}))
        assert w.draining == {}
        await w.roster.renew(report(H0))
        await w.roster.renew(report(H0 | {"state": state}))
        assert w.draining == {"hami/p/0": False}

    play(scenario)


def test_a_site_that_is_not_in_the_topology_is_refused() -> None:
    async def scenario(w: World) -> None:
        with pytest.raises(LeaseRefused, match="no site 'mars' in the topology; there are hami, s"):
            await w.roster.renew(report(worker("mars/p/0")))
        assert w.draining == {}

    play(scenario)
