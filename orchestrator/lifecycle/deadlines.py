"""Everything that is due at a time: per request and per leg, with what happens then."""

from collections.abc import Callable
from math import inf

from orchestrator.lifecycle import handover, release
from orchestrator.lifecycle.context import Context
from orchestrator.lifecycle.ending import fail
from orchestrator.lifecycle.phases import RACE
from orchestrator.lifecycle.recover import lose_leg, retry
from orchestrator.lifecycle.request import Leg, Request
from orchestrator.state.actions import Failure
from workers.api.messages import (
    MAIN,
    PREFILL,
    RELAY,
    Pause,
    Resync,
)

RESYNC_MOST_S = 8.0

RequestAct = Callable[[Context, Request, float], None]
LegAct = Callable[[Context, Request, Leg, float], None]
# Of a leg: when it is too late and what is done about it, when to ask it and how.
LegDues = tuple[float, LegAct, float, LegAct]


def next_due(ctx: Context, req: Request) -> float:
    """When a request that is not over wants to be looked at again."""
    soonest = inf
    for at, _ in _request_dues(ctx, req):
        if at < soonest:
            soonest = at
    for leg in req.legs.values():
        if leg.produced:
            continue  # a prefill that holds its KV, and nothing is due of it
        late_at, _, ask_at, _ = _leg_dues(ctx, req, leg)
        if late_at < soonest:
            soonest = late_at
        if ask_at < soonest:
            soonest = ask_at
    return soonest


def expire(ctx: Context, req: Request, now: float) -> None:
    """Act on everything that is due at `now`; each act moves its own deadline on."""
    request_dues = _request_dues(ctx, req)
    leg_dues = [(leg, _leg_dues(ctx, req, leg)) for leg in req.legs.values()]
    for at, act in request_dues:
        if at <= now and not req.over:
            act(ctx, req, now)
    for leg, (late_at, late, ask_at, ask) in leg_dues:
        if late_at <= now and leg.epoch in req.legs and not req.over:
            late(ctx, req, leg, now)
        if ask_at <= now and leg.epoch in req.legs and not req.over:
            ask(ctx, req, leg, now)


def _request_dues(ctx: Context, req: Request) -> list[tuple[float, RequestAct]]:
    limits = ctx.config.deadlines
    dues: list[tuple[float, RequestAct]] = [(req.arrived_at + limits.request, _request_late)]
    if req.waiting_since is not None and not req.legs:
        dues.append((req.waiting_since + limits.queue, _queue_late))
    if req.retry_at is not None:
        dues.append((req.retry_at, retry))
    if req.release_at is not None and req.released < len(req.law.ids):
        dues.append((req.release_at, release.release))
    if req.phase is RACE and req.main is not None and req.main.spoke_at is not None:
        # Evaluated by the handover step that follows every event.
        dues.append((handover.race_ends_at(ctx, req, req.main), _look))
    return dues


def _leg_dues(ctx: Context, req: Request, leg: Leg) -> LegDues:
    limits = ctx.config.deadlines
    if leg.role is PREFILL:
        if leg.produced:
            return NOTHING_DUE
        opened_at = leg.opened_at
        return opened_at + limits.prefill, _lose, _resync_due(leg, opened_at), ask_again
    if leg.landed_at is None:
        moving_since = _moving_since(req, leg)
        if moving_since is None:
            return NOTHING_DUE
        return moving_since + limits.kv, _kv_late, _resync_due(leg, moving_since), ask_again
    if leg.paused and leg.role is RELAY:
        return _paused_dues(ctx, leg)
    first_at = req.account.first_token_at
    if first_at is None:
        return NOTHING_DUE
    since = first_at if first_at > leg.landed_at else leg.landed_at
    if leg.spoke_at is None:
        late_at = since + limits.first_token
    elif _waits_for_law(req, leg):
        late_at = inf
    else:
        late_at = max(leg.spoke_at, since) + limits.silence
    return late_at, _lose, _resync_due(leg, since), ask_again


def _paused_dues(ctx: Context, relay: Leg) -> LegDues:
    since = relay.paused_since
    if since is None:
        return NOTHING_DUE
    ask_at = _resync_due(relay, since) if relay.pause_at is None else inf
    return since + ctx.config.deadlines.cut, _cut_late, ask_at, _pause_again


def _moving_since(req: Request, leg: Leg) -> float | None:
    """When the KV a leg waits for could begin to move; None: nobody sends it, or not yet."""
    source = req.legs.get(leg.source) if leg.source is not None else None
    if source is None or leg.source_at is None:
        return None
    ready = source.spoke_at if source.role is PREFILL else leg.source_at
    return None if ready is None else max(ready, leg.source_at)


def _waits_for_law(req: Request, leg: Leg) -> bool:
    """Main in a race that is ahead of the law may rightly be silent (its own end-of-text)."""
    ahead = req.phase is RACE and leg.role is MAIN and not leg.accepted
    return ahead and leg.heard > len(req.law.ids)


def _resync_due(leg: Leg, since: float) -> float:
    """When to ask a leg that may speak since then: conditions, as this is worked out so often."""
    if leg.heard_at is not None and leg.heard_at > since:
        since = leg.heard_at
    if leg.owes_since is not None and leg.owes_since < since:
        since = leg.owes_since
    if leg.resync_after > since:
        since = leg.resync_after
    return since + leg.resync_wait


# ------------------------------------------------------------------ acts


def _request_late(ctx: Context, req: Request, now: float) -> None:
    fail(ctx, req, Failure.TIMED_OUT, "the request did not finish within its deadline")


def _queue_late(ctx: Context, req: Request, now: float) -> None:
    if req.law.ids:
        fail(ctx, req, Failure.UNAVAILABLE, "no worker could take the request over")
    else:
        fail(ctx, req, Failure.OVERLOADED, "no worker had room within the queue's deadline")


def _look(ctx: Context, req: Request, now: float) -> None:
    """Nothing of its own: the steps that follow every event see that the time has come."""


def _cut_late(ctx: Context, req: Request, relay: Leg, now: float) -> None:
    main = req.main
    if main is not None:
        lose_leg(ctx, req, main, exclude=True)


def _lose(ctx: Context, req: Request, leg: Leg, now: float) -> None:
    ctx.counts[f"{leg.role.value}_late"] += 1
    lose_leg(ctx, req, leg, exclude=True)


def _kv_late(ctx: Context, req: Request, leg: Leg, now: float) -> None:
    ctx.counts["kv_late"] += 1
    relay = req.relay
    if leg.role is MAIN and relay is not None and relay.landed:
        req.relay_finishes = True
    lose_leg(ctx, req, leg, exclude=True)


def _pause_again(ctx: Context, req: Request, relay: Leg, now: float) -> None:
    _backoff(relay, now)
    ctx.send(relay.worker, Pause(request=req.name, epoch=relay.epoch, seq=relay.pause_seq))


def ask_again(ctx: Context, req: Request, leg: Leg, now: float) -> None:
    """A silent leg: feed it again from what it knows and ask for its run (rule 6)."""
    _backoff(leg, now)
    ctx.counts["resyncs"] += 1
    leg.owes_since = None if leg.owes_since is None else now
    if leg.role is not PREFILL and leg.fed < len(req.law.ids):
        ctx.feed(req, leg, leg.fed, now)
    # A prefill's one token is wanted even when others gave it: it says that the KV is computed.
    start = leg.base if leg.role is PREFILL else len(req.law.ids)
    ctx.send(leg.worker, Resync(request=req.name, epoch=leg.epoch, start=start))


def _backoff(leg: Leg, now: float) -> None:
    leg.resync_after = now
    leg.resync_wait = min(2 * leg.resync_wait, RESYNC_MOST_S)


NOTHING_DUE: LegDues = (inf, _lose, inf, ask_again)
