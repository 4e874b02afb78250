"""Whole stories on the virtual deployment: workers that die or stall at a phase.

Each ends with the right tokens, every leg stopped, every booking returned, no KV held anywhere:
`faults.checks.check`. How soon a loss is noticed is `membership.reach`'s doing.
"""

import pytest

from orchestrator.lifecycle.phases import Phase
from orchestrator.state.actions import Fail, Failure
from orchestrator.state.config import Deadlines
from orchestrator.state.events import HandoffMode, Reconnected, Route, WorkerLost
from orchestrator.virtual.client import Client
from tests.orchestrator.virtual.stories.story_world import (
    ANYWHERE,
    GATEWAY,
    HAMI,
    M0,
    M1,
    ONE_EACH,
    P0,
    R0,
    R1,
    SHENZHEN,
    SPARES,
    TWO_SITES,
    URUMQI,
    X0,
    M,
    MakeStory,
    P,
    R,
    Story,
    slow_main,
    spec,
    waits,
)
from workers.api.messages import SendKV, TokenRun

# ---------------------------------------------------------------- how soon it is noticed


@pytest.mark.parametrize(("worker", "most_s"), [(M0, 0.3), (P0, 0.4)])
def test_a_killed_worker_is_noticed_soon(make_story: MakeStory, worker: str, most_s: float) -> None:
    """The stream breaks; two more are refused, a quarter of a second apart."""
    story = make_story()
    story.kill(worker)
    killed_at = story.world.now
    story.wait(2.0)
    lost = [(at, e.worker) for at, e in story.events() if isinstance(e, WorkerLost)]
    assert [name for _, name in lost] == [worker]
    assert lost[0][0] - killed_at < most_s


# ---------------------------------------------------------------- what dies


def test_prefill_dies_before_the_first_token(make_story: MakeStory) -> None:
    story = make_story(prefill_tokens_per_s=100.0)
    client = story.ask(prompt=100)
    story.reach(Phase.PREFILL)
    story.wait(0.5)
    story.kill(story.worker_of(P))
    story.served(client)


@pytest.mark.parametrize("route", [Route.RELAY, Route.DIRECT, Route.LOCAL])
def test_prefill_dies_while_transferring(make_story: MakeStory, route: Route) -> None:
    story = make_story(TWO_SITES if route is Route.LOCAL else SPARES, kv_s=2.0)
    client = story.ask(route=route)
    story.until(lambda: story.law() >= 1)
    story.kill(story.worker_of(P), back_after=2.0)
    story.served(client)


def test_relay_dies_before_the_kv_has_landed(make_story: MakeStory) -> None:
    story = make_story(kv_s=3.0, prompt=64)
    client = story.ask(prompt=64)
    story.reach(Phase.RELAY, tokens=10)
    story.kill(R0)
    assert story.served(client).sites["relay"] == R1
    assert waits(client) < 1.0


def test_relay_dies_when_the_kv_is_nearly_there(make_story: MakeStory) -> None:
    story = make_story(kv_s=1.4, prompt=64)
    client = story.ask(prompt=64)
    story.reach(Phase.RELAY, tokens=15)
    story.kill(R0)
    assert story.served(client).sites["relay"] == R0
    assert story.counts["relay_lost"] == 1


def test_relay_dies_after_the_kv_has_landed(make_story: MakeStory) -> None:
    story = make_story(slow_main(SPARES))
    client = story.ask()
    story.reach(Phase.RACE)
    story.kill(R0)
    story.served(client)
    assert waits(client) < 1.0


def test_relay_dies_when_the_law_equals_the_cover(make_story: MakeStory) -> None:
    """After a restart main imports prompt + law; the relay dies before it has added a token."""
    story = make_story(kv_s=0.5)
    client = story.ask()
    story.reach(Phase.MAIN, tokens=10)
    story.kill(M0)

    def again() -> bool:
        relay = story.request().leg(R)
        return relay is not None and relay.cover == story.law() > 0

    story.until(again)
    story.kill(story.worker_of(R))
    story.served(client)


def test_a_refilled_token_arrives_while_the_relay_is_the_authority(make_story: MakeStory) -> None:
    """The prefill's own run is held up on the way; the relay has the law's KV and goes on."""
    story = make_story(kv_s=3.0, gateway_site=HAMI)
    client = story.ask(limit=160)
    story.reach(Phase.MAIN, tokens=80)
    story.kill(M0)
    story.until(lambda: story.request().leg(P) is not None)
    prefill = story.request().leg(P)
    refilled = story.law()
    story.drop(
        lambda worker, message: (
            isinstance(message, TokenRun)
            and message.epoch == prefill.epoch
            and story.law() < refilled + 3
        )
    )
    story.reach(Phase.RELAY, tokens=refilled + 5)
    assert not prefill.produced
    story.until(lambda: prefill.produced)
    assert story.request().authority.role is R
    story.served(client, limit=160)
    assert story.counts["duplicate_runs"] > 0


def test_main_dies_before_the_handoff(make_story: MakeStory) -> None:
    story = make_story(kv_s=2.0)
    client = story.ask()
    story.reach(Phase.RELAY, tokens=5)
    story.kill(M0)
    summary = story.served(client)
    assert summary.sites["main"] == M1
    assert waits(client) < 0.2  # nobody noticed
    assert summary.recoveries == 1


def test_main_dies_and_comes_back_while_the_relay_decodes(make_story: MakeStory) -> None:
    """No other main: the relay goes on, and hands over once main is there again."""
    story = make_story(ONE_EACH, kv_s=1.0)
    client = story.ask(limit=120)
    story.reach(Phase.RELAY, tokens=5)
    story.kill(M0, back_after=1.5)
    assert story.served(client, limit=120).handoff_index is not None


def test_main_dies_after_the_handoff(make_story: MakeStory) -> None:
    story = make_story()
    client = story.ask()
    story.reach(Phase.MAIN, tokens=30)
    story.kill(M0)
    assert story.served(client).recoveries == 1
    assert waits(client) < 1.0


def test_a_second_relay_holds_back_no_more_than_a_cut_needs(make_story: MakeStory) -> None:
    """After main was lost: a relay of 20 ms must not be slowed to a main of 50."""
    workers = [spec(w.name, *w.roles, step_s=0.02 if w.site == HAMI else 0.05) for w in SPARES]
    story = make_story(workers, kv_s=1.0, gateway_site=HAMI)
    client = story.ask(limit=150)
    story.reach(Phase.MAIN, tokens=60)
    story.kill(story.worker_of(M))
    story.reach(Phase.RELAY, tokens=100)
    assert story.law() - len(client.ids) <= 6
    story.served(client, limit=150)
    assert waits(client) < 1.0


def test_main_dies_just_after_its_first_acceptance(make_story: MakeStory) -> None:
    """Every other leg was stopped a moment ago."""
    story = make_story()
    client = story.ask()
    story.reach(Phase.MAIN)
    story.kill(M0)
    story.served(client)


def test_main_freezes_just_after_its_first_acceptance(make_story: MakeStory) -> None:
    """Nothing at all is heard of it: the worker is lost, and with it all its legs."""
    story = make_story(deadlines=Deadlines(silence=2.0, request=120.0))
    client = story.ask()
    story.reach(Phase.MAIN)
    story.freeze(M0, 30.0)
    assert story.served(client).sites["main"] == M1
    assert story.counts["workers_lost"] == story.counts["main_lost"] == 1
    assert waits(client) < 2.5


def test_main_is_heard_and_brings_no_tokens(make_story: MakeStory) -> None:
    """The worker is there, its leg is stuck: only that leg is given up."""
    story = make_story(deadlines=Deadlines(silence=2.0, request=120.0))
    client = story.ask()
    story.reach(Phase.MAIN)
    story.drop(lambda worker, message: worker == M0 and isinstance(message, TokenRun))
    assert story.served(client).sites["main"] == M1
    assert story.counts["workers_lost"] == 0
    assert story.counts["main_late"] == 1
    assert waits(client) < 2.5


def reach_cut(story: Story) -> Client:
    client = story.ask(handoff=HandoffMode.ONE_SHOT, limit=60)
    story.reach(Phase.CUT)
    return client


def test_main_dies_in_the_cut(make_story: MakeStory) -> None:
    story = make_story(slow_main(SPARES), gateway_site=HAMI)
    client = reach_cut(story)
    story.kill(M0)
    story.served(client, limit=60)
    assert story.counts["resumed"] == 1
    assert waits(client) < 0.6


def test_main_freezes_in_the_cut(make_story: MakeStory) -> None:
    deadlines = Deadlines(cut=1.0, request=120.0)
    story = make_story(slow_main(SPARES), deadlines=deadlines, gateway_site=HAMI)
    client = reach_cut(story)
    story.freeze(M0, 30.0)
    assert story.served(client, limit=60).sites["main"] == M1
    assert story.counts["resumed"] == 1


def test_relay_dies_in_the_cut(make_story: MakeStory) -> None:
    story = make_story(slow_main(SPARES), gateway_site=HAMI)
    client = reach_cut(story)
    story.kill(R0)
    story.served(client, limit=60)


def test_relay_and_main_die_together(make_story: MakeStory) -> None:
    story = make_story()
    client = story.ask()
    story.reach(Phase.RACE)
    story.kill(R0)
    story.kill(M0)
    story.served(client)


def test_everything_dies_and_comes_back(make_story: MakeStory) -> None:
    story = make_story(TWO_SITES, kv_s=0.3)
    client = story.ask()
    story.reach(Phase.MAIN, tokens=20)
    for worker in TWO_SITES:
        story.kill(worker.name, back_after=4.0)
    story.served(client)


def test_everything_dies_for_good(make_story: MakeStory) -> None:
    story = make_story(TWO_SITES)
    client = story.ask()
    story.reach(Phase.RELAY, tokens=5)
    for worker in TWO_SITES:
        story.kill(worker.name)
    story.settle()
    assert isinstance(client.end, Fail)
    assert client.end.failure is Failure.UNAVAILABLE
    assert client.ended_at is not None
    assert client.ended_at - client.asked_at < 15


def test_a_restarted_worker_has_lost_its_legs(make_story: MakeStory) -> None:
    story = make_story()
    client = story.ask()
    story.reach(Phase.MAIN, tokens=20)
    story.kill(M0, back_after=0.6)
    story.served(client)
    assert story.counts["main_lost"] == 1


# ---------------------------------------------------------------- what stalls


def test_kv_path_stalled_the_relay_finishes(make_story: MakeStory) -> None:
    story = make_story(kv_s=300.0, deadlines=Deadlines(kv=2.0, request=120.0))
    story.world.trouble(0.0)  # a line that is too slow costs main legs
    client = story.ask(limit=80)
    assert story.served(client, limit=80).handoff_index is None
    assert story.counts["kv_late"] >= 1
    assert waits(client) < 0.2


def test_kv_failed_the_relays_copy_is_sent(make_story: MakeStory) -> None:
    """The prefill and main do not reach each other; everybody else does.

    The transport looks for a way for half a minute; the relay decodes all the while.
    """
    story = make_story(kv_s=1.0)
    client = story.ask(limit=1000)
    story.reach(Phase.RELAY, tokens=3)
    story.cut(P0, M0, 100.0)
    index = story.served(client, limit=1000).handoff_index
    assert index is not None
    assert client.times[index] - client.asked_at < 35
    assert story.counts["kv_failed"] == 1
    assert set(story.counts) & {"main_lost", "prefill_lost", "relay_lost", "kv_late"} == set()
    sources = {message.epoch for _, _, message in story.sent() if isinstance(message, SendKV)}
    assert sources == {0, 1}
    assert waits(client) < 0.2


def test_a_whole_site_is_unreachable(make_story: MakeStory) -> None:
    """Its token streams are waited for to the legs' deadlines, then another site serves."""
    deadlines = Deadlines(prefill=3.0, silence=3.0, first_token=3.0, kv=3.0, request=120.0)
    story = make_story((*SPARES, ANYWHERE), deadlines=deadlines, kv_s=20.0)
    client = story.ask()
    story.reach(Phase.RELAY, tokens=5)
    for other in (SHENZHEN, URUMQI):
        story.cut(HAMI, other, 40.0)
    assert story.served(client).sites["main"] in (M0, M1, X0)
    assert story.counts["workers_lost"] == 4
    assert client.ended_at is not None
    assert client.ended_at - client.asked_at < 30


def test_mains_site_is_unreachable_from_the_gateway_after_the_handoff(
    make_story: MakeStory,
) -> None:
    story = make_story(deadlines=Deadlines(silence=2.0, request=120.0), gateway_site=HAMI)
    client = story.ask()
    story.reach(Phase.MAIN, tokens=20)
    story.cut(M0, GATEWAY, 15.0)
    assert story.served(client).sites["main"] == M1
    assert story.counts["workers_lost"] == story.counts["main_lost"] == 1
    assert waits(client) < 2.5


@pytest.mark.parametrize("worker", [P0, R0, M0])
@pytest.mark.parametrize("phase", [Phase.PREFILL, Phase.RELAY, Phase.RACE, Phase.MAIN])
def test_a_broken_token_stream_is_reconnected(
    make_story: MakeStory, worker: str, phase: Phase
) -> None:
    """What was said meanwhile is asked for from the next index."""
    story = make_story(slow_main(ONE_EACH), prefill_tokens_per_s=100.0)
    client = story.ask()
    story.reach(phase)
    story.break_stream(worker)
    story.cut(worker, GATEWAY, 0.4)
    summary = story.served(client)
    assert sum(isinstance(event, Reconnected) for _, event in story.events()) == 1
    assert waits(client) < 1.2
    assert summary.recoveries == 0


@pytest.mark.parametrize("worker", [P0, R0, M0])
@pytest.mark.parametrize("phase", [Phase.PREFILL, Phase.RELAY, Phase.RACE, Phase.CUT, Phase.MAIN])
def test_a_worker_freezes_for_a_while(make_story: MakeStory, worker: str, phase: Phase) -> None:
    story = make_story(slow_main(SPARES), handoff=HandoffMode.ONE_SHOT, prefill_tokens_per_s=100.0)
    client = story.ask()
    story.reach(phase)
    story.freeze(worker, 3.0)
    story.served(client)
    assert waits(client) < 3.2
