"""Whole stories on the virtual deployment: routes, losses on the way, ends, numerics.

Each ends with the right tokens, every leg stopped, every booking returned, no KV held anywhere:
`faults.checks.check`.
"""

from dataclasses import replace

import pytest

from orchestrator.lifecycle.phases import Phase
from orchestrator.state.actions import Finish
from orchestrator.state.events import HandoffMode, Heard, Route
from orchestrator.virtual.setup import Ask
from tests.orchestrator.virtual.stories.story_world import (
    M0,
    M1,
    P0,
    R0,
    SPARES,
    TWO_SITES,
    X0,
    M,
    MakeStory,
    P,
    slow_main,
    spec,
    waits,
)
from workers.api.messages import Feed, Landed, SendKV, Start, TokenRun
from workers.streams.packed import unpacked

# ---------------------------------------------------------------- routes


@pytest.mark.parametrize("route", Route)
@pytest.mark.parametrize("handoff", HandoffMode)
def test_every_route_and_mode(make_story: MakeStory, route: Route, handoff: HandoffMode) -> None:
    story = make_story(TWO_SITES, handoff=handoff)
    summary = story.served(story.ask(route=route))
    assert summary.route is route
    assert (summary.relay_tokens > 0) is (route is Route.RELAY)


def test_local_on_one_worker_moves_no_kv(make_story: MakeStory) -> None:
    story = make_story((spec(X0, P, M),), gateway_site="urumqi")
    summary = story.served(story.ask(route=Route.LOCAL))
    assert summary.sites == {"prefill": X0, "main": X0}
    assert summary.kv_bytes_wire == 0
    assert story.world.workers[X0].kv.sent_bytes == 0


def test_local_on_two_workers_of_a_site(make_story: MakeStory) -> None:
    main = "hami/main/0"
    story = make_story((spec(P0, P), spec(main, M)), gateway_site="hami")
    summary = story.served(story.ask(route=Route.LOCAL))
    assert summary.sites == {"prefill": P0, "main": main}
    assert summary.kv_bytes_wire > 0


def test_a_full_hit_at_main_needs_no_relay(make_story: MakeStory) -> None:
    story = make_story(prompt=64)
    first = story.ask(prompt=64)
    story.served(first)
    arrived = replace(first.ask.arrived, request="b")
    again = story.world.ask(Ask(at=story.world.now, arrived=arrived))
    summary = story.served(again)
    assert summary.relay_tokens == 0
    assert again.ids == first.ids


# ---------------------------------------------------------------- what is lost on the way


@pytest.mark.parametrize("nth", [0, 1, 2, 5])
@pytest.mark.parametrize("worker", [P0, R0, M0])
def test_a_lost_token(make_story: MakeStory, worker: str, nth: int) -> None:
    story = make_story()
    story.drop_once(TokenRun, worker, nth=nth)
    client = story.ask()
    story.served(client)
    assert waits(client) < 1.3


@pytest.mark.parametrize("nth", [0, 1, 2, 20])
def test_a_lost_feed(make_story: MakeStory, nth: int) -> None:
    story = make_story(slow_main(SPARES))
    story.drop_once(Feed, M0, nth=nth)
    client = story.ask()
    story.served(client)
    assert waits(client) < 0.2


def test_the_relays_lost_feed_of_token_0(make_story: MakeStory) -> None:
    story = make_story()
    story.drop_once(Feed, R0)
    story.served(story.ask())


@pytest.mark.parametrize("kind", [Start, SendKV])
@pytest.mark.parametrize("worker", [P0, R0, M0])
def test_control_arrives_late_and_in_another_order(
    make_story: MakeStory, kind: type, worker: str
) -> None:
    """KV, feed and sendkv before start."""
    story = make_story(kv_s=0.05)
    story.drop(lambda where, message: where == worker and isinstance(message, kind))
    story.served(story.ask())


@pytest.mark.parametrize("worker", [R0, M0])
def test_tokens_before_landed(make_story: MakeStory, worker: str) -> None:
    story = make_story(kv_s=0.05)
    story.delay(Landed, worker, 0.3)
    story.served(story.ask())
    told = [
        type(message)
        for _, event in story.events()
        if isinstance(event, Heard) and event.worker == worker
        for message in unpacked(event.message)
    ]
    assert told.index(TokenRun) < told.index(Landed)


@pytest.mark.parametrize("worker", [R0, M0])
def test_the_word_that_kv_landed_is_lost_with_its_stream(
    make_story: MakeStory, worker: str
) -> None:
    """Nobody asks for it: it is said again to the next stream."""
    story = make_story(kv_s=0.05)
    story.drop_once(Landed, worker)
    client = story.ask()
    story.served(client)
    assert waits(client) < 1.3
    assert any(isinstance(e, Heard) and isinstance(e.message, Landed) for _, e in story.events())


def test_stop_before_start(make_story: MakeStory) -> None:
    story = make_story()
    story.drop(lambda where, message: isinstance(message, Start))
    story.ask()
    story.world.leave("a")
    story.wait(5.0)
    assert story.all_idle()


def test_everything_twice_in_any_order(make_story: MakeStory) -> None:
    story = make_story(jitter_s=0.2, seed=3)
    story.world.network.accidents.repeated = 1.0
    story.world.network.accidents.delay_s = 0.2
    story.served(story.ask())


# ---------------------------------------------------------------- the end


@pytest.mark.parametrize("phase", [Phase.PREFILL, Phase.RELAY, Phase.RACE, Phase.CUT, Phase.MAIN])
def test_client_gone_all_kv_is_free_within_a_second(make_story: MakeStory, phase: Phase) -> None:
    story = make_story(
        slow_main(SPARES), handoff=HandoffMode.ONE_SHOT, prefill_tokens_per_s=100.0, prompt=60
    )
    story.ask(prompt=60)
    story.reach(phase)
    story.until(lambda: not story.all_idle())
    story.world.leave("a")
    story.wait(1.0)
    assert [w.engine.kv_held_tokens() for w in story.world.workers.values()] == [0] * len(SPARES)
    assert story.all_idle()


def test_client_gone_main_wait(make_story: MakeStory) -> None:
    story = make_story(kv_s=1.0)
    story.ask(route=Route.DIRECT)
    story.reach(Phase.MAIN_WAIT)
    story.world.leave("a")
    story.wait(1.0)
    assert story.all_idle()


@pytest.mark.parametrize("end_rate", [0.02, 0.2, 1.0])
def test_end_of_text_anywhere(make_story: MakeStory, end_rate: float) -> None:
    story = make_story(end_rate=end_rate)
    clients = [story.ask(f"q{i}", stop_ids=(2,), limit=60) for i in range(12)]
    story.settle()
    assert all(isinstance(client.end, Finish) for client in clients)
    assert any(client.ids[-1] == 2 for client in clients)


@pytest.mark.parametrize("limit", [1, 2, 3, 17, 30])
def test_every_limit(make_story: MakeStory, limit: int) -> None:
    story = make_story(kv_s=0.4)
    story.served(story.ask(limit=limit), limit=limit)


def test_a_stop_string_completed_by_mains_first_token(make_story: MakeStory) -> None:
    story = make_story(handoff=HandoffMode.CATCH_UP, kv_s=0.5)
    first = story.ask()
    index = story.served(first).handoff_index
    assert index is not None
    stop = f"{first.ids[index - 1]},{first.ids[index]}"
    # The same prompt elsewhere, so that nothing is cached and main lands at the same time.
    other = make_story(handoff=HandoffMode.CATCH_UP, kv_s=0.5)
    client = other.ask(stop_strings=(stop,))
    other.settle()
    assert isinstance(client.end, Finish)
    assert (client.end.stop, client.ids) == (stop, first.ids[: index + 1])
    assert client.end.summary.handoff_index == index


# ---------------------------------------------------------------- numerics


@pytest.mark.parametrize("divergence", [10, 3])
@pytest.mark.parametrize("handoff", HandoffMode)
def test_numerics_that_differ_now_and_then(
    make_story: MakeStory, divergence: int, handoff: HandoffMode
) -> None:
    """At one position in ten, and in three, relay and main choose differently."""
    workers = tuple(replace(w, salt=i) for i, w in enumerate(slow_main(SPARES)))
    story = make_story(
        workers, handoff=handoff, divergence=divergence, gateway_site="hami", kv_s=0.05
    )
    clients = [story.ask(f"q{i}", limit=60) for i in range(4)]
    story.settle()
    for client in clients:
        assert isinstance(client.end, Finish)
        assert client.end.summary.handoff_index is not None
        assert len(client.ids) == 60
        assert waits(client) < 0.5
    assert story.counts["diverged_runs"] > 0


@pytest.mark.parametrize("divergence", [10, 3])
def test_the_law_is_a_history_that_some_worker_sampled(
    make_story: MakeStory, divergence: int
) -> None:
    """Every accepted token is what its leg's engine gives after exactly the tokens before it."""
    workers = tuple(replace(w, salt=i) for i, w in enumerate(SPARES))
    story = make_story(workers, divergence=divergence, handoff=HandoffMode.CATCH_UP)
    client = story.ask()
    story.served(client)
    runs = [
        (message.index, message.ids)
        for _, event in story.events()
        if isinstance(event, Heard)
        for message in unpacked(event.message)
        if isinstance(message, TokenRun)
    ]
    for index, token in enumerate(client.ids):
        assert any(
            start <= index < start + len(ids) and ids[index - start] == token for start, ids in runs
        )


def test_a_refused_main_costs_nobody_else_an_attempt(make_story: MakeStory) -> None:
    """M0 has one slot and another gateway's leg in it: the books do not know."""
    workers = tuple(replace(w, slots=1) if w.name == M0 else w for w in SPARES)
    story = make_story(workers)
    foreign = Start(
        request="foreign",
        epoch=0,
        gateway="other",
        role=M,
        prompt_ids=(1, 2, 3),
        limit=5,
        reserve=8,
    )
    story.world.workers[M0].take((foreign,), "other")
    summary = story.served(story.ask())
    assert summary.sites["main"] == M1
    assert summary.recoveries == 0
    assert story.counts["refused"] == 1
    assert story.counts["kv_failed"] == 0
