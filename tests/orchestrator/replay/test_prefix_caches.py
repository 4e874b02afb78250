"""Prefix caches of modelled workers: what is found, what is evicted, and what it saves."""

import random
from dataclasses import replace

import pytest

from orchestrator.replay.caches import PrefixCache
from orchestrator.replay.driver import Replay
from orchestrator.replay.prompt import Prompt, blocks_of
from orchestrator.state.events import Arrived, Route
from tests.orchestrator.replay.rig import deployment, replayed

BLOCK = 16


def test_a_prompt_has_a_length_and_names() -> None:
    prompt = Prompt(40, (7, 8))
    assert (len(prompt), bool(prompt), blocks_of(prompt)) == (40, True, (7, 8))
    assert blocks_of((1, 2, 3)) == ()
    assert not Prompt(0)


def test_the_least_recently_used_goes_first_and_tails_before_heads() -> None:
    cache = PrefixCache(BLOCK)
    for blocks in ((1, 2, 3), (1, 4), (5,)):
        cache.hold(blocks)
        cache.release(blocks)
    assert [cache.depth(blocks) for blocks in ((1, 2, 3, 9), (1, 4), (5,), (6,))] == [3, 2, 1, 0]
    cache.fit(4 * BLOCK)
    assert [cache.depth(blocks) for blocks in ((1, 2, 3), (1, 4), (5,))] == [2, 2, 1]
    cache.fit(2 * BLOCK + 3)
    assert [cache.depth(blocks) for blocks in ((1, 2, 3), (1, 4), (5,))] == [1, 1, 1]
    assert cache.idle_tokens == 2 * BLOCK


def test_what_a_leg_holds_is_never_evicted() -> None:
    cache = PrefixCache(BLOCK)
    cache.hold((1, 2))
    cache.hold((1, 3))
    cache.fit(0)
    assert (cache.depth((1, 2)), cache.depth((1, 3)), cache.idle_tokens) == (2, 2, 0)
    cache.release((1, 2))
    cache.fit(0)
    assert (cache.depth((1, 2)), cache.depth((1, 3))) == (1, 2)


@pytest.mark.parametrize("seed", range(20))
def test_against_a_list(seed: int) -> None:
    """A reference that keeps all blocks in one list, in the order in which they were let go."""
    draw = random.Random(seed)
    cache, held, order = PrefixCache(BLOCK), [], []
    for _ in range(300):
        if held and draw.random() < 0.5:
            blocks = held.pop(draw.randrange(len(held)))
            cache.release(blocks)
            order += [b for b in reversed(blocks) if not any(b in other for other in held)]
        else:
            document = draw.randrange(6) * 100
            blocks = tuple(range(document, document + draw.randrange(1, 12)))
            known = {b for other in held for b in other} | set(order)
            depth = next((n for n, b in enumerate(blocks) if b not in known), len(blocks))
            assert cache.depth(blocks) == depth
            cache.hold(blocks)
            held.append(blocks)
            order = [b for b in order if b not in blocks]
        room = draw.randrange(0, 40)
        cache.fit(room * BLOCK)
        order = order[max(0, len(order) - room) :]
        assert cache.idle_tokens == len(order) * BLOCK


def asked(number: int, at: float, prompt: Prompt, route: Route) -> tuple[float, Arrived]:
    return at, Arrived(request=f"r{number}", prompt_ids=prompt, limit=20, route=route)


@pytest.mark.parametrize("route", [Route.DIRECT, Route.RELAY, Route.LOCAL])
def test_a_second_turn_computes_and_sends_what_is_new(route: Route) -> None:
    prompts = [Prompt(1000, tuple(range(62))), Prompt(1200, tuple(range(75)))]
    asks = [asked(n, 10.0 * n, prompt, route) for n, prompt in enumerate(prompts)]
    setup = replace(deployment(), block_tokens=BLOCK, timelines=1)
    cold, warm = replayed(setup, asks), replayed(replace(setup, block_tokens=None), asks)
    first, second = cold.outcomes.values()
    assert (first.prefill_hit, second.prefill_hit) == (0, 992)
    _, whole = warm.outcomes.values()
    assert second.first_at is not None
    assert whole.first_at is not None
    assert second.first_at < whole.first_at - 0.08  # 992 tokens at 10,000 a second
    if route is not Route.LOCAL:
        assert second.main_hit == 992
        assert first.wire_bytes == pytest.approx(1000 * 100_000)
        assert second.wire_bytes == pytest.approx(208 * 100_000)


def test_memory_that_legs_need_is_taken_from_the_cache() -> None:
    setup = deployment()
    small = tuple(replace(spec, kv_tokens=2048) for spec in setup.workers)
    setup = replace(setup, workers=small, block_tokens=BLOCK)
    asks = [
        asked(n, 5.0 * n, Prompt(960, tuple(range(100 * n, 100 * n + 60))), Route.DIRECT)
        for n in (0, 1, 2, 3, 4, 5)
    ]
    again = asked(6, 40.0, Prompt(960, tuple(range(60))), Route.DIRECT)
    replay = replayed(setup, [*asks, again])
    last = replay.outcomes["r6"]
    assert (last.prefill_hit, last.main_hit) == (0, 0)
    for worker in replay.workers.values():
        assert worker.memory.cache is not None
        assert worker.memory.cache.idle_tokens <= 2048


@pytest.mark.parametrize("kv_tokens", [100_000, 7_000])
def test_the_fast_way_is_that_of_single_steps_with_caches(kv_tokens: int) -> None:
    """With little memory blocks are evicted, and requests wait."""
    draw = random.Random(5)
    asks, at = [], 0.0
    for number in range(60):
        at += draw.expovariate(4.0)
        document, known = draw.randrange(4) * 1000, draw.randrange(0, 60)
        own = 100_000 + 1000 * number
        blocks = (*range(document, document + known), *range(own, own + 80 - known))
        asks.append(asked(number, at, Prompt(80 * BLOCK + 5, blocks), Route.DIRECT))
    workers = tuple(replace(spec, kv_tokens=kv_tokens) for spec in deployment().workers)
    setup = replace(deployment(), workers=workers, block_tokens=BLOCK)
    fast, slow = replayed(setup, asks), replayed(replace(setup, every_step=True), asks)
    assert sum(outcome.prefill_hit for outcome in fast.outcomes.values()) > 5_000
    for outcome, other in zip(fast.outcomes.values(), slow.outcomes.values(), strict=True):
        assert outcome.prefill_hit == other.prefill_hit
        assert outcome.last_at == pytest.approx(other.last_at, abs=1e-6)


def test_timelines_and_uses() -> None:
    asks = [asked(n, 1.0 * n, Prompt(1000), Route.RELAY) for n in range(6)]
    setup = replace(deployment(), timelines=3, use_every_s=0.5)
    replay = replayed(setup, asks)
    written = [outcome for outcome in replay.outcomes.values() if outcome.spans is not None]
    assert [outcome.name for outcome in written] == ["r0", "r3"]
    for outcome in written:
        assert outcome.spans is not None
        stages = [span.stage.value for span in outcome.spans]
        assert stages[:2] == ["queued", "prefill"]
        assert {"transfer", "relay", "main"} <= set(stages)
        assert all(span.began_at <= span.ended_at for span in outcome.spans)
        assert max(span.ended_at for span in outcome.spans) == pytest.approx(outcome.last_at)
    uses = replay.uses
    assert {"line:near>far", "pool:near/prefill", "pool:far/main"} <= set(uses)
    assert all(0 <= sample <= 1 for use in uses.values() for sample in use.samples)
    sent = sum(uses["line:near>far"].samples) * 0.5 * 4e8
    assert sent == pytest.approx(6 * 1000 * 100_000, rel=0.01)
    assert isinstance(replay, Replay)
