"""Site leases: an agent renews its site's by reporting; a lapsed one drains its site only."""

import logging
from collections.abc import Collection
from dataclasses import dataclass

from orchestrator.membership.reports import (
    FINAL,
    LeaseRefused,
    Report,
    WorkerReport,
    WorkerState,
)

log = logging.getLogger(__name__)

REACHABLE = {WorkerState.UP, WorkerState.DRAINING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """The worker is there, at the addresses that the report tells."""

    site: str
    worker: WorkerReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The worker is no longer of the deployment."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Draining:
    """The worker takes no new legs."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The worker may have new legs."""

    worker: str


Change = Present | Left | Draining | Serving


@dataclass(slots=True)
class _Lease:
    """One site's standing. `epoch` grows with each new agent."""

    epoch: int
    until: float
    lapsed: bool
    workers: dict[str, WorkerReport]


class SiteLeases:
    """What the agents' reports make of the deployment's workers.

    A site whose agent is silent for `lease_s` drains: its workers get no new legs, the running
    ones go on. The next renewal ends that. Changes are carried out in their order, and those of
    one call before those of the next.
    """

    def __init__(self, sites: Collection[str], lease_s: float) -> None:
        self._sites = sites
        self._lease_s = lease_s
        self._leases: dict[str, _Lease] = {}

    def failures(self) -> dict[str, str]:
        """Workers that their agents have given up, with the reasons."""
        return {
            name: worker.reason or "no reason given"
            for lease in self._leases.values()
            for name, worker in lease.workers.items()
            if worker.state is WorkerState.FAILED
        }

    def renew(self, report: Report, now: float) -> list[Change]:
        """Take an agent's report. Raises LeaseRefused, and then nothing has changed."""
        site = report.site
        if site not in self._sites:
            known = ", ".join(sorted(self._sites))
            raise LeaseRefused(f"no site {site!r} in the topology; there are {known}")
        lease = self._leases.get(site)
        if lease is not None and not lease.lapsed and report.agent_epoch < lease.epoch:
            raise LeaseRefused(f"a newer agent of {site} holds the lease")
        if lease is not None and lease.lapsed:
            log.info("lease renewed again", extra={"site": site})
        gone = [n for n in lease.workers if n not in report.workers] if lease is not None else []
        self._leases[site] = _Lease(
            epoch=report.agent_epoch,
            until=now + self._lease_s,
            lapsed=False,
            workers=report.workers,
        )
        changes: list[Change] = [Left(worker=name) for name in gone]
        for worker in report.workers.values():
            changes += _follow(site, worker)
        return changes

    def expire(self, now: float) -> list[Change]:
        """What the leases that have run out by now mean."""
        changes: list[Change] = []
        for site, lease in self._leases.items():
            if not lease.lapsed and now >= lease.until:
                lease.lapsed = True
                log.warning("lease lapsed", extra={"site": site})
                changes += [Draining(worker=name) for name in lease.workers]
        return changes

    def next_deadline(self) -> float | None:
        """When `expire` is due."""
        return min((le.until for le in self._leases.values() if not le.lapsed), default=None)


def _follow(site: str, worker: WorkerReport) -> list[Change]:
    if worker.state in FINAL:
        return [Left(worker=worker.name)]
    if worker.state in REACHABLE:
        draining = worker.state is WorkerState.DRAINING
        standing = Draining if draining else Serving
        return [Present(site=site, worker=worker), standing(worker=worker.name)]
    # Starting or restarting: its token stream says sooner than the agent what becomes of it.
    return []
