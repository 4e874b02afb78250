"""Which workers there are: sites renew their leases here, and a lapsed one drains its site only."""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

from orchestrator.live.directory import Directory
from orchestrator.live.driver import Driver
from orchestrator.topology.schema import Topology
from workers.api.messages import Role

log = logging.getLogger(__name__)

LOOK_S = 1.0


class LeaseRefused(Exception):
    """An agent's report that makes no sense; the text is one line."""


@dataclass(slots=True)
class SiteLease:
    """One site's standing. `epoch` grows with each new agent: an older one is not heard."""

    epoch: int
    until: float
    lapsed: bool = False
    workers: dict[str, dict[str, Any]] = field(default_factory=dict)


class Roster:
    """Keeps the driver's members in step with what the agents report."""

    def __init__(self, topology: Topology, driver: Driver, directory: Directory) -> None:
        self._topology = topology
        self._driver = driver
        self._directory = directory
        self._lease_s = topology.policy.deadlines.lease_s
        self._sites: dict[str, SiteLease] = {}
        self._drained: set[str] = set()
        self._changing = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    def problems(self) -> dict[str, str]:
        """Workers that are not up, with their agent's reason."""
        return {
            name: f"{report['state']}: {report['reason']}" if report["reason"] else report["state"]
            for lease in self._sites.values()
            for name, report in lease.workers.items()
            if report["state"] != "up"
        }

    def drain(self, names: list[str]) -> None:
        """Workers that their agents shall drain; told with the next lease."""
        self._drained.update(names)
        for name in names:
            self._driver.drain(name)

    async def renew(self, report: Any) -> dict[str, Any]:
        """Take an agent's report; the answer holds its orders. Raises LeaseRefused, LineError."""
        site, epoch, workers = _read(report)
        if site not in self._topology.sites:
            known = ", ".join(sorted(self._topology.sites))
            raise LeaseRefused(f"no site {site!r} in the topology; there are {known}")
        async with self._changing:
            lease = self._sites.get(site)
            if lease is not None and epoch < lease.epoch:
                raise LeaseRefused(f"a newer agent of {site} holds the lease")
            if lease is None:
                lease = self._sites[site] = SiteLease(epoch=epoch, until=0.0)
            lease.epoch, lease.until = epoch, self._loop.time() + self._lease_s
            gone = lease.workers.keys() - workers.keys()
            lease.workers = workers
            if lease.lapsed:
                lease.lapsed = False
                log.info("lease renewed again", extra={"site": site})
            for name in gone:
                await self._driver.remove(name)
            for name, worker in workers.items():
                await self._follow(site, name, worker)
        return {"drain": sorted(self._drained & workers.keys())}

    async def watch(self) -> None:
        """Look after the leases for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            now = self._loop.time()
            for site, lease in self._sites.items():
                if not lease.lapsed and now >= lease.until:
                    lease.lapsed = True
                    log.warning("lease lapsed", extra={"site": site})
                    for name in lease.workers:
                        self._driver.drain(name)

    async def _follow(self, site: str, name: str, worker: dict[str, Any]) -> None:
        state = worker["state"]
        if state in ("failed", "drained"):
            await self._driver.remove(name)
            return
        if state in ("up", "draining"):
            place = await self._directory.add(name, site, worker["http"], worker["kv"])
            roles = frozenset(Role(role) for role in worker["roles"])
            self._driver.join(name, site, worker["pool"], roles, place)
        if state == "draining" or name in self._drained:
            self._driver.drain(name)
        elif state == "up":
            self._driver.revive(name)


def expected_workers(topology: Topology) -> frozenset[str]:
    """Names of the workers that a topology asks for."""
    return frozenset(
        f"{site}/{pool}/{i}"
        for site, there in topology.sites.items()
        for pool, settings in there.pools.items()
        for i in range(settings.instances)
    )


_FIELDS = {"name", "pool", "roles", "state", "reason", "http", "kv"}


def _read(report: Any) -> tuple[str, int, dict[str, dict[str, Any]]]:
    try:
        site, epoch = report["site"], report["agent_epoch"]
        workers = {worker["name"]: worker for worker in report["workers"]}
        missing = [field for w in workers.values() for field in _FIELDS - w.keys()]
    except (KeyError, TypeError, AttributeError) as error:
        raise LeaseRefused(f"not a lease report: {type(error).__name__} {error}") from error
    if missing or not isinstance(site, str) or not isinstance(epoch, int):
        raise LeaseRefused(f"not a lease report: missing {', '.join(sorted(set(missing)))}")
    return site, epoch, workers
