"""Keeps the driver's members in step with what the sites' agents report."""

import asyncio
from collections.abc import Iterable
from typing import Any

from orchestrator.live.directory import Directory
from orchestrator.live.driver import Driver
from orchestrator.membership.leases import Change, Draining, Left, Present, SiteLeases
from orchestrator.membership.members import site_of
from orchestrator.membership.reports import read_report
from orchestrator.membership.standing import Standing
from orchestrator.membership.stores import StoreVersions
from orchestrator.topology.schema import Topology

LOOK_S = 1.0


class Roster:
    """Carries out what `SiteLeases` makes of the reports, and of their absence."""

    def __init__(self, topology: Topology, driver: Driver, directory: Directory) -> None:
        self._driver = driver
        self._directory = directory
        self._leases = SiteLeases(topology.sites.keys(), topology.policy.deadlines.lease_s)
        self._stores = StoreVersions()
        self._changing = asyncio.Lock()  # changes are carried out in their order
        self._loop = asyncio.get_running_loop()

    def failures(self) -> dict[str, str]:
        """Workers that their agents have given up, with the reasons."""
        return self._leases.failures()

    async def renew(self, body: Any) -> dict[str, Any]:
        """Take an agent's report. What it is told: the versions of its site's stores that are known
        then, by pool, and what is wanted of the site.

        Raises LeaseRefused, LineError.
        """
        report = read_report(body)
        async with self._changing:
            await self._carry_out(self._leases.renew(report, self._loop.time()))
            standing = self._stand(report.site)
            for store, news in self._stores.hear(report):
                self._driver.store(report.site, store, news)
            return {"stores": self._stores.of(report.site), "standing": standing.told()}

    async def drain(self, site: str, *, undo: bool) -> None:
        """A site is to have no workers, or to have them again."""
        async with self._changing:
            await self._carry_out(self._leases.drain(site, undo=undo))
            self._stand(site)

    async def replace(self, worker: str) -> None:
        """Another process is to take the place of a worker's, which ends in peace."""
        async with self._changing:
            await self._carry_out(self._leases.replace(site_of(worker), worker))

    def _stand(self, site: str) -> Standing:
        standing = self._leases.standing(site)
        self._driver.stand(site, drained=standing.drained)
        return standing

    async def watch(self) -> None:
        """Look after the leases for ever."""
        while True:
            due = self._leases.next_deadline()
            until = LOOK_S if due is None else due - self._loop.time()
            await asyncio.sleep(min(LOOK_S, max(0.0, until)))
            async with self._changing:
                await self._carry_out(self._leases.expire(self._loop.time()))

    async def _carry_out(self, changes: Iterable[Change]) -> None:
        for change in changes:
            if isinstance(change, Present):
                worker = change.worker
                place = await self._directory.add(worker.name, change.site, worker.http, worker.kv)
                self._driver.join(worker.name, change.site, worker.pool, worker.roles, place)
            elif isinstance(change, Left):
                await self._driver.remove(change.worker)
            elif isinstance(change, Draining):
                self._driver.drain(change.worker)
            else:
                self._driver.revive(change.worker)


def expected_workers(topology: Topology) -> frozenset[str]:
    """Names of the workers that a topology asks for."""
    return frozenset(
        f"{site}/{pool}/{i}"
        for site, there in topology.sites.items()
        for pool, settings in there.pools.items()
        for i in range(settings.instances)
    )
