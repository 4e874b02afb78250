"""Site leases: an agent renews its site's by reporting; a lapsed one drains its site only."""

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from orchestrator.membership.reports import (
    FINAL,
    LeaseRefused,
    Report,
    WorkerReport,
    WorkerState,
)
from orchestrator.membership.standing import Standing
from workers.api.wire import shown

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
    ones go on. The next renewal ends that. A site that somebody drains does so at once, and its
    agent is told with its next renewal (`standing`). Changes are carried out in their order, and
    those of one call before those of the next.
    """

    def __init__(self, sites: Collection[str], lease_s: float) -> None:
        self._sites = sites
        self._lease_s = lease_s
        self._leases: dict[str, _Lease] = {}
        self._standings: dict[str, Standing] = {}

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
            raise LeaseRefused(f"no site {shown(site)} in the topology; there are {known}")
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
        if report.standing.version >= self.standing(site).version:
            self._standings[site] = replace(report.standing, replace=frozenset())
        drained = self.standing(site).drained
        changes: list[Change] = [Left(worker=name) for name in gone]
        for worker in report.workers.values():
            changes += _follow(site, worker, drained=drained)
        return changes

    def standing(self, site: str) -> Standing:
        """What is wanted of a site, for its agent to be told."""
        return self._standings.get(site, Standing())

    def drain(self, site: str, *, undo: bool = False) -> list[Change]:
        """Somebody wants a site to have no workers, or to have them again."""
        there = self._leases[site].workers if site in self._leases else {}
        return self._want(
            site, replace(self.standing(site), drained=not undo), () if undo else there
        )

    def replace(self, site: str, worker: str) -> list[Change]:
        """Somebody wants another process in the place of a worker's."""
        standing = self.standing(site)
        wanted = replace(standing, replace=standing.replace | {worker})
        return self._want(site, wanted, (worker,))

    def _want(self, site: str, wanted: Standing, draining: Iterable[str]) -> list[Change]:
        """A later word than all that were heard. What drains by it need not wait for the agent."""
        self._standings[site] = replace(wanted, version=wanted.version + 1)
        log.info("wanted", extra={"site": site, "standing": wanted.told()})
        return [Draining(worker=name) for name in draining]

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


def _follow(site: str, worker: WorkerReport, *, drained: bool) -> list[Change]:
    if worker.state in FINAL:
        return [Left(worker=worker.name)]
    if worker.state in REACHABLE:
        draining = drained or worker.state is WorkerState.DRAINING
        standing = Draining if draining else Serving
        return [Present(site=site, worker=worker), standing(worker=worker.name)]
    # Starting or restarting: its token stream says sooner than the agent what becomes of it.
    return []
