"""What a site's agent knows of its workers, and how often it says so."""

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from orchestrator.membership.reports import FINAL, WorkerState
from orchestrator.membership.standing import Standing
from workers.api.messages import Role

log = logging.getLogger(__name__)

WATCH_S = 1.0  # each worker is looked at this often
START_S = 180.0  # a worker that is not up after this long has failed
ANSWER_S = 10.0  # a description that takes longer has failed
RENEW_S = 1.0
RENEW_MOST_S = 5.0
RENEW_TIMEOUT_S = 3.0  # below a lease, so that one stuck renewal does not cost it
NOWHERE = "none:0"  # in a report, of a worker that has no address yet


class Phase(StrEnum):
    """What a worker's own process says of itself."""

    LOADING = "loading"
    SERVING = "serving"
    FAILED = "failed"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A worker process's account of itself; `http` and `kv` are "host:port"."""

    http: str
    kv: str
    phase: Phase
    reason: str | None
    draining: bool
    info: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """A worker that the site is to run. Its addresses are known once it is placed or adopted."""

    name: str
    pool: str
    roles: tuple[Role, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Start the worker's process."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Tell the worker's process to take no new legs, and to end when the running ones have."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """End the worker's process for good, and start no other in its place."""

    worker: str


Order = Place | Drain | Remove


class Ending(StrEnum):
    """What becomes of a worker when it has ended in peace."""

    STAYS = "stays away"
    AGAIN = "again"  # another process takes its place
    FORGOTTEN = "forgotten"  # the site has it no more


@dataclass(slots=True)
class _Known:
    """One worker. `answered_at` is when it last served, for what starts too slowly."""

    name: str
    pool: str
    roles: tuple[Role, ...]
    answered_at: float
    http: str
    kv: str
    state: WorkerState = WorkerState.STARTING
    reason: str | None = None
    info: dict[str, Any] | None = None
    ending: Ending = Ending.STAYS

    def report(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "pool": self.pool,
            "roles": [role.value for role in self.roles],
            "state": self.state.value,
            "reason": self.reason,
            "http": self.http,
            "kv": self.kv,
            "info": self.info,
        }


def _unplaced(worker: Assigned, now: float) -> _Known:
    return _Known(
        name=worker.name,
        pool=worker.pool,
        roles=worker.roles,
        answered_at=now,
        http=NOWHERE,
        kv=NOWHERE,
    )


class SiteInventory:
    """The workers of one site, as its agent with this `epoch` knows them.

    `front` is the agent's own "host:port", `start_s` how long a worker may take to be up. Begin it
    once, then look at every worker in `watched` each `WATCH_S`: tell what it says of itself, or
    that it does not answer. What comes back is to be carried out; an order that cannot be is
    forgotten, and given again while it is due.
    """

    def __init__(
        self,
        site: str,
        workers: Iterable[Assigned],
        *,
        front: str,
        epoch: int,
        start_s: float,
        now: float,
    ) -> None:
        self._site = site
        self._front = front
        self._epoch = epoch
        self._start_s = start_s
        self._refusal: str | None = None
        self._standing = Standing()
        self._known = {worker.name: _unplaced(worker, now) for worker in workers}

    @property
    def names(self) -> list[str]:
        return list(self._known)

    @property
    def watched(self) -> list[str]:
        """Workers that are not given up and have not ended."""
        return [name for name, known in self._known.items() if known.state not in FINAL]

    def begin(
        self, running: Collection[str], refusal: str | None, leaving: Collection[str] = ()
    ) -> list[Order]:
        """Adopt the workers that run already, place the others. Of those that are `leaving` who
        still runs ends in peace, and the others are forgotten.

        `refusal` is why the site's nodes cannot hold all its workers; None: they can.
        """
        orders: list[Order] = []
        for name, known in list(self._known.items()):
            if name in leaving:
                if name in running:
                    orders += self._end(known, Ending.FORGOTTEN)
                else:
                    del self._known[name]
            elif name in running:
                log.info("adopting", extra={"worker": name})
            elif refusal is None:
                orders.append(Place(worker=name))
            else:
                self._refusal = refusal
                self._give_up(known, refusal)
        return orders

    def placed(self, worker: str, http: str, kv: str) -> None:
        """The worker's process was started, with these addresses."""
        known = self._known[worker]
        known.http, known.kv = http, kv

    def described(self, worker: str, said: Description, now: float) -> list[Order]:
        """The worker's process answered."""
        known = self._known[worker]
        if known.state in FINAL:
            return []
        known.http, known.kv = said.http, said.kv
        return _AFTER[said.phase](self, known, said, now)

    def unanswered(self, worker: str, reason: str | None, now: float) -> list[Order]:
        """The worker's process did not answer: it is being restarted, or is gone."""
        known = self._known[worker]
        if known.state in FINAL:
            return []
        if known.state is WorkerState.UP:
            log.warning("worker restarts", extra={"worker": worker})
            known.state = WorkerState.RESTARTING
        known.reason = reason or "its process does not answer"
        return self._patience(known, now)

    def drain(self, workers: Iterable[str]) -> list[Order]:
        """Somebody wants these workers to end in peace."""
        known = (self._known[name] for name in workers if name in self._known)
        return [order for worker in known for order in self._end(worker, Ending.STAYS)]

    def told(self, standing: Standing, now: float) -> list[Order]:
        """A gateway says what is wanted of the site. What is no later than what is known is not
        carried out again.
        """
        if standing.version <= self._standing.version:
            return []
        was, self._standing = self._standing, replace(standing, replace=frozenset())
        log.info("wanted", extra={"standing": standing.told()})
        orders: list[Order] = []
        for known in self._known.values():
            if standing.drained:
                orders += self._end(known, Ending.STAYS)
            elif was.drained or known.name in standing.replace:
                orders += self._again(known, now)
        return orders

    def follow(
        self, workers: Iterable[Assigned], changed: Collection[str], now: float
    ) -> list[Order]:
        """The site is to have these from now on. Who is no more among them ends in peace; the place
        of a `changed` one is taken by another process.
        """
        wanted = {worker.name: worker for worker in workers}
        refused, self._refusal = self._refusal, None  # the nodes hold these
        orders: list[Order] = []
        for name in [name for name in self._known if name not in wanted]:
            if self._known[name].state in FINAL:
                del self._known[name]
            else:
                orders += self._end(self._known[name], Ending.FORGOTTEN)
        for name, worker in wanted.items():
            known = self._known.get(name)
            if known is None:
                known = self._known[name] = _unplaced(worker, now)
                known.state = WorkerState.DRAINED
                orders += self._again(known, now)
                continue
            known.roles = worker.roles
            if known.ending is Ending.FORGOTTEN:
                known.ending = Ending.STAYS if self._standing.drained else Ending.AGAIN
            elif refused is not None and known.state in FINAL:
                orders += self._again(known, now)
            elif name in changed and known.state in (WorkerState.STARTING, WorkerState.RESTARTING):
                orders += [Remove(worker=name), *self._start(known, now)]
            elif name in changed:
                orders += self._again(known, now)
        return orders

    @property
    def drained(self) -> bool:
        """The site is to have no workers, and has none any more."""
        return self._standing.drained and not self.watched

    def report(self, lease: str) -> dict[str, Any]:
        """What the agent posts with each renewal; `lease` is how the last ones went, for people."""
        return {
            "site": self._site,
            "agent_epoch": self._epoch,
            "agent": self._front,
            "refusal": self._refusal,
            "lease": lease,
            "standing": self._standing.told(),
            "workers": [known.report() for known in self._known.values()],
        }

    # ------------------------------------------------------------ by what the process says

    def _end(self, known: _Known, ending: Ending) -> list[Order]:
        if known.state in FINAL:
            return []
        known.state = WorkerState.DRAINING
        if known.ending is not Ending.FORGOTTEN:
            known.ending = ending
        return [Drain(worker=known.name)]

    def _again(self, known: _Known, now: float) -> list[Order]:
        """Another process for a worker, once what runs has ended in peace."""
        if self._standing.drained:
            return []
        if known.state in FINAL:
            return self._start(known, now)
        if known.state in (WorkerState.STARTING, WorkerState.RESTARTING):
            return []  # that is under way
        return self._end(known, Ending.AGAIN)

    def _start(self, known: _Known, now: float) -> list[Order]:
        if self._refusal is not None:
            return []
        known.state, known.ending = WorkerState.STARTING, Ending.STAYS
        known.answered_at, known.reason, known.info = now, None, None
        return [Place(worker=known.name)]

    def _loading(self, known: _Known, said: Description, now: float) -> list[Order]:
        if known.state is WorkerState.DRAINING:
            # Another process took its place: nothing is left to drain.
            return self._drained(known, now)
        if known.state is WorkerState.UP:
            known.state = WorkerState.RESTARTING
        known.reason = "loading model"
        return self._patience(known, now)

    def _serving(self, known: _Known, said: Description, now: float) -> list[Order]:
        known.answered_at, known.reason, known.info = now, said.reason, said.info
        if said.draining:  # it was told so by another agent, or by a signal
            known.state = WorkerState.DRAINING
        if known.state is not WorkerState.DRAINING:
            known.state = WorkerState.UP
            return []
        return [] if said.draining else [Drain(worker=known.name)]

    def _failed(self, known: _Known, said: Description, now: float) -> list[Order]:
        reason = said.reason or "failed"
        if known.state is WorkerState.DRAINING and known.ending is not Ending.STAYS:
            # It was to go, and has; it must not stand in the way of what follows it.
            log.error("worker failed", extra={"worker": known.name, "reason": reason})
            return self._drained(known, now)
        return self._give_up(known, reason)

    def _ended(self, known: _Known, said: Description, now: float) -> list[Order]:
        return self._drained(known, now)

    def _patience(self, known: _Known, now: float) -> list[Order]:
        if now - known.answered_at <= self._start_s:
            return []
        if known.state is WorkerState.DRAINING:
            return self._drained(known, now)
        return self._give_up(known, f"not up within {self._start_s:g} s: {known.reason}")

    def _give_up(self, known: _Known, reason: str) -> list[Order]:
        log.error("worker failed", extra={"worker": known.name, "reason": reason})
        known.state, known.reason = WorkerState.FAILED, reason
        return [Remove(worker=known.name)]

    def _drained(self, known: _Known, now: float) -> list[Order]:
        orders: list[Order] = [Remove(worker=known.name)]
        if known.ending is Ending.AGAIN:
            return orders + self._start(known, now)
        if known.ending is Ending.FORGOTTEN:
            del self._known[known.name]
        known.state, known.reason = WorkerState.DRAINED, None
        return orders


_AFTER: dict[Phase, Callable[[SiteInventory, _Known, Description, float], list[Order]]] = {
    Phase.LOADING: SiteInventory._loading,
    Phase.SERVING: SiteInventory._serving,
    Phase.FAILED: SiteInventory._failed,
    Phase.ENDED: SiteInventory._ended,
}


class Renewals:
    """When the lease at one gateway is renewed next: each `RENEW_S`, less often while it fails."""

    def __init__(self) -> None:
        self.state = "not yet renewed"  # for people
        self._wait_s = RENEW_S

    def renewed(self) -> float:
        """Seconds to wait after a renewal that the gateway took."""
        self.state, self._wait_s = "renewed", RENEW_S
        return self._wait_s

    def failed(self, reason: str) -> float:
        """Seconds to wait after one that it did not."""
        self.state, self._wait_s = reason, min(2 * self._wait_s, RENEW_MOST_S)
        return self._wait_s
