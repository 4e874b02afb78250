"""What users feel and what it costs, of one replayed policy.

Per request, seconds at the gateway, as vLLM's `benchmark_serving` and AIPerf define them: TTFT is
first token - asked; TPOT (last - first) / (tokens - 1), of requests of two tokens or more; end to
end last - asked. Ours besides: the second token - asked, the first one that a decoding leg gave;
exposed stall, by how much the wait for it is longer than the wait for one token later on, that is
(second - first) - (last - second) / (tokens - 2), at least 0. Goodput counts requests that keep
TTFT, TPOT and, where it has a bound, the second token within the SLO, per second from the first
request to the last one's end.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.replay.outcome import Outcome, Use
from orchestrator.state.actions import Fail, Finish

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One policy, lived through. `cost`: of all of it, in the scenario's money; None: no prices.

    `roles`: what was decided of them meanwhile, in words.
    """

    policy: str
    outcomes: Sequence[Outcome]
    uses: Mapping[str, Use]
    seconds: float
    cost: float | None = None
    roles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a request should keep to, in seconds."""

    ttft_s: float
    tpot_s: float
    second_token_s: float | None = None  # None: whenever it comes


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A metric over `n` requests; percentiles by linear interpolation. 0 requests: all None."""

    n: int
    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One policy in figures. `metrics`: by the names of METRICS; `failed`: by reason."""

    policy: str
    requests: int
    finished: int
    failed: dict[str, int]
    routes: dict[str, int]
    seconds: float
    metrics: dict[str, Spread]
    within_slo: float  # part of all requests
    goodput_per_s: float
    output_tokens_per_s: float
    relay_tokens: int
    wire_gb: float
    prefill_hit: float  # part of the prompts' tokens
    main_hit: float
    from_memory: float  # of what was found at prefill, what came from stores: part of the prompts'
    from_files: float
    use: dict[str, float]  # the mean of each line and pool
    cost: float | None
    cost_per_million_tokens: float | None  # of output
    goodput_per_cost: float | None  # requests within the SLO per unit of money
    roles: tuple[str, ...] = ()  # what was decided of them meanwhile, in words


Metric = Callable[[Outcome], float | None]


def ttft_s(outcome: Outcome) -> float | None:
    first = outcome.first_at
    return None if first is None else first - outcome.asked_at


def second_token_s(outcome: Outcome) -> float | None:
    second = outcome.second_at
    return None if second is None else second - outcome.asked_at


def tpot_s(outcome: Outcome) -> float | None:
    first, last = outcome.first_at, outcome.last_at
    if first is None or last is None or outcome.tokens < 2:
        return None
    return (last - first) / (outcome.tokens - 1)


def exposed_stall_s(outcome: Outcome) -> float | None:
    first, second, last = outcome.first_at, outcome.second_at, outcome.last_at
    if first is None or second is None or last is None:
        return None
    later_s = (last - second) / (outcome.tokens - 2) if outcome.tokens > 2 else 0.0
    return max(0.0, second - first - later_s)


def end_to_end_s(outcome: Outcome) -> float | None:
    last = outcome.last_at
    return None if last is None else last - outcome.asked_at


METRICS: dict[str, Metric] = {
    "ttft_s": ttft_s,
    "second_token_s": second_token_s,
    "exposed_stall_s": exposed_stall_s,
    "tpot_s": tpot_s,
    "end_to_end_s": end_to_end_s,
}


def values(outcomes: Sequence[Outcome], metric: str) -> np.ndarray:
    """[n] of the requests that finished and have it, sorted."""
    measure = METRICS[metric]
    found = [measure(outcome) for outcome in outcomes if isinstance(outcome.end, Finish)]
    return np.sort(np.array([value for value in found if value is not None], float))


def spread(found: np.ndarray) -> Spread:
    """Of sorted values."""
    if not len(found):
        return Spread(n=0, mean=None, p50=None, p90=None, p95=None, p99=None)
    p50, p90, p95, p99 = (float(value) for value in np.percentile(found, PERCENTILES))
    return Spread(n=len(found), mean=float(found.mean()), p50=p50, p90=p90, p95=p95, p99=p99)


def summarise(run: Run, goal: Goal) -> Summary:
    """Everything the reports say of one policy."""
    outcomes = run.outcomes
    finished = [outcome for outcome in outcomes if isinstance(outcome.end, Finish)]
    kept = sum(keeps(outcome, goal) for outcome in finished)
    tokens = sum(outcome.tokens for outcome in outcomes)
    prompts = sum(outcome.prompt for outcome in outcomes) or 1
    seconds = run.seconds or 1.0
    cost = run.cost
    return Summary(
        policy=run.policy,
        requests=len(outcomes),
        finished=len(finished),
        failed=dict(
            Counter(o.end.failure.value for o in outcomes if isinstance(o.end, Fail)).most_common()
        ),
        routes=dict(Counter(_route(outcome) for outcome in finished).most_common()),
        seconds=run.seconds,
        metrics={name: spread(values(outcomes, name)) for name in METRICS},
        within_slo=kept / len(outcomes) if outcomes else 0.0,
        goodput_per_s=kept / seconds,
        output_tokens_per_s=tokens / seconds,
        relay_tokens=sum(_relay_tokens(outcome) for outcome in finished),
        wire_gb=sum(outcome.wire_bytes for outcome in outcomes) / 1e9,
        prefill_hit=sum(outcome.prefill_hit for outcome in outcomes) / prompts,
        main_hit=sum(outcome.main_hit for outcome in outcomes) / prompts,
        from_memory=sum(outcome.from_memory for outcome in outcomes) / prompts,
        from_files=sum(outcome.from_files for outcome in outcomes) / prompts,
        use={name: float(np.mean(use.samples)) for name, use in run.uses.items() if use.samples},
        cost=cost,
        cost_per_million_tokens=None if cost is None or not tokens else cost / tokens * 1e6,
        goodput_per_cost=kept / cost if cost else None,
        roles=run.roles,
    )


def keeps(outcome: Outcome, goal: Goal) -> bool:
    """Whether a finished request kept to the SLO. One token has no TPOT to break."""
    pairs = (
        (ttft_s(outcome), goal.ttft_s),
        (tpot_s(outcome), goal.tpot_s),
        (second_token_s(outcome), goal.second_token_s),
    )
    late = any(found is not None and most is not None and found > most for found, most in pairs)
    return outcome.first_at is not None and not late


def _route(outcome: Outcome) -> str:
    assert isinstance(outcome.end, Finish)
    return outcome.end.summary.route.value


def _relay_tokens(outcome: Outcome) -> int:
    assert isinstance(outcome.end, Finish)
    return outcome.end.summary.relay_tokens
