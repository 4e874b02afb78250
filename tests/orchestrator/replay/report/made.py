"""Runs made by hand, for the reports: what a driver could have given, in a few lines."""

from orchestrator.replay.outcome import Outcome, Span, Stage, Use
from orchestrator.replay.report.metrics import Run
from orchestrator.state.actions import Finish, FinishReason, Summary
from orchestrator.state.events import Route

WAITS_S = {"local": 0.03, "direct": 0.8, "relay": 0.06, "auto": 0.1}  # first to second token


def finished(name: str = "r", relay_tokens: int = 0) -> Finish:
    summary = Summary(
        route=Route.RELAY if relay_tokens else Route.DIRECT,
        handoff=None,
        handoff_index=None,
        relay_tokens=relay_tokens,
        prompt_tokens=100,
        cached_tokens=0,
        completion_tokens=11,
        queue_s=0.0,
        prefill_s=None,
        kv_transfer_s=None,
        relay_s=None,
        handoff_gap_s=None,
        kv_bytes_raw=0,
        kv_bytes_wire=0,
        recoveries=0,
        sites={},
    )
    return Finish(request=name, reason=FinishReason.LENGTH, stop=None, summary=summary)


def run(policy: str, requests: int = 40, *, cost: float | None = 3.0, site: str = "hami") -> Run:
    """Requests a second apart, the later the slower; the stages of each tenth are written down."""
    wait_s = WAITS_S.get(policy, 0.3)
    return Run(
        policy=policy,
        outcomes=[_outcome(n, wait_s * (1 + n / requests), policy, site) for n in range(requests)],
        uses={
            f"line:{site}>far": Use(every_s=1.0, samples=[n % 7 / 7 for n in range(requests)]),
            f"line:far>{site}": Use(every_s=1.0, samples=[0.0] * requests),
            f"pool:{site}/relay": Use(every_s=1.0, samples=[n % 3 / 9 for n in range(requests)]),
        },
        seconds=float(requests),
        cost=cost,
    )


def _outcome(n: int, wait_s: float, policy: str, site: str) -> Outcome:
    asked_at, relays = float(n), policy == "relay"
    first_at = asked_at + 0.2 + n / 1000
    second_at = first_at + wait_s
    last_at = second_at + 99 * 0.02
    found = Outcome(
        name=f"r{n}",
        asked_at=asked_at,
        prompt=1000 + n,
        first_at=first_at,
        second_at=second_at,
        last_at=last_at,
        tokens=101,
        wire_bytes=0.0 if policy == "local" else 1e9,
        prefill_hit=500,
        end=finished(f"r{n}", 5 if relays else 0),
    )
    if n % 10 == 0:
        main_at = second_at + 0.1 if relays else first_at
        found.spans = [
            Span(Stage.QUEUED, f"{site}/compute/0", asked_at, asked_at + 0.05),
            Span(Stage.PREFILL, f"{site}/compute/0", asked_at + 0.05, first_at),
            Span(Stage.TRANSFER, "to far/memory/0", asked_at + 0.1, second_at + 0.05),
        ]
        if relays:
            found.spans += [
                Span(Stage.TRANSFER, f"to {site}/relay/0", asked_at + 0.1, first_at + 0.01),
                Span(Stage.RELAY, f"{site}/relay/0", second_at, main_at - 0.02),
                Span(Stage.HANDOFF, "far/memory/0", main_at - 0.02, main_at),
            ]
        found.spans.append(Span(Stage.MAIN, "far/memory/0", main_at, last_at))
    return found
