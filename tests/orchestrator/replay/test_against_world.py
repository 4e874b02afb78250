"""The models against the virtual deployment, whose workers and streams are the real ones."""

import random

import pytest

from orchestrator.replay.setup import LineSpec, ModelSpec, ReplaySetup
from orchestrator.state.config import CoreConfig
from orchestrator.state.events import Arrived, Route
from orchestrator.virtual.setup import Ask, Setup, WorkerSpec
from orchestrator.virtual.worker import CHUNK_TOKENS
from orchestrator.virtual.world import World
from tests.orchestrator.replay.rig import replayed
from workers.api.budget import Budget
from workers.api.messages import Role
from workers.costs import MeasuredCosts
from workers.kv.evict.config import Eviction

CORE = CoreConfig(gateway="g", gateway_site="far")
POOLS = [
    ("near/prefill/0", Role.PREFILL, 0.05),
    ("near/relay/0", Role.RELAY, 0.05),
    ("near/main/0", Role.MAIN, 0.05),
    ("far/main/0", Role.MAIN, 0.03),
    ("far/main/1", Role.MAIN, 0.03),
]
PREFILL_TOKENS_PER_S = 1000.0
BYTES_PER_S = 20_000.0
ONE_WAY_S = 0.025
BOOT_S = 3.0
Times = tuple[float, float, float]  # of the first, second and last token


def workload(route: Route) -> list[tuple[float, Arrived]]:
    draw = random.Random(4)
    at, asks = 0.0, []
    for number in range(30):
        at += draw.expovariate(1.0)
        prompt = tuple(draw.randrange(3, 30_000) for _ in range(draw.randrange(40, 400)))
        limit = draw.randrange(20, 120)
        asks.append(
            (at, Arrived(request=f"r{number}", prompt_ids=prompt, limit=limit, route=route))
        )
    return asks


def in_the_world(
    asks: list[tuple[float, Arrived]], eviction: Eviction | None = None
) -> tuple[dict[str, Times], int]:
    """Each request's times, and the bytes of KV per token."""
    workers = tuple(
        WorkerSpec(
            name=name,
            site=name.split("/")[0],
            roles=frozenset({role}),
            step_s=step_s,
            prefill_tokens_per_s=PREFILL_TOKENS_PER_S,
            slots=32,
            kv_tokens=32_768,
            eviction=eviction,
        )
        for name, role, step_s in POOLS
    )
    world = World(
        Setup(core=CORE, workers=workers, bytes_per_s=BYTES_PER_S, one_way_s=ONE_WAY_S), mild=True
    )
    world.run(BOOT_S)
    for at, arrived in asks:
        world.schedule.at(BOOT_S + at, world.ask, Ask(at=at, arrived=arrived))
    world.run(BOOT_S + asks[-1][0] + 30.0)
    assert world.breaches == []
    times = {
        name: (client.times[0] - BOOT_S, client.times[1] - BOOT_S, client.times[-1] - BOOT_S)
        for name, client in world.clients.items()
    }
    return times, world.workers[POOLS[0][0]].hello.kv_bytes_per_token


def in_the_replay(
    asks: list[tuple[float, Arrived]], kv_bytes_per_token: int, keeps: Budget | None = None
) -> dict[str, Times]:
    workers = tuple(
        ModelSpec(
            name=name,
            site=name.split("/")[0],
            roles=frozenset({role}),
            costs=MeasuredCosts(prefill_tokens_per_s=PREFILL_TOKENS_PER_S, decode_step_s=step_s),
            slots=32,
            kv_tokens=32_768,
            kv_bytes_per_token=kv_bytes_per_token,
            chunk_tokens=CHUNK_TOKENS,
            keeps=keeps,
        )
        for name, role, step_s in POOLS
    )
    line = LineSpec(between=("near", "far"), bytes_per_s=BYTES_PER_S, delay_s=ONE_WAY_S)
    replay = replayed(ReplaySetup(core=CORE, workers=workers, lines=(line,)), asks)
    return {
        name: (outcome.first_at or 0.0, outcome.second_at or 0.0, outcome.last_at or 0.0)
        for name, outcome in replay.outcomes.items()
    }


@pytest.mark.parametrize(
    ("route", "most_s"),
    [
        (Route.LOCAL, 0.051),  # a step: what comes at its very end may be in it or not
        (Route.DIRECT, 0.15),  # frames' headers are not modelled, and are much of so little KV
        (Route.RELAY, 0.15),
    ],
)
def test_the_same_times(route: Route, most_s: float) -> None:
    asks = workload(route)
    real, kv_bytes_per_token = in_the_world(asks)
    modelled = in_the_replay(asks, kv_bytes_per_token)
    for name, (first, second, last) in modelled.items():
        assert first == pytest.approx(real[name][0], abs=1e-6)
        assert second == pytest.approx(real[name][1], abs=most_s)
        assert last == pytest.approx(real[name][2], abs=most_s)
    mean_s = sum(abs(modelled[name][2] - real[name][2]) for name in modelled) / len(modelled)
    assert mean_s < most_s / 3


@pytest.mark.parametrize("budget", [40, 0.25])
@pytest.mark.parametrize("route", [Route.DIRECT, Route.RELAY])
def test_where_pools_prune_what_is_kept_crosses_the_line(
    route: Route, budget: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is so slow that whole prompts would come seconds later, and frames' headers tell."""
    monkeypatch.setattr(f"{__name__}.BYTES_PER_S", 2000.0)
    eviction = Eviction(policy="random", budget=budget, slack=10, recent=8, low=1.0)
    asks = workload(route)
    real, kv_bytes_per_token = in_the_world(asks, eviction)
    pruned, whole = (
        in_the_replay(asks, kv_bytes_per_token, keeps) for keeps in (eviction.plain, None)
    )

    def off_s(modelled: dict[str, Times]) -> float:
        return sum(abs(modelled[name][2] - real[name][2]) for name in real) / len(real)

    assert off_s(pruned) < 0.25
    assert off_s(whole) > 2 * off_s(pruned)
