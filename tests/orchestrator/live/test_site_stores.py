"""What stores hold, on its way from their processes over the agent to the core's book."""

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator.live.roster import Roster
from orchestrator.live.stores import SiteStores
from orchestrator.membership.reports import LeaseRefused, StoreReport
from orchestrator.policy.prefixes import BLOCK, PrefixBook, block_hashes, short_names
from orchestrator.state.events import StoreHolds
from orchestrator.topology.load import load_topology
from orchestrator.topology.packaged import packaged_topology
from workers.engines.simulated.model import SimulatedModel
from workers.storage.process import StoreProcessConfig
from workers.tiers.blocks import Block, BlockForm, checksum
from workers.tiers.server import StoreServer
from workers.tiers.store import BlockStore, StoreConfig

SECRET = "a-secret-of-this-test"
IDS = tuple(range(100, 164))
FORM = BlockForm.of(SimulatedModel().fingerprint)
KEYS = FORM.keys(IDS, "salt")


class Listening:
    """The driver's part: a core's book."""

    def __init__(self) -> None:
        self.book = PrefixBook()
        self.book.belongs("hami/p/0", "hami", "p")
        self.told = 0
        self.accounts: list[dict[str, Any] | None] = []

    def stand(self, site: str, *, drained: bool) -> None:
        """Nobody drains a site here."""

    def store(self, site: str, told: StoreReport, news: StoreHolds | None) -> None:
        self.accounts.append(told.account)
        if news is None:
            return
        self.told += 1
        added, removed = short_names(news.added), short_names(news.removed)
        self.book.store_holds(news.site, news.pool, news.whole, added, removed)

    @property
    def hit(self) -> int:
        return self.book.hits(block_hashes(IDS, "salt"), ["hami/p/0"]).get("hami/p/0", 0)


class Site:
    """A store, its agent's way to it, and gateways."""

    def __init__(self, memory_bytes: int = 1 << 20) -> None:
        self.tiers = BlockStore(StoreConfig(memory_bytes=memory_bytes))
        listening = socket.create_server(("127.0.0.1", 0))
        self.server = StoreServer(self.tiers, listening, SECRET)
        self.server.start()
        config = StoreProcessConfig(
            name="hami/p/store",
            site="hami",
            pool="p",
            port=listening.getsockname()[1],
            tiers=StoreConfig(memory_bytes=memory_bytes),
        )
        self.stores = SiteStores([config], SECRET, None)

    def put(self, *keys: bytes) -> None:
        data = bytes(FORM.nbytes)
        self.tiers.put("t", [(key, Block(data, checksum(key, data))) for key in keys])


class Gateway:
    """One gateway, and what an agent that reports to it remembers of that."""

    def __init__(self) -> None:
        self.driver = Listening()
        topology = load_topology(packaged_topology("laptop-simulated"))
        self.roster = Roster(topology, self.driver, None)  # type: ignore[arg-type]
        self.known: dict[str, str] = {}

    async def renew(self, site: Site) -> None:
        told = await self.roster.renew(
            {
                "site": "hami",
                "agent_epoch": 1,
                "workers": [],
                "stores": await site.stores.told(self.known),
            }
        )
        self.known = told["stores"]


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.server.close()


def test_every_gateway_comes_to_know_what_a_store_holds(site: Site) -> None:
    async def body() -> None:
        one, other = Gateway(), Gateway()
        site.put(*KEYS[:2])
        await one.renew(site)
        assert one.driver.hit == 2 * BLOCK
        site.put(KEYS[2])
        await other.renew(site)
        await one.renew(site)
        assert one.driver.hit == other.driver.hit == 3 * BLOCK
        told = one.driver.told
        await one.renew(site)
        assert one.driver.told == told  # nothing new is nothing to tell the core

    asyncio.run(body())


def test_a_gateway_that_is_new_is_told_everything(site: Site) -> None:
    """The agent remembers what the last one knew."""

    async def body() -> None:
        old = Gateway()
        site.put(*KEYS)
        await old.renew(site)
        new = Gateway()
        new.known = old.known
        site.put(*FORM.keys(IDS, "another salt"))
        await new.renew(site)
        assert new.driver.hit == 0  # differences to what it does not have
        await new.renew(site)
        assert new.driver.hit == 4 * BLOCK

    asyncio.run(body())


def test_a_store_that_is_away_holds_nothing_until_it_is_back(site: Site) -> None:
    async def body() -> None:
        gateway = Gateway()
        site.put(*KEYS)
        await gateway.renew(site)
        site.server.close()
        await gateway.renew(site)
        assert gateway.driver.hit == 0
        assert [account is None for account in gateway.driver.accounts] == [False, True]

    asyncio.run(body())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"added": "xyz"}, "added: no names"),
        ({"removed": "0011"}, "removed: no names"),
        ({"version": 1}, "version"),
        ({"whole": 1}, "whole"),
        ({"pool": None}, "pool"),
    ],
)
def test_a_report_that_makes_no_sense_is_refused(
    site: Site, change: dict[str, Any], words: str
) -> None:
    async def body() -> None:
        (told,) = await site.stores.told({})
        report = {"site": "hami", "agent_epoch": 1, "workers": [], "stores": [told | change]}
        with pytest.raises(LeaseRefused, match=words):
            await Gateway().roster.renew(report)

    asyncio.run(body())
