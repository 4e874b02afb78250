"""The deployment's workers as one gateway knows them: news in, the machine's events out."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.membership.reach import CameUp, Lost, News
from orchestrator.membership.reports import Hello
from orchestrator.state.events import (
    Event,
    Heard,
    Reconnected,
    RolesTold,
    WorkerDraining,
    WorkerLost,
    WorkerReturned,
    WorkerUp,
)
from workers.api.messages import DownMessage, Load, Role, Stop, UpMessage


class MemberState(StrEnum):
    """Whether legs can go to a worker."""

    UP = "up"
    DRAINING = "draining"  # those it has go on
    DOWN = "down"  # not reached


class SiteState(StrEnum):
    """Whether a site serves, by its workers."""

    UP = "up"
    DRAINING = "draining"  # no new legs, those it has go on
    DRAINED = "drained"  # somebody wanted it so, and its workers have ended
    LOST = "lost"  # none of its workers is reached


def site_of(worker: str) -> str:
    """Workers are called SITE/POOL/NUMBER."""
    return worker.split("/", 1)[0]


# The best of its workers' states is the site's.
_SITE_STATES = {MemberState.UP: SiteState.UP, MemberState.DRAINING: SiteState.DRAINING}


@dataclass(slots=True)
class Member:
    """A worker of the deployment. `load` is its last account of itself, while it is up.

    `roles` are those that its agent `reported`, until it is given others.
    """

    site: str
    pool: str
    roles: frozenset[Role]
    reported: frozenset[Role]
    hello: Hello | None = None  # None: not up
    load: Load | None = None
    draining: bool = False

    @property
    def state(self) -> MemberState:
        if self.hello is None:
            return MemberState.DOWN
        return MemberState.DRAINING if self.draining else MemberState.UP


class Members:
    """Every worker that has joined and not left. The events are to be told in their order.

    `needed` are the workers without which the service is not ready when it starts, `sites` those
    that may have any. What is said of a worker that is no member gives no event.
    """

    def __init__(self, needed: frozenset[str], sites: Collection[str] = ()) -> None:
        self.by_name: dict[str, Member] = {}
        self.sites = tuple(sites)
        self._drained: set[str] = set()  # sites that are to have no workers
        self._awaited = set(needed)  # of the needed, those that were never up yet

    def why_not_ready(self) -> str | None:
        """Ready once every needed worker has been up, and while some worker is.

        After that any live worker may serve, whatever its role: the core knows which can.
        """
        awaited = sorted(name for name in self._awaited if site_of(name) not in self._drained)
        if awaited:
            return f"waiting for workers: {', '.join(awaited)}"
        if not any(m.hello is not None and not m.draining for m in self.by_name.values()):
            return "no worker is up"
        return None

    def site_state(self, site: str) -> SiteState:
        states = {member.state for member in self.by_name.values() if member.site == site}
        away = SiteState.DRAINED if site in self._drained else SiteState.LOST
        return next((to for of, to in _SITE_STATES.items() if of in states), away)

    def stand(self, site: str, *, drained: bool) -> None:
        """Somebody wants a site to have no workers, or to have them again."""
        (self._drained.add if drained else self._drained.discard)(site)

    def deliverable(self, worker: str, message: DownMessage) -> bool:
        """Whether a message is still worth sending.

        The loss of a worker that is not up has been told; only what frees memory still goes there.
        """
        member = self.by_name.get(worker)
        return member is not None and (member.hello is not None or isinstance(message, Stop))

    # ------------------------------------------------------------ what agents report

    def join(self, worker: str, site: str, pool: str, roles: frozenset[Role]) -> bool:
        """A worker that its agent reports. Whether it is new: a stream to it must be opened."""
        if worker in self.by_name:
            return False
        self.by_name[worker] = Member(site=site, pool=pool, roles=roles, reported=roles)
        return True

    def reported(self, worker: str, roles: frozenset[Role]) -> list[Event]:
        """Its agent reports it again: only roles that it did not report before are news."""
        member = self.by_name[worker]
        if member.reported == roles:
            return []
        member.reported = roles
        return self.give_roles(worker, roles)

    def drain(self, worker: str) -> list[Event]:
        """No new legs for this worker."""
        member = self.by_name.get(worker)
        if member is None or member.draining:
            return []
        member.draining = True
        return [WorkerDraining(worker=worker)]

    def revive(self, worker: str) -> list[Event]:
        """A drained worker may have new legs again: its site's lease was renewed."""
        member = self.by_name.get(worker)
        if member is None or not member.draining:
            return []
        member.draining = False
        return [WorkerReturned(worker=worker)] if member.hello is not None else []

    def give_roles(self, worker: str, roles: frozenset[Role]) -> list[Event]:
        """New legs of this worker are of these roles, also when it comes up again."""
        member = self.by_name.get(worker)
        if member is None or member.roles == roles:
            return []
        member.roles = roles
        return [RolesTold(worker=worker, roles=roles)] if member.hello is not None else []

    def remove(self, worker: str) -> list[Event]:
        """The worker has left the deployment."""
        if self.by_name.pop(worker, None) is None:
            return []
        return [WorkerLost(worker=worker, reason="it left")]

    # ------------------------------------------------------------ what streams tell

    def learn(self, worker: str, news: News) -> list[Event]:
        """What a worker's reach has to tell."""
        member = self.by_name.get(worker)
        if member is None:
            return []
        if isinstance(news, CameUp):
            return self._came_up(worker, member, news.hello)
        if isinstance(news, Lost):
            member.hello = member.load = None
            return [WorkerLost(worker=worker, reason=news.reason)]
        return [Reconnected(worker=worker)]

    def heard(self, worker: str, messages: Iterable[UpMessage]) -> list[Event]:
        """What the worker says in its stream."""
        member = self.by_name.get(worker)
        if member is None:
            return []
        events: list[Event] = []
        for message in messages:
            if isinstance(message, Load):
                member.load = message
                self._awaited.discard(worker)
            events.append(Heard(worker=worker, message=message))
        return events

    def _came_up(self, worker: str, member: Member, hello: Hello) -> list[Event]:
        member.hello = hello
        return [
            WorkerUp(
                worker=worker,
                site=member.site,
                pool=member.pool,
                roles=member.roles,
                slots=hello.slots,
                max_context=hello.max_context,
                kv_total_tokens=hello.kv_total_tokens,
                kv_bytes_per_token=hello.kv_bytes_per_token,
                draining=member.draining,
                keeps=hello.keeps,
            )
        ]
