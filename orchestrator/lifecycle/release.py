"""Releasing accepted tokens to the client: at once, or paced while a lead is built."""

from math import ceil
from typing import TypeVar

from orchestrator.lifecycle.context import Context
from orchestrator.lifecycle.handover import pace_s, wanted_lead_s
from orchestrator.lifecycle.request import Request
from orchestrator.state.actions import Emit

# Beyond the lead a cut needs this many tokens more are kept, against jitter.
SPARE_TOKENS = 2

T = TypeVar("T")


def release(ctx: Context, req: Request, now: float) -> None:
    """Emit what is due and note when the next token is."""
    law = len(req.law.ids)
    if req.released == law:
        return
    pace = pace_s(ctx, req) if req.account.relay_tokens else None
    if pace is None:
        _emit(ctx, req, law, now)
        req.release_at = None
        return
    upto = req.released
    if req.relay is not None:
        # More lead than a cut needs would only delay the client.
        keep = ceil(wanted_lead_s(ctx, req) / pace) + SPARE_TOKENS
        upto = max(upto, law - keep)
    due_at = now if req.release_at is None else req.release_at
    if due_at <= now or upto > req.released:
        _emit(ctx, req, max(upto, req.released + 1), now)
        # From its own time, not from now, so that a late tick does not add up; but from now when
        # it is late by more than a token, or when the lead was too long and this one came early.
        on_time = now - pace < due_at <= now
        req.release_at = (due_at if on_time else now) + pace
    req.lead_spent = req.relay is None and req.released == law


def _emit(ctx: Context, req: Request, upto: int, now: float) -> None:
    start, law = req.released, req.law
    ctx.actions.append(
        Emit(
            request=req.name,
            start=start,
            ids=tuple(law.ids[start:upto]),
            logprobs=_all_or_none(law.logprobs, start, upto) if law.logprobs else None,
            margins=_all_or_none(law.margins, start, upto) if law.margins else None,
        )
    )
    req.released = upto
    req.account.note_release(upto, now)


def _all_or_none(values: dict[int, T], start: int, stop: int) -> tuple[T, ...] | None:
    """One per token, or none at all: the client must not see them shifted."""
    if not all(index in values for index in range(start, stop)):
        return None
    return tuple(values[index] for index in range(start, stop))
