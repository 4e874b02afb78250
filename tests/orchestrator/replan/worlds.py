"""A small deployment of two sites, as it is planned for and as it may be seen."""

from dataclasses import replace

from orchestrator.plan.problem import Problem
from orchestrator.replan.seen import LineSeen, Seen, WorkerSeen
from tests.orchestrator.plan.plan_problems import line, pool, problem
from workers.api.messages import Role
from workers.costs import MeasuredCosts

P, R, M = Role.PREFILL, Role.RELAY, Role.MAIN
RATE = 1e9  # bytes/s of the line
# One is four times as fast at prefill, the other twice as fast at decode: they need each other.
COMPUTE = MeasuredCosts(prefill_tokens_per_s=8000, decode_step_s=0.04, sequence_s=0.001)
MEMORY = MeasuredCosts(prefill_tokens_per_s=2000, decode_step_s=0.02)


def base() -> Problem:
    """Two workers a site; a prompt's KV takes a tenth of a second of the line."""
    made = problem(
        pool("near/compute", 2, costs=COMPUTE, slots=32),
        pool("far/memory", 2, costs=MEMORY, slots=32),
        prompt=1000,
        output=100,
        lines=(line("near", "far", RATE),),
        ttft_s=2.0,
        kv_bytes_per_token=100_000,
    )
    return replace(made, gateway_site="far")


def crew(pool: str, *roles: tuple[Role, ...]) -> tuple[WorkerSeen, ...]:
    """Workers of a pool, with these roles."""
    return tuple(
        WorkerSeen(
            name=f"{pool}/{i}", site=pool.split("/")[0], pool=pool, roles=frozenset(roles[i])
        )
        for i in range(len(roles))
    )


NEAR = crew("near/compute", (P,), (P,))
FAR = crew("far/memory", (M,), (M,))


def seen(
    workers: tuple[WorkerSeen, ...] = NEAR + FAR,
    *,
    rate: float = RATE,
    delay_s: float = 0.01,
    prompt: float = 1000,
    output: float = 100,
) -> Seen:
    (kind,) = base().classes
    return Seen(
        workers=workers,
        lines={"near-far": LineSeen(bytes_per_s=rate, delay_s=delay_s)},
        classes=(replace(kind, prompt=prompt, output=output),),
    )
