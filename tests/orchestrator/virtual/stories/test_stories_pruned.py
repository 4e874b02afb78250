"""Pools that keep a part of their requests' tokens: every route, losses, and what crosses a line.

Simulated engines take no KV but what they would have computed, so a token that lands in the wrong
place, or a name that says more than is there, ends a story badly.
"""

from dataclasses import replace

import pytest

from orchestrator.lifecycle.phases import Phase
from orchestrator.state.events import HandoffMode, Route
from orchestrator.virtual.faults.cases import play
from orchestrator.virtual.faults.checks import check
from orchestrator.virtual.setup import Ask
from tests.orchestrator.virtual.faults.troubled import case_of
from tests.orchestrator.virtual.stories.story_world import (
    KV_BYTES,
    M0,
    P0,
    R0,
    SPARES,
    TWO_SITES,
    X0,
    M,
    MakeStory,
    P,
    spec,
)
from workers.kv.evict.config import Eviction

PRUNED = Eviction(policy="random", budget=40, slack=10, recent=8, first=2, low=1.0)
LONG = 200  # tokens of a prompt


def pruned(workers, eviction: Eviction = PRUNED):
    return tuple(replace(worker, eviction=eviction) for worker in workers)


@pytest.mark.parametrize("route", Route)
@pytest.mark.parametrize("handoff", HandoffMode)
def test_every_route_and_mode(make_story: MakeStory, route: Route, handoff: HandoffMode) -> None:
    story = make_story(pruned(TWO_SITES), handoff=handoff, prompt=LONG)
    summary = story.served(story.ask(route=route, prompt=LONG))
    assert summary.route is route
    if route is not Route.LOCAL:
        assert summary.kv_bytes_raw == 40 * KV_BYTES


@pytest.mark.parametrize("one", [P0, R0, M0])
def test_a_pool_that_prunes_among_others_that_do_not(make_story: MakeStory, one: str) -> None:
    workers = tuple(replace(w, eviction=PRUNED) if w.name == one else w for w in SPARES)
    story = make_story(workers, prompt=LONG)
    story.served(story.ask(prompt=LONG))


def test_on_one_worker_blocks_are_shared(make_story: MakeStory) -> None:
    story = make_story(pruned((spec(X0, P, M),)), gateway_site="urumqi", prompt=LONG)
    summary = story.served(story.ask(route=Route.LOCAL, prompt=LONG))
    assert summary.kv_bytes_wire == 0
    assert story.world.workers[X0].engine.kept().evicted_tokens > 0


def test_the_same_prompt_again_finds_what_was_whole(make_story: MakeStory) -> None:
    story = make_story(pruned(SPARES), prompt=LONG)
    first = story.ask(prompt=LONG)
    story.served(first)
    arrived = replace(first.ask.arrived, request="b")
    again = story.world.ask(Ask(at=story.world.now, arrived=arrived))
    story.served(again)
    assert again.ids == first.ids


@pytest.mark.parametrize("name", [P0, R0, M0])
@pytest.mark.parametrize("phase", [Phase.PREFILL, Phase.RELAY])
def test_a_worker_is_lost(make_story: MakeStory, name: str, phase: Phase) -> None:
    story = make_story(pruned(SPARES), prompt=LONG)
    client = story.ask(prompt=LONG)
    story.reach(phase)
    story.kill(name)
    story.served(client)


def test_main_is_lost_after_the_handoff(make_story: MakeStory) -> None:
    story = make_story(pruned(SPARES), prompt=LONG)
    client = story.ask(prompt=LONG, limit=80)
    story.reach(Phase.MAIN, tokens=50)
    story.kill(M0)
    story.served(client, limit=80)


@pytest.mark.parametrize("seed", range(12))
def test_random_faults(seed: int) -> None:
    case = case_of(seed)
    tight = replace(PRUNED, budget=0.5, slack=4, recent=4)
    setup = replace(case.setup, workers=pruned(case.setup.workers, tight))
    world = play(replace(case, setup=setup))
    assert check(world) == []


def test_the_books_follow_what_is_kept(make_story: MakeStory) -> None:
    """A prompt of 200 tokens of which 40 are kept: the gateway gives the rest to others."""
    story = make_story(pruned(SPARES), prompt=LONG)
    client = story.ask(prompt=LONG)
    story.reach(Phase.MAIN, tokens=20)
    views = story.machine.ctx.world.workers
    booked = sorted(b.tokens for view in views.values() for b in view.bookings.values())
    assert booked
    assert booked[-1] <= 50
    story.served(client)
