"""What is written into outcomes as requests go their way: hits, bytes, and the stages of a few."""

from orchestrator.replay.leg import ModelLeg
from orchestrator.replay.lines.line import Transfer
from orchestrator.replay.outcome import Outcome, Span, Stage
from orchestrator.state.actions import Finish
from workers.api.messages import Role


def write_prefill(outcome: Outcome, leg: ModelLeg, where: str, now: float) -> None:
    """A prefill leg has its token."""
    outcome.prefill_hit = leg.hit
    outcome.from_memory, outcome.from_files = leg.from_memory, leg.from_files
    if outcome.spans is not None:
        began_at = leg.began_at or 0.0
        outcome.spans += [
            Span(Stage.QUEUED, where, outcome.asked_at, began_at),
            Span(Stage.PREFILL, where, began_at, now),
        ]


def write_transfer(outcome: Outcome, transfer: Transfer, now: float) -> None:
    """All KV of a transfer is there."""
    if outcome.spans is not None and transfer.began_at is not None:
        where = f"to {transfer.to_worker}"
        outcome.spans.append(Span(Stage.TRANSFER, where, transfer.began_at, now))


def write_end(outcome: Outcome, end: Finish) -> None:
    """The end of a request: who decoded when, as the client saw it."""
    spans, summary = outcome.spans, end.summary
    first, last = outcome.first_at, outcome.last_at
    if spans is None or first is None or last is None or outcome.tokens < 2:
        return
    main, handed_at = summary.sites.get(Role.MAIN, ""), first
    if summary.relay_s is not None and outcome.second_at is not None:
        relay = summary.sites.get(Role.RELAY, "")
        handed_at = min(last, outcome.second_at + summary.relay_s)
        spans.append(Span(Stage.RELAY, relay, outcome.second_at, handed_at))
        if summary.handoff_gap_s is not None:
            over_at = min(last, handed_at + summary.handoff_gap_s)
            spans.append(Span(Stage.HANDOFF, main, handed_at, over_at))
            handed_at = over_at
    if handed_at < last:
        spans.append(Span(Stage.MAIN, main, handed_at, last))
