"""Problems whose answers can be worked out by hand."""

from orchestrator.plan.demand import RequestClass
from orchestrator.plan.problem import ALL_ROLES, Goal, Line, Pool, Problem, Shape
from workers.api.messages import Role
from workers.costs import MeasuredCosts

# 1000 tokens a second, and decode steps of 10 ms whatever their batch.
PLAIN = MeasuredCosts(prefill_tokens_per_s=1000.0, decode_step_s=0.01)


def pool(
    name: str,
    workers: int,
    *,
    costs: MeasuredCosts = PLAIN,
    roles: frozenset[Role] = ALL_ROLES,
    price: float = 1.0,
    kv_tokens: int = 10_000_000,
    slots: int = 4096,
) -> Pool:
    """Workers of one chip."""
    shape = Shape(parallel=1, most=workers, costs=costs, kv_tokens=kv_tokens)
    return Pool(
        name=name,
        site=name.split("/")[0],
        chip="c",
        chips=workers,
        shapes=(shape,),
        price_per_h=price,
        roles=roles,
        slots=slots,
    )


def problem(
    *pools: Pool,
    prompt: float = 100.0,
    output: float = 50.0,
    lines: tuple[Line, ...] = (),
    ttft_s: float = 1000.0,
    tpot_s: float = 0.05,
    second_s: float = float("inf"),
    kv_bytes_per_token: float = 1000.0,
    hit: float = 0.0,
    reused_tokens: float = 0.0,
) -> Problem:
    """One class of requests; by default nobody is in a hurry."""
    kind = RequestClass(name="all", rate=1.0, prompt=prompt, output=output, hit=hit, main_hit=hit)
    return Problem(
        pools=pools,
        lines=lines,
        classes=(kind,),
        goal=Goal(ttft_s=ttft_s, tpot_s=tpot_s, second_s=second_s),
        gateway_site=pools[0].site,
        kv_bytes_per_token=kv_bytes_per_token,
        reused_tokens=reused_tokens,
    )


def line(a: str, b: str, bytes_per_s: float, delay_s: float = 0.01) -> Line:
    return Line(between=(a, b), bytes_per_s=bytes_per_s, delay_s=delay_s)
