"""Rule 1: which tokens become law."""

from collections.abc import Sequence

from orchestrator.lifecycle.context import Context
from orchestrator.lifecycle.request import PARKED_RUNS, Leg, Request
from orchestrator.state.actions import Emit, FinishReason
from workers.api.messages import (
    MAIN,
    PREFILL,
    RELAY,
    TokenRun,
)

STOP, LENGTH = FinishReason


def take_run(ctx: Context, req: Request, leg: Leg, run: TokenRun, now: float) -> None:
    """Judge a run of a live leg, then every run that waited for its turn."""
    fed, accepted = leg.fed, leg.accepted
    end = run.index + len(run.ids)
    own = has_own(run)
    leg.heard_at = now
    leg.resync_after = 0.0
    leg.resync_wait = ctx.config.deadlines.resync
    if run.fed > fed:
        leg.fed = max(fed, min(run.fed, len(req.law.ids)))
    if run.ids and end > leg.heard:
        leg.heard = end
    if own:
        leg.spoke_at = now
        leg.clock.note(run.index, end, now)
    _judge(ctx, req, leg, run, now)
    if own and leg.role is PREFILL and len(req.law.ids) > leg.base:
        if not leg.produced:
            leg.produced = True  # from now on it only holds KV
            ctx.settle(req, leg)
        ctx.free_slot(leg)
    if req.parks:
        recheck(ctx, req, now)
    if (leg.accepted and not leg.parked) or not req.owes(leg):
        leg.owes_since = None
    elif leg.owes_since is None or (fed, accepted) != (leg.fed, leg.accepted):
        leg.owes_since = now


def take_next(ctx: Context, req: Request, index: int, token: int, hist: int, now: float) -> bool:
    """Take what `Request.sole` sampled, as `take_run` and the steps behind it would.

    False when more is to be judged: it is out of turn, may be the last one, or comes after another
    history. Then nothing was changed. The request's deadline stays as it is: with a leg that
    speaks it only moves on, and when it comes it is worked out again.
    """
    leg, law, spec = req.sole, req.law, req.spec
    end = index + 1
    if leg is None or index != len(law.ids) or end >= spec.limit or token in spec.stop_ids:
        return False
    if law.history(index) != hist:
        return False
    leg.heard_at = leg.spoke_at = now
    leg.clock.note(index, end, now)
    leg.heard = max(leg.heard, end)
    leg.sent = req.released = end
    leg.accepted += 1
    law.ids.append(token)
    ctx.actions.append(Emit(request=req.name, start=index, ids=(token,)))
    req.account.note_release(end, now)
    return True


def sole_of(req: Request) -> Leg | None:
    """Main, when it is the only leg left, owes nothing and each of its tokens is told at once."""
    main = req.main
    if main is None or not main.accepted or len(req.legs) > 1 or req.parks:
        return None
    if req.watch is not None or req.released != len(req.law.ids) or req.release_at is not None:
        return None
    if req.waiting_since is not None or main.owes_since is not None or main.resync_after:
        return None
    return main


def has_own(run: TokenRun) -> bool:
    """Whether it holds a token that the leg sampled, beyond the law that it was fed."""
    return bool(run.ids) and run.index + len(run.ids) > run.fed


def recheck(ctx: Context, req: Request, now: float) -> bool:
    """Look again at what was parked, when law or authority may have changed; True: the law grew."""
    for leg in req.legs.values():
        if leg.parked:
            break
    else:
        req.parks = False
        return False
    before = len(req.law.ids)
    moved = True
    while moved and not req.over:
        moved = False
        for leg in [leg for leg in req.legs.values() if leg.parked]:
            if min(run.index for run in leg.parked) > len(req.law.ids):
                continue  # only what does not begin in the future can be judged
            parked, leg.parked = leg.parked, []
            for run in parked:
                if leg.epoch not in req.legs or req.over:
                    break
                moved |= _judge(ctx, req, leg, run, now)
    return len(req.law.ids) > before


def _judge(ctx: Context, req: Request, leg: Leg, run: TokenRun, now: float) -> bool:
    """Accept, park or drop one run; True when the law grew."""
    law = req.law
    length = len(law.ids)
    if not run.ids:
        return False
    if run.index > length:
        _park(leg, run)
        req.parks = True
        return False
    if not length and leg.role is not PREFILL:
        ctx.counts["premature_runs"] += 1  # rule 8: prefill alone samples index 0
        return False
    if not law.agrees(run.index, run.hist, run.ids):
        _diverged(ctx, req, leg, run)
        return False
    skip = length - run.index
    if skip >= len(run.ids):
        ctx.counts["duplicate_runs"] += 1
        return False
    authority = None if leg.role is MAIN else req.authority  # nobody ranks higher
    if authority is not None and leg.rank < authority.rank:
        _park(leg, run)
        req.parks = True
        return False
    _accept(ctx, req, leg, run, skip, now)
    return True


def _park(leg: Leg, run: TokenRun) -> None:
    leg.parked.append(run)
    if len(leg.parked) > PARKED_RUNS:
        del leg.parked[0]


def _diverged(ctx: Context, req: Request, leg: Leg, run: TokenRun) -> None:
    """The leg sampled after another history: it must hear the law again."""
    ctx.counts["diverged_runs"] += 1
    leg.heard = min(leg.heard, max(run.index, leg.fed))
    if leg.deaf:
        leg.sent = leg.fed


def _accept(ctx: Context, req: Request, leg: Leg, run: TokenRun, skip: int, now: float) -> None:
    ids = run.ids[skip:]
    start = len(req.law.ids)
    keep, reason = _ending(req, ids, start)
    ids = ids[:keep]
    logprobs = None if run.logprobs is None else run.logprobs[skip : skip + keep]
    margins = None if run.margins is None else run.margins[skip : skip + keep]
    first = not leg.accepted
    if first:
        leg.first_at, leg.first_index = now, start
    req.law.extend(ids, logprobs, margins)
    leg.accepted += len(ids)
    _account(req, leg, start, len(ids), now)
    if start == 0:
        req.account.cached_tokens = run.cached
    if leg.role is not PREFILL:
        # It knows its own tokens, and by their history those before them.
        leg.sent = start + len(ids)
    if first and leg.role is MAIN:
        # Rule 2: main is the authority now; every other leg ends, prefill's hold included.
        for other in [o for o in req.legs.values() if o is not leg]:
            ctx.stop_leg(req, other)
    if reason is not None:
        req.end(reason)


def _account(req: Request, leg: Leg, start: int, count: int, now: float) -> None:
    account = req.account
    req.waiting_since = None
    if start == 0:
        account.first_token_at = now
    if leg.role is RELAY:
        account.relay_tokens += count
        account.relay_first_at = now if account.relay_first_at is None else account.relay_first_at
        account.relay_last_at = now
    if leg.role is MAIN and account.handoff_index is None and account.relay_tokens:
        account.handoff_index = start


def _ending(req: Request, ids: Sequence[int], base: int) -> tuple[int, FinishReason | None]:
    """How many of `ids`, from index `base` on, become law; and whether the request ends so."""
    spec = req.spec
    keep = min(len(ids), spec.limit - base)
    reason = LENGTH if base + keep >= spec.limit else None
    if spec.stop_ids:
        for i in range(keep):
            if ids[i] in spec.stop_ids and base + i >= spec.min_tokens:
                keep, reason = i + 1, FinishReason.STOP
                break
    if req.watch is not None:
        complete = req.watch.push(ids[:keep])
        if complete is not None and complete - base <= keep:
            keep, reason = complete - base, FinishReason.STOP
    return keep, reason
