"""Keeps the driver's members in step with what the sites' agents report."""

import asyncio
from collections.abc import Iterable
from typing import Any

from orchestrator.live.directory import Directory
from orchestrator.live.driver import Driver
from orchestrator.membership.leases import Change, Draining, Left, Present, SiteLeases
from orchestrator.membership.reports import Report, read_report
from orchestrator.topology.schema import Topology

LOOK_S = 1.0


class Roster:
    """Carries out what `SiteLeases` makes of the reports, and of their absence."""

    def __init__(self, topology: Topology, driver: Driver, directory: Directory) -> None:
        self._driver = driver
        self._directory = directory
        self._leases = SiteLeases(topology.sites.keys(), topology.policy.deadlines.lease_s)
        self._versions: dict[str, dict[str, int]] = {}  # of stores: by site, by pool
        self._changing = asyncio.Lock()  # changes are carried out in their order
        self._loop = asyncio.get_running_loop()

    def failures(self) -> dict[str, str]:
        """Workers that their agents have given up, with the reasons."""
        return self._leases.failures()

    async def renew(self, body: Any) -> dict[str, int]:
        """Take an agent's report; the versions of its site's stores that are known then, by pool.

        Raises LeaseRefused, LineError.
        """
        report = read_report(body)
        async with self._changing:
            await self._carry_out(self._leases.renew(report, self._loop.time()))
            return self._hear_stores(report)

    def _hear_stores(self, report: Report) -> dict[str, int]:
        known = self._versions.setdefault(report.site, {})
        for store in report.stores:
            if not store.whole and store.since != known.get(store.pool):
                continue  # another gateway's differences, or of before this one began
            news = store.version != known.get(store.pool)
            self._driver.store(report.site, store, news=news)
            known[store.pool] = store.version
        return known

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
