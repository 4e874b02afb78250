"""Whole stories at sites with stores of KV blocks, and of stores that die, freeze, lie or are late.

Each ends with the right tokens and nothing held: `faults.checks.check`.
"""

from dataclasses import replace
from random import Random

import pytest

from orchestrator.state.events import Arrived, Heard, Route, StoreHolds
from orchestrator.virtual.client import Client
from orchestrator.virtual.setup import Ask
from orchestrator.virtual.stores.store import StoreSpec, VirtualStore
from tests.orchestrator.virtual.stories.story_world import (
    HAMI,
    M0,
    ONE_EACH,
    P0,
    SHENZHEN,
    M,
    MakeStory,
    P,
    Story,
    spec,
)
from workers.api.messages import TokenRun
from workers.streams.packed import unpacked

BLOCK_BYTES = 16 * 16
NEAR, FAR = "hami/prefill/store", "shenzhen/main/store"
STORES = (StoreSpec(site=HAMI, pool="prefill"), StoreSpec(site=SHENZHEN, pool="main"))
PROMPT = 161  # ten whole blocks before its last token


def stored(make_story: MakeStory, **fields: object) -> Story:
    """Two sites with a store each; a line that a prompt's KV needs two seconds for."""
    return make_story(
        **{
            "workers": ONE_EACH,
            "stores": STORES,
            "kv_s": 2.0,
            "prompt": PROMPT,
            "prefill_tokens_per_s": 200.0,
            **fields,
        }
    )


TEXT, OTHER = (tuple(range(first, first + PROMPT)) for first in (500, 5000))


def ask(
    story: Story,
    name: str = "a",
    route: Route | None = Route.DIRECT,
    text: tuple[int, ...] = TEXT,
) -> Client:
    """The same prompt every time, whatever the request is called."""
    arrived = Arrived(request=name, prompt_ids=text, limit=40, route=route)
    return story.world.ask(Ask(at=story.world.now, arrived=arrived))


def cached(story: Story, request: str) -> int:
    """How much of its prompt its prefill found."""
    runs = [
        message
        for _, event in story.events()
        if isinstance(event, Heard)
        for message in unpacked(event.message)
        if isinstance(message, TokenRun) and message.request == request and message.epoch == 0
    ]
    return max(run.cached or 0 for run in runs)


def counts(store: VirtualStore) -> dict[str, int]:
    told: dict[str, int] = store.blocks.account()["counts"]
    return told


def reborn(story: Story, *names: str) -> None:
    """Workers that have forgotten everything."""
    for name in names:
        story.kill(name, back_after=0.5)
    story.wait(4.0)


def slow(store: StoreSpec) -> StoreSpec:
    """So slow that a load of ten blocks takes a quarter of a second."""
    return replace(store, bytes_per_s=10 * BLOCK_BYTES / 0.25)


def test_what_a_worker_has_forgotten_its_sites_store_has(make_story: MakeStory) -> None:
    story = stored(make_story)
    first = ask(story)
    story.served(first)
    reborn(story, P0, M0)
    assert any(isinstance(event, StoreHolds) and event.added for _, event in story.events())
    again = ask(story, "b")
    story.served(again)
    assert again.ids == first.ids
    assert cached(story, "b") == 160
    assert first.times[0] - first.asked_at > 0.8  # 161 tokens, 200 a second
    assert again.times[0] - again.asked_at < 0.2
    # Main's site has what it was sent the first time: its line was not needed.
    assert counts(story.world.stores[FAR])["hits_dram"] >= 10
    assert again.times[1] - again.times[0] < 0.3 < first.times[1] - first.times[0]


def test_hits_outlive_every_process(make_story: MakeStory) -> None:
    story = stored(make_story)
    first = ask(story)
    story.served(first)
    for name in (NEAR, FAR):
        story.world.kill_store(name, back_after=0.2)
    reborn(story, P0, M0)
    again = ask(story, "b")
    story.served(again)
    assert (again.ids, cached(story, "b")) == (first.ids, 160)


@pytest.mark.parametrize("accident", ["killed", "frozen", "late", "cut"])
def test_a_store_that_does_not_answer_costs_no_more_than_computing(
    make_story: MakeStory, accident: str
) -> None:
    story = stored(make_story)
    first = ask(story)
    story.served(first)
    reborn(story, P0, M0)
    for name in (NEAR, FAR):
        store = story.world.stores[name]
        if accident == "killed":
            story.world.kill_store(name, back_after=100.0)
        elif accident == "frozen":
            story.world.freeze(store.process, 30.0)
        elif accident == "late":
            story.world.delay_store(name, 20.0, 30.0)
        else:
            for worker in (P0, M0):
                story.cut(worker, name, 30.0)
    again = ask(story, "b")
    story.served(again)
    assert again.ids == first.ids
    assert cached(story, "b") == 0
    # It may wait for its store as long as it would compute, and then computes.
    computed_s = first.times[0] - first.asked_at
    assert again.times[0] - again.asked_at < 2.5 * computed_s + 0.1


def test_a_store_that_is_too_slow_is_waited_for_once(make_story: MakeStory) -> None:
    """Nobody has measured it yet, so it is tried; what came in time says how slow it is."""
    slowest = tuple(replace(store, bytes_per_s=10 * BLOCK_BYTES / 8.0) for store in STORES)
    story = stored(make_story, stores=slowest)
    for name, text in (("a", TEXT), ("b", OTHER)):
        story.served(ask(story, name, text=text))
    reborn(story, P0, M0)
    for name, text in (("c", TEXT), ("d", OTHER)):
        story.served(ask(story, name, text=text))
    counted = story.world.workers[P0].storage.counts
    assert counted["loads_cut"] == 1
    assert counted["not_worth_loading"] >= 10


def test_a_store_that_lies_is_not_believed(make_story: MakeStory) -> None:
    """Bits turn over in what it holds: what came before the first of them is used, no more."""
    story = stored(make_story)
    first = ask(story)
    story.served(first)
    reborn(story, P0, M0)
    for name in (NEAR, FAR):
        story.world.stores[name].damage(Random(3), 0.3)
    again = ask(story, "b")
    story.served(again)
    assert again.ids == first.ids
    assert cached(story, "b") < 160
    assert story.world.workers[P0].storage.counts["corrupt"] == 1


def test_a_store_that_dies_while_a_leg_waits_for_it(make_story: MakeStory) -> None:
    story = stored(make_story, stores=tuple(map(slow, STORES)))
    first = ask(story)
    story.served(first)
    reborn(story, P0, M0)
    again = ask(story, "b")
    story.wait(0.05)
    story.world.kill_store(NEAR, back_after=1.0)
    story.served(again)
    assert again.ids == first.ids


def test_a_client_that_leaves_while_blocks_come_leaves_nothing(make_story: MakeStory) -> None:
    story = stored(make_story, stores=tuple(map(slow, STORES)))
    story.served(ask(story))
    reborn(story, P0, M0)
    ask(story, "b")
    story.wait(0.06)
    story.world.leave("b")
    story.wait(1.0)
    assert story.all_idle()
    assert story.world.workers[P0].engine.kv_held_tokens() == 0


@pytest.mark.parametrize(("stores", "where"), [((), "shenzhen/both/0"), (STORES[:1], P0)])
def test_the_router_goes_where_a_store_has_the_prompt(
    make_story: MakeStory, stores: tuple[StoreSpec, ...], where: str
) -> None:
    """Either site could serve all of it, and no worker has seen it: the first was started anew."""
    workers = (spec(P0, P, M), spec("shenzhen/both/0", P, M))
    story = stored(make_story, workers=workers, stores=stores, gateway_site=SHENZHEN)
    story.kill("shenzhen/both/0", back_after=6.0)
    story.wait(1.0)
    story.served(ask(story, route=Route.LOCAL))
    reborn(story, P0)
    story.wait(5.0)
    summary = story.served(ask(story, "b", route=None))
    assert summary.sites["prefill"] == where
