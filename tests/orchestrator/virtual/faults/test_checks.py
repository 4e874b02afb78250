"""Every promise can be broken: one breach of each kind, planted by hand, is seen and told."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.lifecycle.phases import Phase
from orchestrator.state.actions import Action, Emit, Fail, Failure, Finish, Send
from orchestrator.state.events import Arrived, Event, Ticked, WorkerDraining
from orchestrator.state.links import Transfer
from orchestrator.state.views import Booking
from orchestrator.virtual.client import Client
from orchestrator.virtual.faults.checks import FLOW_S, RESUME_S, check
from orchestrator.virtual.gateway import Entry
from orchestrator.virtual.promises import Promise
from tests.orchestrator.virtual.stories.story_world import M0, M1, P0, R0, M, Story, new_story
from workers.api.info import Part
from workers.api.messages import Role, Start
from workers.engines.base import KVSlice, SeqId

Plant = Callable[[Story], None]


def finished(story: Story) -> Client:
    """A request that was served well in peace."""
    client = story.ask()
    story.served(client)
    story.wait(6.0)
    assert check(story.world) == []
    return client


def answer_once(story: Story, change: Callable[[list[Action]], None]) -> None:
    """The core's next answer is changed on its way out."""
    handle = story.machine.handle

    def changed(event: Event, now: float) -> list[Action]:
        del story.machine.handle  # type: ignore[method-assign]
        actions = handle(event, now)
        change(actions)
        return actions

    story.machine.handle = changed  # type: ignore[method-assign]


def summary_says(client: Client, **fields: int) -> None:
    assert isinstance(client.end, Finish)
    client.end = replace(client.end, summary=replace(client.end.summary, **fields))


# ---------------------------------------------------------------- what clients see


def a_token_is_left_out(story: Story) -> None:
    client = story.ask()
    story.reach(Phase.RELAY, tokens=5)
    at = len(client.ids) + 1
    answer_once(story, lambda actions: actions.append(Emit(request="a", start=at, ids=(5,))))
    story.gateway.tell(Ticked())


def an_emit_without_tokens(story: Story) -> None:
    client = story.ask()
    story.reach(Phase.RELAY, tokens=5)
    at = len(client.ids)
    answer_once(story, lambda actions: actions.append(Emit(request="a", start=at, ids=())))
    story.gateway.tell(Ticked())


def one_token_is_another(story: Story) -> None:
    finished(story).ids[7] ^= 1


def a_token_more_than_the_limit(story: Story) -> None:
    client = finished(story)
    client.ids.append(5)


def one_token_less_than_the_limit(story: Story) -> None:
    del finished(story).ids[-1]


def it_hangs(story: Story) -> None:
    client = finished(story)
    client.end = client.ended_at = None


def it_ends_too_late(story: Story) -> None:
    client = finished(story)
    client.asked_at -= 2 * story.world.setup.core.deadlines.request


FAIL = Fail(request="a", failure=Failure.OVERLOADED, message="once more")


def something_after_the_end(story: Story) -> None:
    finished(story)
    answer_once(story, lambda actions: actions.append(FAIL))
    story.gateway.tell(Ticked())


def something_after_the_client_left(story: Story) -> None:
    story.ask()
    story.reach(Phase.RELAY)
    story.world.leave("a")
    answer_once(story, lambda actions: actions.append(FAIL))
    story.gateway.tell(Ticked())


def the_account_counts_one_more(story: Story) -> None:
    client = finished(story)
    summary_says(client, completion_tokens=len(client.ids) + 1)


def small_accidents_cost_seconds(story: Story) -> None:
    client = finished(story)
    story.world.mild = True
    client.times[-1] += FLOW_S


def a_token_comes_long_after_the_trouble(story: Story) -> None:
    client = finished(story)
    client.times[-1] += RESUME_S


def a_leg_was_lost_in_peace(story: Story) -> None:
    summary_says(finished(story), recoveries=1)


# ---------------------------------------------------------------- what gateways hold


def a_booking_that_nobody_stands_for(story: Story) -> None:
    finished(story)
    view = story.machine.ctx.world.workers[M0]
    view.book(("gone", 0), Booking(role=M, tokens=5))


def bytes_that_nobody_sends(story: Story) -> None:
    finished(story)
    link = story.machine.ctx.world.links["hami", "shenzhen"]
    link.enqueue(("gone", 0), Transfer("w", 5, 0.0))


def a_request_that_stays(story: Story) -> None:
    story.ask()


def a_deadline_cost_a_leg(story: Story) -> None:
    finished(story)
    story.world.mild = True
    story.counts["main_late"] += 1


def an_earlier_process(story: Story) -> None:
    finished(story)
    member = story.gateway.members.by_name[M0]
    assert member.hello is not None
    member.hello = replace(member.hello, incarnation="an earlier one")


def a_deadline_that_has_passed(story: Story) -> None:
    finished(story)
    machine, real = story.machine, story.machine.next_deadline
    answers = iter([story.world.now])

    def lie(actions: list[Action]) -> None:
        machine.next_deadline = lambda: next(answers, real())  # type: ignore[method-assign]

    answer_once(story, lie)
    story.gateway.tell(Ticked())


def a_phase_that_lags(story: Story) -> None:
    story.ask()
    story.reach(Phase.RELAY)
    request = story.request()

    def lag(actions: list[Action]) -> None:
        request.phase = Phase.CUT

    answer_once(story, lag)
    story.wait(0.2)


def the_core_raises(story: Story) -> None:
    finished(story)

    def divide(actions: list[Action]) -> None:
        raise ZeroDivisionError

    answer_once(story, divide)
    story.gateway.tell(Ticked())


def a_worker_raises(story: Story) -> None:
    story.ask()

    def begin(now: float) -> None:
        raise ZeroDivisionError

    story.world.workers[P0].core.begin = begin  # type: ignore[assignment,method-assign]
    story.wait(1.0)
    assert not story.world.workers[P0].process.alive


# ---------------------------------------------------------------- where legs go


def starts(story: Story, role: Role) -> tuple[Entry, int, Any]:
    """The log's entry with a start for this role, and which of its actions it is."""
    for entry in story.gateway.log:
        for number, action in enumerate(entry.actions):
            message = action.message if isinstance(action, Send) else None
            if isinstance(message, Start) and message.role is role:
                return entry, number, action
    raise LookupError(role)


def started_twice(story: Story) -> None:
    finished(story)
    entry, _, start = starts(story, M)
    entry.actions.append(start)


def never_stopped(story: Story) -> None:
    finished(story)
    entry, number, start = starts(story, M)
    entry.actions[number] = replace(start, message=replace(start.message, epoch=77))


def a_relay_at_main(story: Story) -> None:
    finished(story)
    entry, number, start = starts(story, Role.RELAY)
    entry.actions[number] = replace(start, worker=M1)


def nobody_prefills(story: Story) -> None:
    finished(story)
    entry, number, _ = starts(story, Role.PREFILL)
    del entry.actions[number]


def a_start_where_it_drains(story: Story) -> None:
    finished(story)
    draining = Entry(1.5, 1.5, WorkerDraining(worker=P0), [])
    log = story.gateway.log
    log.insert(next(i for i, e in enumerate(log) if isinstance(e.event, Arrived)), draining)


def a_start_after_the_lease(story: Story) -> None:
    story.world.kill_agent("hami", back_after=60.0)
    story.gateway.leases.next_deadline = lambda: None  # type: ignore[method-assign]
    story.wait(20.0)
    story.ask()


def promised_twice(story: Story) -> None:
    view = story.machine.ctx.world.workers[M0]
    much = Booking(role=M, tokens=view.up.kv_total_tokens)
    answer_once(story, lambda actions: view.book(("other", 0), much))
    story.ask()


# ---------------------------------------------------------------- what workers hold

FOREIGN = Start(
    request="foreign", epoch=0, gateway="other", role=M, prompt_ids=(5, 6), limit=5, reserve=8
)


def a_leg_that_nobody_wants(story: Story) -> None:
    finished(story)
    story.world.workers[M0].take((FOREIGN,), "other")


def a_stop_that_is_not_sent(story: Story) -> None:
    story.ask()
    story.reach(Phase.RELAY)
    story.gateway.channels[R0].outbox.put = lambda message: None  # type: ignore[method-assign]
    story.world.leave("a")
    story.wait(2.0)


def a_stream_that_is_open(story: Story) -> None:
    story.ask()
    story.reach(Phase.RELAY)


def a_bit_flips_where_no_checksum_sees_it(story: Story) -> None:
    engine = story.world.workers[P0].engine
    read = engine.read

    def misread(seq: SeqId, layer: int, part: Part, start: int, stop: int) -> KVSlice:
        right = read(seq, layer, part, start, stop)
        data = right.data.copy()
        data.flat[-1] ^= 1
        return replace(right, data=data)

    engine.read = misread  # type: ignore[method-assign]
    story.ask()
    story.wait(3.0)


PLANTS: dict[Promise, tuple[Plant, ...]] = {
    Promise.IN_ORDER: (a_token_is_left_out, an_emit_without_tokens),
    Promise.RIGHT_TOKENS: (
        one_token_is_another,
        a_token_more_than_the_limit,
        one_token_less_than_the_limit,
    ),
    Promise.ENDS: (it_hangs, it_ends_too_late),
    Promise.ENDS_ONCE: (something_after_the_end, something_after_the_client_left),
    Promise.COUNTS: (the_account_counts_one_more,),
    Promise.BOOKS: (
        a_booking_that_nobody_stands_for,
        bytes_that_nobody_sends,
        a_request_that_stays,
    ),
    Promise.INTACT: (a_bit_flips_where_no_checksum_sees_it,),
    Promise.KV_FREE: (a_leg_that_nobody_wants,),
    Promise.FREE_SOON: (a_stop_that_is_not_sent,),
    Promise.STREAMS_END: (a_stream_that_is_open,),
    Promise.STOPPED: (started_twice, never_stopped),
    Promise.NO_STALL: (a_deadline_cost_a_leg,),
    Promise.FLOWS: (small_accidents_cost_seconds,),
    Promise.RESUMES: (a_token_comes_long_after_the_trouble,),
    Promise.KNOWN: (an_earlier_process,),
    Promise.NO_LOSS: (a_leg_was_lost_in_peace,),
    Promise.ROLES: (a_relay_at_main, nobody_prefills),
    Promise.DRAINED: (a_start_where_it_drains,),
    Promise.LEASED: (a_start_after_the_lease,),
    Promise.NOT_OVERBOOKED: (promised_twice,),
    Promise.FUTURE_DEADLINE: (a_deadline_that_has_passed,),
    Promise.PHASES: (a_phase_that_lags,),
    Promise.NO_DEFECT: (the_core_raises, a_worker_raises),
}


def test_there_is_a_plant_for_every_promise() -> None:
    assert set(PLANTS) == set(Promise)


@pytest.mark.parametrize(
    ("promise", "plant"),
    [
        pytest.param(promise, plant, id=plant.__name__)
        for promise, plants in PLANTS.items()
        for plant in plants
    ],
)
def test_a_planted_breach_is_told(promise: Promise, plant: Plant) -> None:
    story = new_story()
    plant(story)
    told = [breach for breach in check(story.world) if breach.promise is promise]
    assert told
    assert all(breach.who and breach.seen for breach in told)
    assert promise.value in str(told[0])


def test_a_client_that_left_or_was_cut_off_is_promised_no_end() -> None:
    story = new_story()
    client = finished(story)
    client.end = client.ended_at = None
    client.left = True
    assert check(story.world) == []
    client.left, client.cut_off = False, True
    assert check(story.world) == []
    client.cut_off = False
    assert [breach.promise for breach in check(story.world)] == [Promise.ENDS]


def test_a_dead_gateways_legs_need_no_stop() -> None:
    """Their lease ends them."""
    story = new_story()
    story.ask(limit=400)
    story.reach(Phase.RELAY)
    story.world.trouble(1.0)
    story.world.kill_gateway(0, back_after=1.0)
    story.settle()
    assert check(story.world) == []
