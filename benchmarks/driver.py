"""How fast the replay's virtual driver is, and how far its long runs are from single tokens."""

import gc
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.machine import machine
from orchestrator.replay.driver import Replay
from orchestrator.replay.setup import LineSpec, ModelSpec, ReplaySetup
from orchestrator.state.actions import Finish
from orchestrator.state.config import CoreConfig
from orchestrator.state.events import Arrived, Route
from workers.api.messages import Role
from workers.costs import MeasuredCosts

ROUTES = {"local": Route.LOCAL, "direct": Route.DIRECT, "relay": Route.RELAY, "auto": None}
# Poisson arrivals; log-normal lengths with means of about 500 and 200 tokens.
REQUESTS_PER_S = 10.0
PROMPT_TOKENS = (5.9, 0.8)
OUTPUT_TOKENS = (5.0, 0.75)
# Step by step one request in so many is lived through: it takes more than ten times as long.
STEPPED_PART = 10
LOOP_ADDITIONS = 5_000_000

KV_BYTES_PER_TOKEN = 327_680  # Llama-3.1-70B in bfloat16
SITE_BYTES_PER_S = 25e9  # 200 Gbps, as a topology's default
NEAR = MeasuredCosts(
    prefill_tokens_per_s=15_000, decode_step_s=0.030, context_s=1.5e-7, sequence_s=0.0003
)
FAR = MeasuredCosts(
    prefill_tokens_per_s=20_000, decode_step_s=0.022, context_s=1e-7, sequence_s=0.0002
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lived:
    """A replay that has been run, and the CPU it took."""

    replay: Replay
    cpu_s: float


def run(
    *, requests: int, seed: int = 1, tell: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Replay `requests` requests, a quarter of them on each kind of route, and compare."""
    measured_on = machine()
    share = max(1, requests // len(ROUTES))
    routes: dict[str, Any] = {}
    stepped: dict[str, Any] = {}
    for name, route in ROUTES.items():
        tell(f"{name}: {share} requests")
        lived = live(share, route, seed)
        routes[name] = _speed(lived)
        few = max(1, share // STEPPED_PART)
        tell(f"{name}: {few} requests step by step")
        slow = live(few, route, seed, every_step=True)
        stepped[name] = _speed(slow) | _differences(live(few, route, seed).replay, slow.replay)
    total = _total(routes)
    return {
        **total,
        "routes": routes,
        "step_by_step": {**_total(stepped), "routes": stepped},
        "max_difference_s": max(row["max_difference_s"] for row in stepped.values()),
        "python_loop_s": loop_s(),
        "machine": measured_on,
    }


def setup(*, every_step: bool = False) -> ReplaySetup:
    """Two sites as in hami-shenzhen.yaml, four workers per role, the gateway at the far one."""
    pools = [
        ("hami/compute", Role.PREFILL, NEAR, 400_000),
        ("hami/relay", Role.RELAY, NEAR, 200_000),
        ("hami/memory", Role.MAIN, NEAR, 400_000),
        ("shenzhen/memory", Role.MAIN, FAR, 400_000),
    ]
    return ReplaySetup(
        core=CoreConfig(
            gateway="gateway",
            gateway_site="shenzhen",
            queue_limit=1_000_000,
            site_bytes_per_s=dict.fromkeys(("hami", "shenzhen"), SITE_BYTES_PER_S),
        ),
        workers=tuple(
            ModelSpec(
                name=f"{pool}/{number}",
                site=pool.split("/")[0],
                roles=frozenset({role}),
                costs=costs,
                slots=64,
                kv_tokens=kv_tokens,
                kv_bytes_per_token=KV_BYTES_PER_TOKEN,
            )
            for pool, role, costs, kv_tokens in pools
            for number in range(4)
        ),
        lines=(LineSpec(between=("hami", "shenzhen"), bytes_per_s=20e9 / 8, delay_s=0.025),),
        every_step=every_step,
    )


def workload(requests: int, route: Route | None, seed: int) -> Iterator[tuple[float, Arrived]]:
    """When each request comes, and what it asks."""
    draw = random.Random(seed)
    at = 0.0
    for number in range(requests):
        at += draw.expovariate(REQUESTS_PER_S)
        prompt = min(32_000, max(16, round(draw.lognormvariate(*PROMPT_TOKENS))))
        output = min(4_000, max(2, round(draw.lognormvariate(*OUTPUT_TOKENS))))
        first = draw.randrange(100_000)  # no two prompts begin alike
        ids = tuple(range(first, first + prompt))
        yield at, Arrived(request=f"r{number}", prompt_ids=ids, limit=output, route=route)


def live(requests: int, route: Route | None, seed: int, *, every_step: bool = False) -> Lived:
    """Replay so many requests. RuntimeError if one of them did not finish."""
    replay = Replay(setup(every_step=every_step))
    asks = list(workload(requests, route, seed))
    gc.collect()
    gc.disable()  # nothing here makes cycles
    try:
        began = time.process_time()
        replay.run(asks)
        cpu_s = time.process_time() - began
    finally:
        gc.enable()
    for outcome in replay.outcomes.values():
        if not isinstance(outcome.end, Finish):
            raise RuntimeError(f"request {outcome.name} did not finish: {outcome.end}")
    return Lived(replay=replay, cpu_s=cpu_s)


def loop_s() -> float:
    """CPU seconds of a loop that only adds: how fast this machine runs Python now."""
    began = time.process_time()
    total = 0
    for number in range(LOOP_ADDITIONS):
        total += number
    return time.process_time() - began


def _speed(lived: Lived) -> dict[str, Any]:
    replay, requests = lived.replay, len(lived.replay.outcomes)
    taken: dict[str, int] = {}
    for outcome in replay.outcomes.values():
        assert isinstance(outcome.end, Finish)
        route = outcome.end.summary.route.value
        taken[route] = taken.get(route, 0) + 1
    return {
        "requests": requests,
        "events": replay.events,
        "cpu_s": lived.cpu_s,
        "events_per_s": replay.events / lived.cpu_s,
        "events_per_request": replay.events / requests,
        "cpu_s_per_1000_requests": 1000 * lived.cpu_s / requests,
        "taken": taken,
    }


def _differences(fast: Replay, slow: Replay) -> dict[str, float]:
    """Of the times at which the requests' last tokens were released, in seconds."""
    found = sorted(
        abs((outcome.last_at or 0.0) - (slow.outcomes[name].last_at or 0.0))
        for name, outcome in fast.outcomes.items()
    )
    return {
        "max_difference_s": found[-1],
        "mean_difference_s": sum(found) / len(found),
        "mean_end_to_end_s": sum((o.last_at or 0.0) - o.asked_at for o in slow.outcomes.values())
        / len(found),
    }


def _total(rows: dict[str, Any]) -> dict[str, Any]:
    requests = sum(row["requests"] for row in rows.values())
    events = sum(row["events"] for row in rows.values())
    cpu_s = sum(row["cpu_s"] for row in rows.values())
    return {
        "requests": requests,
        "events": events,
        "events_per_s": events / cpu_s,
        "cpu_s_per_1000_requests": 1000 * cpu_s / requests,
    }
