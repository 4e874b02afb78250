"""What a live leg's message does to its request."""

from collections.abc import Callable
from typing import Any

from orchestrator.lifecycle.accept import has_own, take_run
from orchestrator.lifecycle.context import Context
from orchestrator.lifecycle.ending import fail
from orchestrator.lifecycle.request import Leg, Request
from orchestrator.state.actions import Failure
from workers.api.messages import (
    MAIN,
    PREFILL,
    Cause,
    KVFailed,
    KVStats,
    Landed,
    Paused,
    Refused,
    TokenRun,
)

LegMessage = TokenRun | Landed | Paused | Refused | KVFailed | KVStats

# Refusals that no other worker would think better of, and what they are to the client.
_HOPELESS = {Cause.SENSELESS: Failure.TOO_LONG, Cause.GRAMMAR: Failure.GRAMMAR}


def _token_run(ctx: Context, req: Request, leg: Leg, run: TokenRun, now: float) -> None:
    if leg.role is not PREFILL:
        if leg.landed_at is None and has_own(run):
            # It cannot sample without its KV: the word that it landed is late or lost.
            _has_landed(ctx, req, leg, now)
        take_run(ctx, req, leg, run, now)
        return
    before = len(req.law.ids)
    take_run(ctx, req, leg, run, now)
    if before == leg.base and len(req.law.ids) > before:
        ctx.prefixes.note(leg.worker, req.prefix)


def _landed(ctx: Context, req: Request, leg: Leg, message: Landed, now: float) -> None:
    if not leg.landed:
        _has_landed(ctx, req, leg, now)


def _has_landed(ctx: Context, req: Request, leg: Leg, now: float) -> None:
    leg.landed_at = now
    ctx.unqueue(leg)
    ctx.settle(req, leg)
    if not leg.gone:  # what lacks tokens is nobody's prefix
        ctx.prefixes.note(leg.worker, req.prefix)
    if leg.role is not MAIN:
        return
    if req.account.landed_at is None:
        req.account.landed_at = now
    relay = req.relay
    if relay is not None and not relay.landed and not relay.accepted:
        ctx.stop_leg(req, relay)  # rule 11: it would hide nothing any more


def _paused(ctx: Context, req: Request, leg: Leg, message: Paused, now: float) -> None:
    if not leg.paused or message.seq != leg.pause_seq:
        ctx.counts["stale_messages"] += 1
        return
    leg.pause_at = message.at
    ctx.free_slot(leg)


def _refused(ctx: Context, req: Request, leg: Leg, message: Refused, now: float) -> None:
    ctx.counts["refused"] += 1
    req.excluded.add(leg.worker)
    req.refused = True
    ctx.stop_leg(req, leg)
    view = ctx.world.workers.get(leg.worker)
    if view is not None and message.cause is Cause.BUSY:
        view.refused()
    hopeless = _HOPELESS.get(message.cause)
    if hopeless is not None:
        fail(ctx, req, hopeless, message.reason)


def _kv_failed(ctx: Context, req: Request, leg: Leg, message: KVFailed, now: float) -> None:
    if leg.source != message.source or leg.landed:
        ctx.counts["stale_messages"] += 1
        return
    ctx.counts["kv_failed"] += 1
    req.failed_sources.add(message.source)
    ctx.unqueue(leg)
    leg.source = None


def _kv_stats(ctx: Context, req: Request, leg: Leg, message: KVStats, now: float) -> None:
    source = req.legs.get(leg.source) if leg.source is not None else None
    link = None if source is None else ctx.world.link(source.site, leg.site)
    if link is not None:
        link.coded(message.bytes_raw, message.bytes_wire)
    if leg.role is MAIN:
        req.account.kv_bytes_raw += message.bytes_raw
        req.account.kv_bytes_wire += message.bytes_wire


SPOKEN: dict[type[Any], Callable[[Context, Request, Leg, Any, float], None]] = {
    TokenRun: _token_run,
    Landed: _landed,
    Paused: _paused,
    Refused: _refused,
    KVFailed: _kv_failed,
    KVStats: _kv_stats,
}
