"""The end of relay decode: when main has landed, race, pace or cut."""

from orchestrator.lifecycle.context import Context
from orchestrator.lifecycle.recover import settle_phase
from orchestrator.lifecycle.request import Leg, Request
from orchestrator.policy import handoff
from orchestrator.policy.handoff import CUT, Handover
from orchestrator.state.events import AUTO
from workers.api.messages import Pause

# After the handoff the lead is given back a tenth faster than main decodes.
DRAIN_RATIO = 0.9


def end_relay(ctx: Context, req: Request, now: float) -> None:
    """In a race: ask the policy, and pause the relay when it says so."""
    relay, main = req.relay, req.main
    if relay is None or main is None or main.landed_at is None:
        return
    relay_worker = ctx.world.workers[relay.worker]
    law = len(req.law.ids)
    verdict = handoff.decide(
        Handover(
            mode=req.mode,
            main_heard=main.spoke_at is not None,
            lag=max(0, law - main.heard),
            relay_step_s=ctx.step_s(relay),
            main_step_s=ctx.step_s(main),
            rtt_s=ctx.gateway_rtt_s(main),
            lead_s=(law - req.released) * (pace_s(ctx, req) or 0.0) if law > req.released else 0.0,
            bound_s=ctx.config.handoff_bound_s,
            bound_passed=now >= race_ends_at(ctx, req, main),
            relay_overloaded=relay_worker.slots_used >= relay_worker.up.slots,
        )
    )
    if verdict is CUT:
        _cut(ctx, req, relay, now)


def race_ends_at(ctx: Context, req: Request, main: Leg) -> float:
    """When a race is cut at the latest, if main has been heard from."""
    began_at = max(main.landed_at or 0.0, req.account.first_token_at or 0.0)
    return began_at + ctx.config.handoff_bound_s


def _cut(ctx: Context, req: Request, relay: Leg, now: float) -> None:
    relay.paused, relay.paused_since = True, now
    relay.pause_seq += 1
    ctx.counts["cuts"] += 1
    ctx.send(relay.worker, Pause(request=req.name, epoch=relay.epoch, seq=relay.pause_seq))
    settle_phase(req)


def pace_s(ctx: Context, req: Request) -> float | None:
    """Seconds between two released tokens; None: release at once.

    Only auto paces: from the relay's first token on, when main is not clearly faster, and after
    the handoff until the lead is given back.
    """
    if not req.account.relay_tokens or req.over or req.mode is not AUTO:
        return None
    relay, main = req.relay, req.main
    if main is None:
        return None
    main_step_s = ctx.step_s(main)
    if relay is None:
        return None if req.lead_spent else DRAIN_RATIO * main_step_s
    relay_step_s = ctx.step_s(relay)
    if handoff.main_is_faster(relay_step_s, main_step_s):
        return None
    return handoff.pace_s(relay_step_s, main_step_s)


def wanted_lead_s(ctx: Context, req: Request) -> float:
    """The lead worth keeping: what a cut needs; nothing once main decodes."""
    relay, main = req.relay, req.main
    if relay is None or main is None:
        return 0.0
    return handoff.wanted_lead_s(ctx.step_s(relay), ctx.step_s(main), ctx.gateway_rtt_s(main))
