"""Everything that is due at a time: per request and per leg, with what happens then."""

from collections.abc import Callable, Iterator

from orchestrator.lifecycle import handover, release
from orchestrator.lifecycle.context import Context
from orchestrator.lifecycle.ending import fail
from orchestrator.lifecycle.phases import Phase
from orchestrator.lifecycle.recover import lose_leg, retry
from orchestrator.lifecycle.request import Leg, Request
from orchestrator.state.actions import Failure
from workers.api.messages import Pause, Resync, Role

RESYNC_MOST_S = 8.0

Act = Callable[[Context, Request, float], None]
Due = tuple[float, Act]


def next_due(ctx: Context, req: Request) -> float | None:
    """When this request wants to be looked at again; None once it is over."""
    return None if req.over else min((at for at, _ in _dues(ctx, req)), default=None)


def expire(ctx: Context, req: Request, now: float) -> None:
    """Act on everything that is due at `now`; each act moves its own deadline on."""
    for at, act in list(_dues(ctx, req)):
        if at <= now and not req.over:
            act(ctx, req, now)


def _dues(ctx: Context, req: Request) -> Iterator[Due]:
    limits = ctx.config.deadlines
    yield req.arrived_at + limits.request, _request_late
    if not req.legs and req.waiting_since is not None:
        yield req.waiting_since + limits.queue, _queue_late
    if req.retry_at is not None:
        yield req.retry_at, retry
    released_at = release.due(req)
    if released_at is not None:
        yield released_at, _release_due
    for leg in req.legs.values():
        yield from _leg_dues(ctx, req, leg)


def _leg_dues(ctx: Context, req: Request, leg: Leg) -> Iterator[Due]:
    limits = ctx.config.deadlines
    if leg.role is Role.PREFILL:
        if not leg.produced:
            yield leg.opened_at + limits.prefill, _lose(leg)
            yield _resync_due(leg, leg.opened_at), _resync(leg)
        return
    if not leg.landed:
        source = req.legs.get(leg.source) if leg.source is not None else None
        if source is not None and leg.source_at is not None:
            ready = source.spoke_at if source.role is Role.PREFILL else leg.source_at
            if ready is not None:
                yield max(ready, leg.source_at) + limits.kv, _kv_late(leg)
                yield _resync_due(leg, max(ready, leg.source_at)), _resync(leg)
        return
    if not req.law.ids:
        return
    landed_at = max(leg.landed_at or 0.0, req.account.first_token_at or 0.0)
    if leg.role is Role.RELAY and leg.paused:
        if leg.paused_since is not None:
            yield leg.paused_since + limits.cut, _cut_late
            if leg.pause_at is None:
                yield _resync_due(leg, leg.paused_since), _pause_again(leg)
        return
    if leg.spoke_at is None:
        yield landed_at + limits.first_token, _lose(leg)
    elif not _waits_for_law(req, leg):
        yield max(leg.spoke_at, landed_at) + limits.silence, _lose(leg)
    yield _resync_due(leg, landed_at), _resync(leg)
    if req.phase is Phase.RACE and leg.role is Role.MAIN and leg.spoke_at is not None:
        # Evaluated by the handover step that follows every event.
        yield handover.race_ends_at(ctx, req, leg), _look


def _waits_for_law(req: Request, leg: Leg) -> bool:
    """Main in a race that is ahead of the law may rightly be silent (its own end-of-text)."""
    ahead = leg.role is Role.MAIN and not leg.accepted and leg.heard > len(req.law)
    return ahead and req.phase is Phase.RACE


def _resync_due(leg: Leg, since: float) -> float:
    silent_since = max(leg.heard_at or since, since)
    if leg.owes_since is not None:
        silent_since = min(silent_since, leg.owes_since)
    return max(silent_since, leg.resync_after) + leg.resync_wait


# ------------------------------------------------------------------ acts


def _request_late(ctx: Context, req: Request, now: float) -> None:
    fail(ctx, req, Failure.TIMED_OUT, "the request did not finish within its deadline")


def _queue_late(ctx: Context, req: Request, now: float) -> None:
    if req.law.ids:
        fail(ctx, req, Failure.UNAVAILABLE, "no worker could take the request over")
    else:
        fail(ctx, req, Failure.OVERLOADED, "no worker had room within the queue's deadline")


def _release_due(ctx: Context, req: Request, now: float) -> None:
    release.release(ctx, req, now)


def _look(ctx: Context, req: Request, now: float) -> None:
    """Nothing of its own: the steps that follow every event see that the time has come."""


def _cut_late(ctx: Context, req: Request, now: float) -> None:
    main = req.leg(Role.MAIN)
    if main is not None:
        lose_leg(ctx, req, main, exclude=True)


def _lose(leg: Leg) -> Act:
    def act(ctx: Context, req: Request, now: float) -> None:
        if leg.epoch in req.legs:
            ctx.counts[f"{leg.role.value}_late"] += 1
            lose_leg(ctx, req, leg, exclude=True)

    return act


def _kv_late(leg: Leg) -> Act:
    def act(ctx: Context, req: Request, now: float) -> None:
        if leg.epoch not in req.legs:
            return
        ctx.counts["kv_late"] += 1
        relay = req.leg(Role.RELAY)
        if leg.role is Role.MAIN and relay is not None and relay.landed:
            req.relay_finishes = True
        lose_leg(ctx, req, leg, exclude=True)

    return act


def _resync(leg: Leg) -> Act:
    def act(ctx: Context, req: Request, now: float) -> None:
        if leg.epoch in req.legs:
            ask_again(ctx, req, leg, now)

    return act


def _pause_again(leg: Leg) -> Act:
    def act(ctx: Context, req: Request, now: float) -> None:
        if leg.epoch in req.legs:
            _backoff(leg, now)
            ctx.send(leg.worker, Pause(request=req.name, epoch=leg.epoch, seq=leg.pause_seq))

    return act


def ask_again(ctx: Context, req: Request, leg: Leg, now: float) -> None:
    """A silent leg: feed it again from what it knows and ask for its run (rule 6)."""
    _backoff(leg, now)
    ctx.counts["resyncs"] += 1
    leg.owes_since = None if leg.owes_since is None else now
    if leg.role is not Role.PREFILL and leg.fed < len(req.law):
        ctx.feed(req, leg, leg.fed, now)
    # A prefill's one token is wanted even when others gave it: it says that the KV is computed.
    start = leg.base if leg.role is Role.PREFILL else len(req.law)
    ctx.send(leg.worker, Resync(request=req.name, epoch=leg.epoch, start=start))


def _backoff(leg: Leg, now: float) -> None:
    leg.resync_after = now
    leg.resync_wait = min(2 * leg.resync_wait, RESYNC_MOST_S)
