"""What an operator asks of a running gateway: to drain a site, to replace a worker."""

from collections.abc import Callable, Collection
from typing import Any, Protocol

from orchestrator.live.openai.errors import ApiError
from orchestrator.membership.members import Members, MemberState, site_of

ASKED = 'must be {"site": NAME, "undo": true or false} or {"worker": NAME}'


class Carrier(Protocol):
    """Who carries it out: the roster."""

    async def drain(self, site: str, *, undo: bool) -> None: ...
    async def replace(self, worker: str) -> None: ...


class Orders:
    """Refuses what makes no sense, and what would leave nobody to serve."""

    def __init__(self, members: Members, carrier: Carrier) -> None:
        self._members = members
        self._carrier = carrier

    async def take(self, body: Any) -> dict[str, Any]:
        """Carry out an order; what is told of it. Raises ApiError."""
        match body:
            case {"site": str(site), **rest} if rest.keys() <= {"undo"}:
                undo = rest.get("undo", False)
                if not isinstance(undo, bool):
                    raise _refused(400, ASKED)
                return await self._drain(site, undo=undo)
            case {"worker": str(worker), **rest} if not rest:
                return await self._replace(worker)
        raise _refused(400, ASKED)

    async def _drain(self, site: str, *, undo: bool) -> dict[str, Any]:
        _check_known("site", site, self._members.sites)
        if not undo and not self._others(lambda name: site_of(name) == site):
            raise _refused(409, f"no worker of another site is up: without {site} nobody serves")
        await self._carrier.drain(site, undo=undo)
        workers = sorted(n for n, m in self._members.by_name.items() if m.site == site)
        return {"site": site, "state": self._members.site_state(site), "workers": workers}

    async def _replace(self, worker: str) -> dict[str, Any]:
        _check_known("worker", worker, self._members.by_name)
        if not self._others(lambda name: name == worker):
            raise _refused(409, f"no other worker is up: without {worker} nobody serves")
        await self._carrier.replace(worker)
        _check_known("worker", worker, self._members.by_name)  # its site may have left meanwhile
        return {"worker": worker, "state": self._members.by_name[worker].state}

    def _others(self, goes: Callable[[str], bool]) -> bool:
        """Whether somebody serves when those are away."""
        members = self._members.by_name.items()
        return any(m.state is MemberState.UP for name, m in members if not goes(name))


def _check_known(kind: str, name: str, there: Collection[str]) -> None:
    if name not in there:
        raise _refused(404, f"no {kind} {name!r}; there are {', '.join(sorted(there))}")


def _refused(status: int, message: str) -> ApiError:
    return ApiError(status, message, code="order_refused")
