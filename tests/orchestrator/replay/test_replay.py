"""Whole replays: every request ends well, nothing is left, long runs change nothing."""

from dataclasses import replace

import pytest

from benchmarks import driver as driver_bench
from orchestrator.replay.driver import Replay
from orchestrator.replay.setup import LineSpec
from orchestrator.state.actions import Finish
from orchestrator.state.events import Arrived, HandoffMode, Route
from orchestrator.state.views import SAME_SITE_RTT_S
from tests.orchestrator.replay.rig import COSTS, deployment, replayed, workload
from workers.costs import Costs, RooflineCosts

# An attention that matters, and a batch that is bound by memory from its first tokens on.
ROOFLINE = RooflineCosts(
    flops=2e10,
    memory_bytes_per_s=1e8,
    active_params=8e5,
    attention_width=100,
    kv_bytes_per_token=200,
    weight_bytes=2e6,
    overhead_s=0.001,
)
ROUTES = [Route.LOCAL, Route.DIRECT, Route.RELAY, None]


def summaries(replay: Replay) -> list[Finish]:
    ends = [outcome.end for outcome in replay.outcomes.values()]
    assert all(isinstance(end, Finish) for end in ends), ends
    return [end for end in ends if isinstance(end, Finish)]


@pytest.mark.parametrize("handoff", HandoffMode)
@pytest.mark.parametrize("route", ROUTES)
def test_every_request_gets_its_tokens(route: Route | None, handoff: HandoffMode) -> None:
    asks = workload(60, 1, route=route, handoff=handoff)
    replay = replayed(deployment(), asks)
    summaries(replay)
    for at, arrived in asks:
        outcome = replay.outcomes[arrived.request]
        assert outcome.tokens == arrived.limit
        assert outcome.first_at is not None
        assert outcome.last_at is not None
        assert at < outcome.first_at <= outcome.last_at
        assert (outcome.second_at is None) == (arrived.limit == 1)


def test_the_route_is_taken_and_the_relay_hides_the_line() -> None:
    waits = {}
    for route in (Route.LOCAL, Route.DIRECT, Route.RELAY):
        asks = [(at, a) for at, a in workload(40, 2, route=route, per_s=1.0) if a.limit > 30]
        replay = replayed(deployment(), asks)
        assert {end.summary.route for end in summaries(replay)} == {route}
        assert any(end.summary.relay_tokens for end in summaries(replay)) == (route is Route.RELAY)
        outcomes = replay.outcomes.values()
        waits[route] = sum((o.second_at or 0.0) - (o.first_at or 0.0) for o in outcomes) / len(asks)
    assert waits[Route.DIRECT] > 0.15
    assert waits[Route.RELAY] < 0.1


@pytest.mark.parametrize("layers", [1, 16])
@pytest.mark.parametrize("bytes_per_s", [1e8, 1e10])
def test_kv_goes_while_it_is_computed(layers: int, bytes_per_s: float) -> None:
    """4 chunks of 512 tokens at 10 000 a second in 4 steps; KV of 100 000 bytes a token.

    The second token comes after what is left of the KV, the way and main's step: on a fast line
    a layer of the last chunk; a slow one is busy from the first layer on, if that is after main's
    answer, a round trip after it was told.
    """
    prompt, chunk_s, delay_s = 2048, 512 / COSTS.prefill_tokens_per_s, 0.005
    setup = deployment(
        lines=(LineSpec(between=("near", "far"), bytes_per_s=bytes_per_s, delay_s=delay_s),)
    )
    setup = replace(setup, workers=tuple(replace(w, layers=layers) for w in setup.workers))
    asked = Arrived(request="r", prompt_ids=tuple(range(prompt)), limit=3, route=Route.DIRECT)
    outcome = replayed(setup, [(0.0, asked)]).outcomes["r"]
    assert outcome.first_at is not None
    assert outcome.second_at is not None
    began_at = delay_s
    ended_at = outcome.first_at - delay_s
    assert ended_at - began_at == pytest.approx(4 * chunk_s)
    busy_s = 4 * chunk_s - max(chunk_s / layers, 2 * delay_s)
    left = max(512 / layers * 1e5, prompt * 1e5 - bytes_per_s * busy_s)
    landed_at = ended_at + left / bytes_per_s + delay_s
    said_at = landed_at + COSTS.step_s((), 1, prompt + 1)
    assert outcome.second_at == pytest.approx(said_at + SAME_SITE_RTT_S / 2, abs=1e-6)


def test_it_is_deterministic() -> None:
    asks = workload(80, 3, per_s=8.0)
    one, two = replayed(deployment(), asks), replayed(deployment(), asks)
    assert one.events == two.events
    assert one.schedule.done == two.schedule.done
    for name, outcome in one.outcomes.items():
        other = two.outcomes[name]
        assert outcome.end == other.end
        assert (outcome.first_at, outcome.second_at, outcome.last_at) == (
            other.first_at,
            other.second_at,
            other.last_at,
        )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("route", [Route.LOCAL, Route.DIRECT])
@pytest.mark.parametrize("costs", [COSTS, ROOFLINE])
def test_long_runs_change_nothing(route: Route, seed: int, costs: Costs) -> None:
    """Under overload too: some wait for memory and slots."""
    setup = deployment()
    pools = {Route.LOCAL: "near/main", Route.DIRECT: "far/main"}
    small = tuple(
        replace(w, kv_tokens=6000, slots=6, costs=costs, shared_budget=seed % 2 == 1)
        for w in setup.workers
        if w.name.startswith(("near/prefill", pools[route]))
    )
    setup = replace(setup, workers=small, report_s=1.0)
    asks = workload(60, seed, route=route, per_s=7.0)
    fast = replayed(setup, asks)
    slow = replayed(replace(setup, every_step=True), asks)
    assert fast.events < slow.events / 5
    assert max(end.summary.queue_s for end in summaries(fast)) > 0.5
    for name, outcome in fast.outcomes.items():
        other = slow.outcomes[name]
        assert outcome.first_at == pytest.approx(other.first_at, abs=1e-6)
        assert outcome.second_at == pytest.approx(other.second_at, abs=1e-6)
        assert outcome.last_at == pytest.approx(other.last_at, abs=1e-6)


@pytest.mark.parametrize("handoff", HandoffMode)
def test_a_handover_ends_when_it_would_token_by_token(handoff: HandoffMode) -> None:
    asks = workload(80, 5, route=Route.RELAY, handoff=handoff, per_s=4.0)
    fast = replayed(deployment(), asks)
    slow = replayed(deployment(every_step=True), asks)
    late = sorted(
        abs((outcome.last_at or 0.0) - (slow.outcomes[name].last_at or 0.0))
        for name, outcome in fast.outcomes.items()
    )
    # A step takes 0.02 to 0.03. One handover that ends a step later can send another request to
    # another worker: a few differ more.
    assert late[len(late) // 2] < 0.02
    assert sum(late) / len(late) < 0.05
    gaps, other_gaps = (
        sorted(end.summary.handoff_gap_s or 0.0 for end in summaries(replay))
        for replay in (fast, slow)
    )
    assert max(gaps) == pytest.approx(max(other_gaps), abs=0.05)


def test_what_is_refused_is_placed_elsewhere_or_waits() -> None:
    """The gateway books tokens, a worker gives out blocks: what seems to fit may be refused."""
    setup = deployment()
    small = tuple(replace(w, kv_tokens=2400, slots=4) for w in setup.workers)
    asks = [
        (at, replace(a, prompt_ids=a.prompt_ids[: 400 - n % 16]))
        for n, (at, a) in enumerate(workload(120, 7, per_s=30.0))
    ]
    replay = replayed(replace(setup, workers=small), asks)
    assert replay.machine.ctx.counts["refused"] > 0
    waited = [end.summary.queue_s for end in summaries(replay)]
    assert max(waited) > 1.0


def test_stop_strings_are_not_modelled() -> None:
    with pytest.raises(ValueError, match="stop strings"):
        Replay(deployment()).run(
            [(0.0, Arrived(request="r", prompt_ids=(1,), limit=5, stop_strings=("x",)))]
        )


def test_requests_come_in_the_order_of_time() -> None:
    asks = [(at, Arrived(request=f"r{at}", prompt_ids=(1,), limit=5)) for at in (1.0, 2.0, 1.5)]
    with pytest.raises(ValueError, match=r"asks at 1\.5 s, before the last one"):
        Replay(deployment()).run(asks)


def test_the_benchmark() -> None:
    result = driver_bench.run(requests=80)
    assert result["requests"] == 80
    assert set(result["routes"]) == {"local", "direct", "relay", "auto"}
    assert result["routes"]["relay"]["taken"] == {"relay": 20}
    assert result["max_difference_s"] < 0.2
    assert result["step_by_step"]["routes"]["direct"]["max_difference_s"] < 1e-6
    assert result["step_by_step"]["cpu_s_per_1000_requests"] > result["cpu_s_per_1000_requests"]
    assert result["python_loop_s"] > 0
