"""Whole stories of KV between prefill and decode that ends badly: none is stranded, nobody waits.

What users of other engines suffer from; `tests.test_complaints` has the list.
"""

import pytest

from orchestrator.state.actions import Finish
from orchestrator.state.config import Deadlines
from orchestrator.state.events import Heard, Route
from orchestrator.virtual.client import Client
from tests.orchestrator.virtual.stories.story_world import (
    M0,
    ONE_EACH,
    P0,
    SPARES,
    M,
    MakeStory,
    P,
    Story,
    waits,
)
from workers.api.messages import Landed, Refused, Start

FREE_S = 1.0


def fill_with_strangers(story: Story, worker: str, most: int = 8) -> None:
    """Another gateway's legs take a worker's slots: the books of ours do not know."""
    for number in range(most):
        foreign = Start(
            request=f"foreign{number}",
            epoch=0,
            gateway="other",
            role=M,
            prompt_ids=(1, 2, 3),
            limit=5,
            reserve=8,
        )
        story.world.workers[worker].take((foreign,), "other")


def refusals(story: Story) -> int:
    heard = [event for _, event in story.events() if isinstance(event, Heard)]
    return sum(isinstance(event.message, Refused) for event in heard)


@pytest.mark.parametrize("route", [Route.DIRECT, Route.RELAY])
def test_prefilled_kv_is_not_stranded_when_decode_refuses(
    make_story: MakeStory, route: Route
) -> None:
    """No decode worker has a slot, for as long as the request may take: its prefill is free soon
    after, though nobody ever fetched its KV.
    """
    story = make_story(ONE_EACH, deadlines=Deadlines(queue=3.0, request=20.0))
    fill_with_strangers(story, M0)
    client = story.ask(route=route)
    story.until(lambda: client.ended_at is not None)
    assert refusals(story) > 0
    story.wait(FREE_S)
    for worker in (P0, "hami/relay/0"):
        engine = story.world.workers[worker].engine
        assert engine.kv_held_tokens() == 0, worker


def test_prefilled_kv_is_not_stranded_when_the_client_leaves_before_it_is_fetched(
    make_story: MakeStory,
) -> None:
    story = make_story(ONE_EACH, kv_s=30.0)
    story.ask(route=Route.DIRECT)
    story.until(lambda: story.law() >= 1)
    held = story.world.workers[P0].engine
    assert held.kv_held_tokens() > 0
    story.world.leave("a")
    story.wait(FREE_S)
    assert held.kv_held_tokens() == 0
    assert story.all_idle()


@pytest.mark.parametrize("route", [Route.DIRECT, Route.RELAY])
def test_a_failed_prefill_does_not_leave_decode_waiting(
    make_story: MakeStory, route: Route
) -> None:
    """It dies before its first token, and while its KV is on its way."""
    for kv_s, tokens in ((0.2, 0), (2.0, 1)):
        story = make_story(SPARES, kv_s=kv_s, prefill_tokens_per_s=40.0)
        client = story.ask(route=route)
        story.until(lambda story=story, tokens=tokens: story.law() >= tokens)
        story.wait(0.2)
        story.kill(story.worker_of(P))
        story.served(client)
        assert client.ended_at is not None
        assert client.ended_at - client.asked_at < 10.0, "seconds, not minutes"


def test_a_wrong_id_in_a_notification_leaks_nothing(make_story: MakeStory) -> None:
    """Main says `landed` of a leg that nobody knows, and of an older one; and its gateway stops
    legs that do not exist. What is real goes on, and is free in the end.
    """
    story = make_story(SPARES, kv_s=2.0)
    client = story.ask(route=Route.DIRECT)
    story.until(lambda: story.law() >= 1)
    main = story.worker_of(M)
    for request, epoch in (("a", 77), ("nobody", 0), ("a", 0)):
        story.gateway.heard(main, (Landed(request=request, epoch=epoch, covered=0),))
    assert story.world.workers[main].engine.kv_held_tokens() > 0
    summary = story.served(client)
    assert summary.recoveries == 0
    story.wait(FREE_S)
    assert story.all_idle()


def test_a_steady_load_goes_on_as_it_began(make_story: MakeStory) -> None:
    """A few requests a second, for five minutes: no wait grows, nothing is left.

    Each is relayed and handed over to main, so each moves KV twice.
    """
    story = make_story(kv_s=0.05, prefill_tokens_per_s=2000.0)
    clients: list[Client] = []
    every_s, seconds = 0.5, 300.0
    for number in range(int(seconds / every_s)):
        clients.append(story.ask(f"q{number}", limit=8))
        story.wait(every_s)
    story.settle()
    assert all(isinstance(client.end, Finish) for client in clients)
    assert all(len(client.ids) == 8 for client in clients)
    minute = int(60 / every_s)
    early, late = (
        max(waits(client) for client in part) for part in (clients[:minute], clients[-minute:])
    )
    assert late <= 1.5 * early
    assert story.all_idle()
    assert story.machine.requests == {}
