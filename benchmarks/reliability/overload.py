"""More than the service can do (`pdd bench overload`): goodput, refusals, giants and tenants.

A small service with simulated engines under `pdd serve`, whose capacity is measured first, with
as many clients as it has slots and queue; then requests arrive at random at multiples of it,
whatever becomes of those before them.
"""

import asyncio
import itertools
import random
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.machine import machine
from benchmarks.reliability.asking import REFUSED, WHOLE, Answer, Asker, make_prompt
from benchmarks.reliability.deployment import HAMI, SHENZHEN, connected, serving_with_secret
from benchmarks.service import Served

LOADS = (1.0, 2.0, 10.0)
CAPACITY_S = 8.0
PROMPT_TOKENS = 64
OUTPUT_TOKENS = 24
SLOTS = 8
QUEUE = 24
GIANT_TOKENS = 6000
GIANT_EVERY_S = 2.0
GIANT_OUTPUT = 8
SHARE = 0.5  # of the capacity, for those who must not suffer
KEYS = {"greedy": "a-key-of-a-benchmark", "modest": "another-of-a-benchmark"}
KEYS_ENV = "PDD_OVERLOAD_KEYS"

_POOL: dict[str, Any] = {
    "chip": "cpu",
    "engine": "simulated",
    "slots": SLOTS,
    "kv_tokens": 32768,
    "simulate": {"prefill_tokens_per_s": 6000.0, "step": "25ms"},
}
TOPOLOGY: dict[str, Any] = {
    "model": "smollm2-135m",
    "sites": {
        HAMI: {"pools": {"prefill": _POOL | {"roles": ["prefill"]}}},
        SHENZHEN: {"pools": {"main": _POOL | {"roles": ["main"]}}},
    },
    "links": [{"between": [HAMI, SHENZHEN], "delay": "5ms", "bandwidth": "10Gbps"}],
    "gateway": {"site": SHENZHEN, "host": "127.0.0.1", "port": 8000},
    "policy": {"route": "direct", "queue_limit": QUEUE, "deadlines": {"queue": "20s"}},
    "security": {"api_keys_env": KEYS_ENV, "tenants": {name: {} for name in KEYS}},
}


@dataclass(kw_only=True)
class Offered:
    """What came of requests that arrived at random for some time."""

    seconds: float
    answers: list[Answer] = field(default_factory=list)

    def describe(self) -> dict[str, Any]:
        """Rates per second of the time in which requests arrived or were still served."""
        whole = [answer for answer in self.answers if answer.outcome == WHOLE]
        refused = [answer for answer in self.answers if answer.status in REFUSED]
        others = [a for a in self.answers if a.outcome != WHOLE and a.status not in REFUSED]
        ends = [a.ended_at for a in whole]
        took = max(self.seconds, max(ends) - min(a.asked_at for a in whole)) if whole else 1.0
        return {
            "offered_per_s": len(self.answers) / self.seconds,
            "goodput_per_s": len(whole) / took,
            "whole": len(whole),
            "ttft_p50_s": _quantile([a.token_times[0] for a in whole], 0.5),
            "ttft_p95_s": _quantile([a.token_times[0] for a in whole], 0.95),
            "refused": len(refused),
            "refusal_p95_s": _quantile([a.seconds for a in refused], 0.95),
            "without_retry_after": sum(answer.retry_after is None for answer in refused),
            "other": dict(Counter(answer.outcome for answer in others)),
        }


def run(*, seconds: float, seed: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Each load for so many seconds. Raises ServeFailed."""
    measured_on = machine()
    environment = {KEYS_ENV: ",".join(f"{tenant}:{key}" for tenant, key in KEYS.items())}
    with serving_with_secret(TOPOLOGY, tell, environment) as (served, secret):
        return {"machine": measured_on, "seed": seed, "seconds": seconds} | asyncio.run(
            _measure(served, secret, seconds, random.Random(seed), tell)
        )


async def _measure(
    served: Served, secret: str, seconds: float, rng: random.Random, tell: Callable[[str], None]
) -> dict[str, Any]:
    async with connected(served, secret) as deployment:
        asker = deployment.asker
        capacity = await _capacity(asker, rng)
        tell(f"capacity: {capacity:.1f} requests/s")
        loads = []
        for load in LOADS:
            told = (await _offer(asker, rng, load * capacity, seconds, "modest")).describe()
            tell(f"{load:g} x: goodput {told['goodput_per_s']:.1f}/s, {told['refused']} refused")
            loads.append({"load": load} | told)
        alone = (await _offer(asker, rng, SHARE * capacity, seconds, "modest")).describe()
        beside, giants = await asyncio.gather(
            _offer(asker, rng, SHARE * capacity, seconds, "modest"), _giants(asker, rng, seconds)
        )
        tell(f"short ones beside giants: TTFT P95 {beside.describe()['ttft_p95_s']:.2f} s")
        modest, greedy = await asyncio.gather(
            _offer(asker, rng, SHARE * capacity, seconds, "modest"),
            _offer(asker, rng, 10 * capacity, seconds, "greedy"),
        )
        tell(f"beside a greedy tenant: {modest.describe()['goodput_per_s']:.1f}/s")
        return {
            "capacity_per_s": capacity,
            "loads": loads,
            "giants": {
                "alone": alone,
                "beside": beside.describe(),
                "giants": dict(Counter(answer.outcome for answer in giants)),
            },
            "tenants": {"modest": modest.describe(), "greedy": greedy.describe()},
        }


async def _capacity(asker: Asker, rng: random.Random) -> float:
    """Requests per second when slots and queue are never empty."""
    loop = asyncio.get_running_loop()
    end = loop.time() + CAPACITY_S
    ended: list[float] = []

    async def client() -> None:
        while loop.time() < end:
            answer = await _ask(asker, rng, "modest")
            if answer.outcome == WHOLE:
                ended.append(answer.ended_at)

    await asyncio.gather(*(client() for _ in range(2 * SLOTS)))
    settled = sorted(ended)[SLOTS:]  # the first come to an empty service
    return (len(settled) - 1) / (settled[-1] - settled[0])


async def _offer(
    asker: Asker, rng: random.Random, per_s: float, seconds: float, tenant: str
) -> Offered:
    """Requests at random moments (a Poisson process), each on its own."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    times = itertools.accumulate(rng.expovariate(per_s) for _ in itertools.count())
    asked = []
    for at in itertools.takewhile(lambda at: at < seconds, times):
        await asyncio.sleep(began + at - loop.time())
        asked.append(asyncio.create_task(_ask(asker, rng, tenant)))
    return Offered(seconds=seconds, answers=list(await asyncio.gather(*asked)))


async def _giants(asker: Asker, rng: random.Random, seconds: float) -> Sequence[Answer]:
    asked = []
    for _ in range(int(seconds / GIANT_EVERY_S)):
        asked.append(asyncio.create_task(_ask(asker, rng, "greedy", GIANT_TOKENS, GIANT_OUTPUT)))
        await asyncio.sleep(GIANT_EVERY_S)
    return await asyncio.gather(*asked)


async def _ask(
    asker: Asker,
    rng: random.Random,
    tenant: str,
    prompt_tokens: int = PROMPT_TOKENS,
    tokens: int = OUTPUT_TOKENS,
) -> Answer:
    key = KEYS[tenant]
    return await asker.ask(make_prompt(rng, prompt_tokens), tokens, key=key)


def _quantile(values: Sequence[float], share: float) -> float | None:
    """None of nothing."""
    if len(values) < 2:
        return values[0] if values else None
    return statistics.quantiles(values, n=100, method="inclusive")[round(100 * share) - 1]
