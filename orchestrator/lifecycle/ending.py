"""How a request ends: every leg is stopped, the client is told, the account is closed."""

from itertools import pairwise

from orchestrator.lifecycle.context import Context
from orchestrator.lifecycle.request import NEAR_HANDOFF, Request
from orchestrator.state.actions import Fail, Failure, Finish, Summary
from orchestrator.state.events import Route

RETRY_AFTER_S = {Failure.OVERLOADED: 1.0, Failure.UNAVAILABLE: 5.0}


def stop_all(ctx: Context, req: Request) -> None:
    """End every live leg."""
    for leg in tuple(req.legs.values()):
        ctx.stop_leg(req, leg)


def finish(ctx: Context, req: Request) -> None:
    """The law is complete and was emitted: close the client's stream."""
    assert req.ended is not None
    note_steps(req)
    note_answer(ctx, req)
    stop_all(ctx, req)
    ctx.actions.append(
        Finish(
            request=req.name,
            reason=req.ended,
            stop=req.watch.matched if req.watch is not None else None,
            summary=summarise(req),
        )
    )


def fail(ctx: Context, req: Request, failure: Failure, message: str) -> None:
    """Give up: nothing is accepted any more. The client is told after the tokens it is owed."""
    stop_all(ctx, req)
    req.fail(failure, message)
    ctx.counts[f"failed_{failure.value}"] += 1


def tell_failure(ctx: Context, req: Request) -> None:
    """Every accepted token was emitted: tell the client why there are no more."""
    assert req.failed is not None
    failure, message = req.failed
    ctx.actions.append(
        Fail(
            request=req.name,
            failure=failure,
            message=message,
            retry_after_s=RETRY_AFTER_S.get(failure),
        )
    )


def note_answer(ctx: Context, req: Request) -> None:
    """Who brought the last token has the answer's KV too: a next turn begins with all of it."""
    leg = req.authority
    if leg is not None:
        # The last token was sampled and never computed.
        spec, answer = req.spec, req.law.ids[:-1]
        names = ctx.prefixes.names
        answered = names.of_answered(spec.prompt_ids, answer, spec.cache_salt, req.prefix)
        ctx.prefixes.note(leg.worker, answered)


def note_steps(req: Request) -> None:
    """Keep the decode speeds of the live legs for the account, before they are stopped."""
    relay, main = req.relay, req.main
    if relay is not None:
        req.account.relay_step_s = relay.clock.step_s or req.account.relay_step_s
    if main is not None:
        req.account.main_step_s = main.clock.step_s or req.account.main_step_s


def summarise(req: Request) -> Summary:
    """The request's account as the client and the metrics see it."""
    a, d = req.account, req.decision
    routed_at = a.routed_at if a.routed_at is not None else req.arrived_at
    first, landed = a.first_token_at, a.landed_at
    return Summary(
        route=d.route if d is not None else Route.LOCAL,
        handoff=req.mode if a.relay_tokens else None,
        handoff_index=a.handoff_index,
        relay_tokens=a.relay_tokens,
        prompt_tokens=req.prompt,
        cached_tokens=a.cached_tokens,
        completion_tokens=len(req.law.ids),
        queue_s=routed_at - req.arrived_at,
        prefill_s=None if first is None else first - routed_at,
        kv_transfer_s=None if landed is None or first is None else max(0.0, landed - first),
        relay_s=None if a.relay_first_at is None else (a.relay_last_at or 0.0) - a.relay_first_at,
        handoff_gap_s=handoff_gap_s(req),
        kv_bytes_raw=a.kv_bytes_raw,
        kv_bytes_wire=a.kv_bytes_wire,
        recoveries=a.recoveries,
        sites=dict(a.workers),
    )


def handoff_gap_s(req: Request) -> float | None:
    """Longest wait between releases near main's first token, minus the slower engine's step."""
    index = req.account.handoff_index
    if index is None:
        return None
    near = [at for end, at in req.account.releases if end > index - NEAR_HANDOFF]
    waits = [later - earlier for earlier, later in pairwise(near)]
    slower = max(req.account.relay_step_s or 0.0, req.account.main_step_s or 0.0)
    return max(0.0, max(waits, default=0.0) - slower)
