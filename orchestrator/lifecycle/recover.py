"""Placing and replacing legs: what a request lacks is looked for after every event (rule 7)."""

from collections.abc import Callable

from orchestrator.lifecycle.context import Context
from orchestrator.lifecycle.ending import fail, stop_all
from orchestrator.lifecycle.phases import MOVES, IllegalMove, Phase
from orchestrator.lifecycle.request import Leg, Request
from orchestrator.policy import router
from orchestrator.policy.router import Ask, Refusal
from orchestrator.state.actions import Failure
from orchestrator.state.events import Route
from workers.api.messages import (
    MAIN,
    PREFILL,
    RELAY,
    Resume,
)

RETRY_S = 0.5
# Each round one rule acts; more rounds than this would mean two rules undo each other.
ROUNDS = 24
# A new relay pays when main's KV is still this far away.
RELAY_WORTH_S = 0.5

Rule = Callable[[Context, Request, float], bool]


def reconcile(ctx: Context, req: Request, now: float) -> None:
    """Apply the phase's duties until none has anything to do."""
    for _ in range(ROUNDS):
        if req.joint_phase() is not req.phase:
            settle_phase(req)
        for rule in DUTIES[req.phase]:
            if rule(ctx, req, now):
                break
        else:
            return
    raise RuntimeError(f"request {req.name}: recovery does not settle in phase {req.phase}")


def settle_phase(req: Request) -> None:
    """Move to the phase that both tracks now say. Raises IllegalMove and stays otherwise."""
    new = req.joint_phase()
    if new is req.phase:
        return
    if new not in MOVES[req.phase]:
        raise IllegalMove(req.name, req.phase, new)
    req.phase = new


def find_place(ctx: Context, req: Request, now: float) -> Refusal | None:
    """Choose route and workers for prompt + law, and start the legs.

    Roles limit placement until something has failed: a leg of this request, or a whole pool.
    Restarts are counted, so that a request which loses all it has again and again ends. Those
    after a refusal are free: what ends the wait for a full deployment is the queue's deadline.
    """
    again = req.account.routed_at is not None
    refusal = _try_route(ctx, req, now, any_role=False)
    failed = bool(req.law.ids or req.account.recoveries)
    pool_dead = refusal is Refusal.NOBODY and not req.excluded
    if refusal is not None and (failed or pool_dead):
        refusal = _try_route(ctx, req, now, any_role=True)
    if refusal is None and again:
        ctx.counts["started_again"] += 1
        req.restarts += not req.refused
    if refusal is None and not req.refused:
        req.waiting_since = None
    return refusal


def _try_route(ctx: Context, req: Request, now: float, *, any_role: bool) -> Refusal | None:
    tokens = req.prompt + len(req.law.ids)
    hits = ctx.prefixes.hits(req.prefix, ctx.world.workers)
    ask = Ask(
        tokens=tokens,
        remaining=req.remaining,
        hits=hits,
        loads=ctx.prefixes.loads(req.prefix, hits),
        forced=req.spec.route or ctx.config.route,
        excluded=frozenset(req.excluded),
        any_role=any_role,
        kv_limit_s=ctx.config.deadlines.kv,
    )
    found = router.choose(ask, ctx.world)
    if isinstance(found, Refusal):
        return found
    req.decision = found
    req.retry_at = None
    account = req.account
    account.routed_at = now if account.routed_at is None else account.routed_at
    prefill = ctx.open_leg(
        req, PREFILL, found.prefill, now, source=None, reserve=ctx.reserve(req, PREFILL)
    )
    if req.remaining > 1:
        for role, worker in ((RELAY, found.relay), (MAIN, found.main)):
            if worker is not None:
                reserve = ctx.reserve(req, role)
                ctx.open_leg(req, role, worker, now, source=prefill, reserve=reserve)
    return None


def lose_leg(ctx: Context, req: Request, leg: Leg, *, exclude: bool) -> None:
    """A leg has failed: it is charged to its role and replaced by the duties."""
    leg.lost = True
    req.lost[leg.role] += 1
    req.refused = False
    req.retry_at = None  # all that is missing is looked at anew
    req.account.recoveries += 1
    ctx.counts[f"{leg.role.value}_lost"] += 1
    if exclude:
        req.excluded.add(leg.worker)
    ctx.stop_leg(req, leg)


def start_again(ctx: Context, req: Request, now: float) -> None:
    """Prefill prompt + law anew, with every other leg that the route needs.

    When no worker has room now the request waits and looks again.
    """
    stop_all(ctx, req)
    if req.restarts >= ctx.config.attempts.restarts:
        fail(ctx, req, Failure.UNAVAILABLE, "every attempt to serve the request has failed")
        return
    if find_place(ctx, req, now) is None:
        return
    if not req.law.ids:
        req.decision = None  # back to the queue; nothing was promised yet
    req.waiting_since = now if req.waiting_since is None else req.waiting_since
    req.retry_at = now + RETRY_S


def retry(ctx: Context, req: Request, now: float) -> None:
    """Look again for what could not be placed; who refused or failed may do better by now."""
    req.retry_at = None
    req.excluded.clear()
    if not req.legs:
        start_again(ctx, req, now)


# ------------------------------------------------------------------ duties


def need_prefill(ctx: Context, req: Request, now: float) -> bool:
    """Before token 0 everything hangs on the prefill leg: without it, start again."""
    if req.prefill is not None or req.retry_at is not None:
        return False
    start_again(ctx, req, now)
    return True


def need_producer(ctx: Context, req: Request, now: float) -> bool:
    """Nobody decodes and nobody will: prefill prompt + law."""
    if req.retry_at is not None:
        return False
    prefill, main = req.prefill, req.main
    if prefill is not None and not prefill.produced:
        return False
    if main is not None and (main.landed or main.source is not None):
        return False
    if main is None and prefill is not None:
        return False  # need_main takes it from here
    start_again(ctx, req, now)
    return True


def need_main(ctx: Context, req: Request, now: float) -> bool:
    """A main leg is missing: from the held KV, else from the relay's, else prefill again.

    While the relay decodes there is time to look for a main again and again. Once main's attempts
    are spent, or its KV can come from nowhere, the relay finishes.
    """
    if req.main is not None or req.relay_finishes or req.retry_at is not None:
        return False
    prefill, relay = req.prefill, req.relay
    if req.remaining <= 1 and prefill is not None and not prefill.produced:
        return False  # the prefill's token is the last one
    source = _source_for(req, None)
    worker = None
    if source is not None and _main_attempts_left(ctx, req):
        worker = router.place(
            MAIN,
            ctx.reserve(req, MAIN),
            ctx.world,
            context=_longest(req),
            near=source.site,
            hits=ctx.prefixes.hits(req.prefix, ctx.world.workers),
            excluded=frozenset(req.excluded),
            any_role=bool(req.account.recoveries) or (bool(req.law.ids) and relay is None),
        )
    if worker is not None:
        reserve = ctx.reserve(req, MAIN)
        ctx.open_leg(req, MAIN, worker, now, source=source, reserve=reserve)
        return True
    if relay is None or not (relay.landed or relay.source is not None):
        start_again(ctx, req, now)
        return True
    if source is not None and _main_attempts_left(ctx, req):
        req.retry_at = now + RETRY_S
        return False
    ctx.counts["relay_finishes"] += 1
    req.relay_finishes = True
    return True


def need_source(ctx: Context, req: Request, now: float) -> bool:
    """A leg waits for KV that nobody sends: another source, uncharged."""
    for leg in req.legs.values():
        if leg.source is not None or leg.role is PREFILL or leg.landed:
            continue
        source = _source_for(req, leg)
        if source is not None:
            ctx.connect(req, source, leg, now)
            return True
        ctx.stop_leg(req, leg)  # nothing can reach it; uncharged
        return True
    return False


def free_hold(ctx: Context, req: Request, now: float) -> bool:
    """Nobody will need the prefill's KV any more: the relay has it and brings the request home."""
    prefill, relay = req.prefill, req.relay
    if not req.relay_finishes or prefill is None or not prefill.produced:
        return False
    if relay is None or not relay.landed:
        return False
    ctx.stop_leg(req, prefill)
    return True


def need_relay(ctx: Context, req: Request, now: float) -> bool:
    """The relay is missing while main's KV is still far: another one beside the prefill."""
    prefill, main = req.prefill, req.main
    if (
        req.decision is None
        or req.decision.route is not Route.RELAY
        or req.relay is not None
        or prefill is None
        or main is None
        or main.landed
        or prefill.epoch in req.failed_sources
        or req.lost[RELAY] >= ctx.config.attempts.relay
        or _landing_s(ctx, req, main, now) < RELAY_WORTH_S
    ):
        return False
    reserve = ctx.reserve(req, RELAY)
    worker = router.place(
        RELAY,
        reserve,
        ctx.world,
        context=_longest(req),
        near=prefill.site,
        hits={},
        excluded=frozenset(req.excluded),
        any_role=req.lost[RELAY] > 0,
    )
    if worker is None or ctx.world.workers[worker].site != prefill.site:
        return False
    ctx.open_leg(req, RELAY, worker, now, source=prefill, reserve=reserve)
    return True


def resume_relay(ctx: Context, req: Request, now: float) -> bool:
    """A paused relay whose main is gone takes up decoding again (rule 5)."""
    relay, main = req.relay, req.main
    if relay is None or not relay.paused or (main is not None and main.landed):
        return False
    relay.paused, relay.paused_since, relay.pause_at = False, None, None
    relay.pause_seq += 1
    relay.spoke_at = now  # its silence was wanted
    ctx.counts["resumed"] += 1
    ctx.take_slot(relay)
    ctx.send(relay.worker, Resume(request=req.name, epoch=relay.epoch, seq=relay.pause_seq))
    return True


def _longest(req: Request) -> int:
    """Tokens the sequence can have in the end."""
    return req.prompt + req.limit


def _main_attempts_left(ctx: Context, req: Request) -> bool:
    return req.lost[MAIN] < ctx.config.attempts.main


def _source_for(req: Request, target: Leg | None) -> Leg | None:
    """The best live leg that can send its KV to `target`, or to a new leg: prefill, then relay.

    Legs of one start know the same law or more, so either has all that the target lacks.
    """
    prefill, relay = req.prefill, req.relay
    copies = [prefill, relay if relay is not target and relay and relay.landed else None]
    for leg in copies:
        if leg is not None and leg.epoch not in req.failed_sources:
            return leg
    return None


def _landing_s(ctx: Context, req: Request, main: Leg, now: float) -> float:
    """Seconds until main's KV will have landed, by the link's books."""
    source = req.legs.get(main.source) if main.source is not None else None
    if source is None:
        return 0.0
    link = ctx.world.link(source.site, main.site)
    if link is None or main.source_at is None:
        return 0.0
    transfer = link.queued.get((req.name, main.epoch))
    nbytes = 0.0 if transfer is None else link.wire_bytes(transfer.nbytes)
    return nbytes / link.goodput_bytes_per_s(now) - (now - main.source_at) + link.rtt_s(now) / 2


DUTIES: dict[Phase, tuple[Rule, ...]] = {
    Phase.QUEUED: (),
    Phase.PREFILL: (need_prefill, need_source, need_main, need_relay),
    Phase.RELAY: (resume_relay, need_source, need_main, free_hold),
    Phase.RACE: (),
    Phase.CUT: (),
    Phase.MAIN_WAIT: (need_source, need_producer, need_main, need_relay),
    Phase.MAIN: (),
    Phase.DONE: (),
}
