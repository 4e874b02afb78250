"""The closed form against stepping one by one, by a simulation of its own."""

import random
from dataclasses import replace

import pytest

from orchestrator.replay.batch import NO_CHUNK, Batch, ChunkCost
from tests.orchestrator.replay.rig import COSTS, Bench, spec, start
from workers.api.budget import Budget
from workers.api.messages import Pause, Paused, Resume, Stop
from workers.costs import Costs, MeasuredCosts, RooflineCosts

ROOFLINE = RooflineCosts(
    flops=2e10,
    memory_bytes_per_s=1e8,
    active_params=1e5,
    attention_width=100,
    kv_bytes_per_token=100,
    weight_bytes=2e6,
    overhead_s=0.001,
    sequence_s=0.0001,
)


def stepped(
    legs: list[tuple[float, int, int]], stops: dict[int, float], costs: MeasuredCosts
) -> dict[int, float]:
    """When each leg (ready at, prompt, tokens to decode) has its last token, step after step."""
    waiting = sorted((at, n) for n, (at, _, _) in enumerate(legs))
    batch: dict[int, int] = {}  # leg -> tokens decoded
    ends: dict[int, float] = {}
    now = 0.0
    while waiting or batch:
        if not batch:
            now = max(now, waiting[0][0])
            batch[waiting.pop(0)[1]] = 0
        context = sum(legs[n][1] + 1 + done for n, done in batch.items())
        now += costs.step_s((), len(batch), context)
        for n in list(batch):
            batch[n] += 1
            if batch[n] == legs[n][2]:
                ends[n] = now
                del batch[n]
            elif n in stops and stops[n] <= now:
                del batch[n]
        while waiting and waiting[0][0] <= now:
            n = waiting.pop(0)[1]
            if n not in stops or stops[n] > now:
                batch[n] = 0
    return ends


@pytest.mark.parametrize("seed", range(40))
def test_legs_that_join_and_leave(seed: int) -> None:
    draw = random.Random(seed)
    costs = replace(
        COSTS, context_s=draw.choice((0.0, 1e-7, 2e-6, 1e-4)), sequence_s=draw.choice((0.0, 5e-4))
    )
    per_s = draw.choice((0.5, 5.0, 30.0))
    at = 0.0
    legs, stops = [], {}
    for n in range(draw.randrange(1, 31)):
        at += draw.expovariate(per_s)
        legs.append((at, draw.randrange(10, 3000), draw.randrange(1, 400)))
        if draw.random() < 0.2:
            stops[n] = at + draw.random() * 5
    bench = Bench(spec=spec(costs=costs))
    for n, (ready, prompt, tokens) in enumerate(legs):
        leg = start(
            request=f"r{n}",
            prompt_ids=tuple(range(prompt)),
            limit=tokens + 1,
            reserve=prompt + tokens + 1,
        )
        bench.decode(ready, leg)
        if n in stops:
            bench.at(stops[n], Stop(request=f"r{n}", epoch=1))
    bench.run()

    ends = stepped(legs, stops, costs)
    for n, (_, _, tokens) in enumerate(legs):
        runs = bench.runs(f"r{n}")
        complete = bool(runs) and runs[-1][2] == tokens + 1
        assert complete == (n in ends)
        if complete:
            assert runs[-1][0] == pytest.approx(ends[n], abs=1e-6)


@pytest.mark.parametrize("context_s", [0.0, 1e-6, 1e-3])
@pytest.mark.parametrize("chunk", [NO_CHUNK, ChunkCost(0.05), ChunkCost(0.05, 0.001)])
@pytest.mark.parametrize("flops", [None, 2e10, 4.8e7])
def test_steps_and_seconds_are_those_of_single_steps(
    context_s: float, chunk: ChunkCost, flops: float | None
) -> None:
    """A roofline that is memory's all the time, arithmetic's at first, or all the time."""
    costs: Costs = replace(COSTS, context_s=context_s)
    if flops is not None:
        costs = replace(ROOFLINE, flops=flops, kv_bytes_per_token=context_s * 1e8)
    batch = Batch(costs)
    batch.size, batch.context = 7, 5000
    ends = [0.0]
    for step in range(2000):
        chunk_s = chunk.first_s + chunk.growth_s * step
        ends.append(ends[-1] + chunk_s + costs.step_s((), 7, 5000 + 7 * step))
    for steps in (1, 2, 3, 50, 1000, 2000):
        assert batch.elapsed_s(steps, chunk) == pytest.approx(ends[steps])
        assert batch.steps_until(batch.elapsed_s(steps, chunk), chunk) == steps
        assert batch.steps_until(ends[steps] + 1e-4, chunk) == steps + 1
        assert batch.steps_until(ends[steps] - 1e-4, chunk) == steps


def test_the_split_of_a_roofline_is_within_these_tests() -> None:
    batch = Batch(replace(ROOFLINE, flops=4.8e7, kv_bytes_per_token=100.0))
    batch.size, batch.context = 7, 5000
    assert 50 < batch._flat_steps(batch._line()) < 1000


def test_a_pause_and_a_resume_take_effect_at_whole_steps() -> None:
    bench = Bench(spec=spec(costs=replace(COSTS, context_s=0.0, sequence_s=0.0)))
    bench.decode(0.0, start())
    bench.at(0.21, Pause(request="r", epoch=1, seq=1))
    bench.at(0.5, Resume(request="r", epoch=1, seq=2))
    bench.run()
    [(at, paused)] = bench.heard(Paused)
    assert isinstance(paused, Paused)
    # The step that ran at 0.21 was the eleventh; index 0 was law.
    assert (at, paused.at) == (pytest.approx(0.22), 12)
    runs = bench.runs()
    assert runs[:2] == [(pytest.approx(0.02), 1, 2), (pytest.approx(0.22), 2, 12)]
    assert runs[-1] == (pytest.approx(0.5 + 38 * 0.02), 12, 50)


def test_a_paused_leg_gives_its_slot_away_and_keeps_its_memory() -> None:
    bench = Bench()
    bench.decode(0.0, start())
    bench.at(0.21, Pause(request="r", epoch=1, seq=1))
    bench.run(1.0)
    assert bench.worker.slots_used == 0
    assert bench.worker.memory.free_tokens == bench.spec.kv_tokens - 160
    bench.at(1.0, Stop(request="r", epoch=1))
    bench.run(2.0)
    assert bench.worker.memory.free_tokens == bench.spec.kv_tokens
    assert bench.closed == [("r", 1)]


def test_a_stop_in_the_middle_of_a_run_frees_at_the_end_of_the_step() -> None:
    bench = Bench(spec=spec(costs=replace(COSTS, context_s=0.0, sequence_s=0.0)))
    bench.decode(0.0, start())
    bench.at(0.205, Stop(request="r", epoch=1))
    bench.run(0.2199)
    assert bench.worker.legs
    bench.run(0.2201)
    assert not bench.worker.legs
    bench.run()
    assert bench.runs() == [(pytest.approx(0.02), 1, 2)]


@pytest.mark.parametrize(
    "keeps", [Budget(budget=60, slack=7, recent=5), Budget(budget=0.3, slack=9, recent=5)]
)
def test_tokens_that_die_are_read_no_more(keeps: Budget) -> None:
    """Step after step by the engines' own rule, beside the closed form of many steps at once."""
    costs, lives = replace(COSTS, context_s=1e-4), {"a": (100, 90), "b": (40, 70)}
    bench = Bench(spec=replace(spec(costs=costs), keeps=keeps))
    for name, (prompt, limit) in lives.items():
        bench.decode(
            0.0,
            start(
                request=name, prompt_ids=tuple(range(prompt)), limit=limit, reserve=prompt + limit
            ),
        )
    bench.run()
    live = {name: keeps.left(prompt, prompt, prompt) for name, (prompt, _) in lives.items()}
    computed, now, ends = {name: prompt for name, (prompt, _) in lives.items()}, 0.0, {}
    here = ["a"]  # whose first step has begun when the other comes
    while len(ends) < 2:
        now += costs.step_s((), len(here), sum(live[name] + 1 for name in here))
        for name in here:
            prompt, limit = lives[name]
            computed[name] += 1
            live[name] = keeps.left(live[name] + 1, computed[name], prompt)
            if computed[name] + 1 == prompt + limit:
                ends[name] = now
        here = [name for name in lives if name not in ends]
    for name, at in ends.items():
        assert bench.runs(name)[-1][0] == pytest.approx(at, abs=1e-8)
    assert max(live.values()) <= 67
