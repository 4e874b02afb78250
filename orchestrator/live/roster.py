"""Which workers there are: sites renew their leases here, and a lapsed one drains its site only."""

import asyncio
import logging
import re
from dataclasses import dataclass
from typing import Any, TypeVar

from orchestrator.live.agent import WorkerState
from orchestrator.live.directory import Directory
from orchestrator.live.driver import Driver
from orchestrator.topology.schema import Topology
from workers.api.messages import Role

log = logging.getLogger(__name__)

LOOK_S = 1.0
ADDRESS = re.compile(r"[A-Za-z0-9.-]+:[0-9]{1,5}")

T = TypeVar("T")


class LeaseRefused(Exception):
    """An agent's report that makes no sense; the text is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """One worker as its agent tells of it; `http` and `kv` are "host:port"."""

    name: str
    pool: str
    roles: frozenset[Role]
    state: WorkerState
    reason: str | None
    http: str
    kv: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an agent posts with each renewal of its site's lease."""

    site: str
    agent_epoch: int
    workers: dict[str, WorkerReport]


@dataclass(slots=True)
class SiteLease:
    """One site's standing. `epoch` grows with each new agent: an older one is not heard."""

    epoch: int
    until: float
    lapsed: bool
    workers: dict[str, WorkerReport]


class Roster:
    """Keeps the driver's members in step with what the agents report.

    A site whose agent is silent for `lease_s` drains: its workers get no new legs, the running
    ones go on. The next renewal ends that.
    """

    def __init__(self, topology: Topology, driver: Driver, directory: Directory) -> None:
        self._topology = topology
        self._driver = driver
        self._directory = directory
        self._lease_s = topology.policy.deadlines.lease_s
        self._sites: dict[str, SiteLease] = {}
        self._changing = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    def failures(self) -> dict[str, str]:
        """Workers that their agents have given up, with the reasons."""
        return {
            name: worker.reason or "no reason given"
            for lease in self._sites.values()
            for name, worker in lease.workers.items()
            if worker.state is WorkerState.FAILED
        }

    async def renew(self, body: Any) -> None:
        """Take an agent's report. Raises LeaseRefused, LineError."""
        report = read_report(body)
        site = report.site
        if site not in self._topology.sites:
            known = ", ".join(sorted(self._topology.sites))
            raise LeaseRefused(f"no site {site!r} in the topology; there are {known}")
        async with self._changing:
            lease = self._sites.get(site)
            if lease is not None and report.agent_epoch < lease.epoch:
                raise LeaseRefused(f"a newer agent of {site} holds the lease")
            if lease is not None and lease.lapsed:
                log.info("lease renewed again", extra={"site": site})
            gone = [] if lease is None else lease.workers.keys() - report.workers.keys()
            self._sites[site] = SiteLease(
                epoch=report.agent_epoch,
                until=self._loop.time() + self._lease_s,
                lapsed=False,
                workers=report.workers,
            )
            for name in gone:
                await self._driver.remove(name)
            for worker in report.workers.values():
                await self._follow(site, worker)

    async def watch(self) -> None:
        """Look after the leases for ever."""
        while True:
            await asyncio.sleep(min(LOOK_S, self._lease_s / 4))
            now = self._loop.time()
            for site, lease in self._sites.items():
                if not lease.lapsed and now >= lease.until:
                    lease.lapsed = True
                    log.warning("lease lapsed", extra={"site": site})
                    for name in lease.workers:
                        self._driver.drain(name)

    async def _follow(self, site: str, worker: WorkerReport) -> None:
        """Bring the driver's member to the state that its agent reports."""
        if worker.state in LEFT:
            await self._driver.remove(worker.name)
        elif worker.state in REACHABLE:
            place = await self._directory.add(worker.name, site, worker.http, worker.kv)
            self._driver.join(worker.name, site, worker.pool, worker.roles, place)
            if worker.state is WorkerState.DRAINING:
                self._driver.drain(worker.name)
            else:
                self._driver.revive(worker.name)
        # Starting or restarting: its token stream says sooner than the agent what becomes of it.


LEFT = {WorkerState.FAILED, WorkerState.DRAINED}
REACHABLE = {WorkerState.UP, WorkerState.DRAINING}


def expected_workers(topology: Topology) -> frozenset[str]:
    """Names of the workers that a topology asks for."""
    return frozenset(
        f"{site}/{pool}/{i}"
        for site, there in topology.sites.items()
        for pool, settings in there.pools.items()
        for i in range(settings.instances)
    )


def read_report(body: Any) -> Report:
    """An agent's report from JSON. Raises LeaseRefused, whose text names the field."""
    site, epoch = _field(body, "site", str), _field(body, "agent_epoch", int)
    workers = [_read_worker(worker) for worker in _field(body, "workers", list)]
    for worker in workers:
        if not worker.name.startswith(f"{site}/{worker.pool}/"):
            raise LeaseRefused(f"name: {worker.name!r} is no worker of {site}/{worker.pool}")
    return Report(site=site, agent_epoch=epoch, workers={w.name: w for w in workers})


def _read_worker(body: Any) -> WorkerReport:
    reason = body.get("reason") if isinstance(body, dict) else None
    try:
        roles = frozenset(Role(role) for role in _field(body, "roles", list))
        state = WorkerState(_field(body, "state", str))
    except ValueError as error:
        raise LeaseRefused(f"workers: {error}") from error
    return WorkerReport(
        name=_field(body, "name", str),
        pool=_field(body, "pool", str),
        roles=roles,
        state=state,
        reason=reason if isinstance(reason, str) else None,
        http=_address(body, "http"),
        kv=_address(body, "kv"),
    )


def _field(body: Any, key: str, kind: type[T]) -> T:
    value = body.get(key) if isinstance(body, dict) else None
    if type(value) is not kind:
        raise LeaseRefused(f"{key}: missing, or not of type {kind.__name__}")
    return value


def _address(body: Any, key: str) -> str:
    address = _field(body, key, str)
    if not ADDRESS.fullmatch(address):
        raise LeaseRefused(f"{key}: {address!r} is not host:port")
    return address
