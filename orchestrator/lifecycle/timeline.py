"""What has happened to a request so far, leg by leg: for people, metrics and traces."""

from dataclasses import dataclass

from orchestrator.lifecycle.ending import summarise
from orchestrator.lifecycle.phases import Phase
from orchestrator.lifecycle.request import Leg, Request
from orchestrator.state.actions import Summary
from orchestrator.state.events import Route
from workers.api.messages import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class LegTimes:
    """One leg. Gateway clock, seconds; None: not (yet).

    `kv_from`: the site that sends its KV, from `kv_at` on; a prefill leg has none. Its accepted
    tokens are `tokens` many from `first_index` on.
    """

    role: Role
    worker: str
    site: str
    opened_at: float
    kv_from: str | None
    kv_at: float | None
    landed_at: float | None
    first_at: float | None
    first_index: int | None
    tokens: int
    last_at: float | None  # its newest token
    ended_at: float | None
    lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A request up to `now`, its legs in the order in which they began. `route` None: none yet."""

    request: str
    phase: Phase
    route: Route | None
    arrived_at: float
    routed_at: float | None
    first_token_at: float | None
    now: float
    legs: tuple[LegTimes, ...]
    summary: Summary


def timeline(req: Request, now: float) -> Timeline:
    """Also of a request that has ended, however that was."""
    legs = sorted((*req.past, *req.legs.values()), key=lambda leg: leg.epoch)
    return Timeline(
        request=req.name,
        phase=req.joint_phase(),
        route=None if req.decision is None else req.decision.route,
        arrived_at=req.arrived_at,
        routed_at=req.account.routed_at,
        first_token_at=req.account.first_token_at,
        now=now,
        legs=tuple(map(_times, legs)),
        summary=summarise(req),
    )


def _times(leg: Leg) -> LegTimes:
    return LegTimes(
        role=leg.role,
        worker=leg.worker,
        site=leg.site,
        opened_at=leg.opened_at,
        kv_from=leg.source_site,
        kv_at=leg.source_at,
        landed_at=leg.landed_at,
        first_at=leg.first_at,
        first_index=leg.first_index,
        tokens=leg.accepted,
        last_at=leg.spoke_at if leg.accepted else None,
        ended_at=leg.ended_at,
        lost=leg.lost,
    )
