"""News of workers become the machine's events."""

from dataclasses import replace

import pytest

from orchestrator.membership.members import Members, SiteState
from orchestrator.membership.reach import CameBack, CameUp, Lost
from orchestrator.membership.reports import Hello
from orchestrator.state.events import (
    Event,
    Heard,
    Reconnected,
    RolesTold,
    WorkerDraining,
    WorkerLost,
    WorkerReturned,
    WorkerUp,
)
from workers.api.messages import Landed, Load, Pause, Role, Stop

NAME = "hami/relay/0"
ROLES = frozenset({Role.RELAY})
HELLO = Hello(
    worker=NAME,
    incarnation="first",
    pid=100,
    slots=4,
    max_context=512,
    kv_total_tokens=2048,
    kv_bytes_per_token=128,
)
UP = WorkerUp(
    worker=NAME,
    site="hami",
    pool="relay",
    roles=ROLES,
    slots=4,
    max_context=512,
    kv_total_tokens=2048,
    kv_bytes_per_token=128,
)
LOAD = Load(
    worker=NAME,
    running=0,
    prefill_tokens=0,
    kv_free_tokens=2048,
    kv_total_tokens=2048,
    kv_held_tokens=0,
    step_s=0.01,
    prefill_tokens_per_s=100.0,
)
LANDED = Landed(request="r", epoch=1, covered=0)
PAUSE, STOP = Pause(request="r", epoch=1, seq=1), Stop(request="r", epoch=1)
LOST: list[Event] = [WorkerLost(worker=NAME, reason="silent")]


@pytest.fixture
def members() -> Members:
    members = Members(frozenset({NAME}))
    assert members.join(NAME, "hami", "relay", ROLES)
    return members


def test_a_worker_joins_once(members: Members) -> None:
    assert not members.join(NAME, "hami", "relay", ROLES)
    assert list(members.by_name) == [NAME]


def test_up_back_and_lost(members: Members) -> None:
    assert members.learn(NAME, CameUp(hello=HELLO)) == [UP]
    assert members.learn(NAME, CameBack()) == [Reconnected(worker=NAME)]
    members.heard(NAME, [LOAD])
    assert members.by_name[NAME].load == LOAD
    assert members.learn(NAME, Lost(reason="silent")) == LOST
    assert (members.by_name[NAME].hello, members.by_name[NAME].load) == (None, None)


def test_what_it_says_is_told_in_order(members: Members) -> None:
    assert members.heard(NAME, [LANDED, LOAD]) == [
        Heard(worker=NAME, message=LANDED),
        Heard(worker=NAME, message=LOAD),
    ]


def test_draining_is_told_once_and_again_to_a_machine_that_forgot(members: Members) -> None:
    draining: list[Event] = [WorkerDraining(worker=NAME)]
    members.learn(NAME, CameUp(hello=HELLO))
    assert members.drain(NAME) == draining
    assert members.drain(NAME) == []
    members.learn(NAME, Lost(reason="silent"))
    assert members.learn(NAME, CameUp(hello=HELLO)) == [replace(UP, draining=True)]
    assert members.revive(NAME) == [WorkerReturned(worker=NAME)]
    assert members.revive(NAME) == []


def test_a_revival_of_what_is_not_up_is_told_by_its_hello(members: Members) -> None:
    members.drain(NAME)
    assert members.revive(NAME) == []
    assert members.learn(NAME, CameUp(hello=HELLO)) == [UP]


def test_given_roles_are_told_once_and_outlast_a_restart(members: Members) -> None:
    main = frozenset({Role.MAIN})
    members.learn(NAME, CameUp(hello=HELLO))
    assert members.give_roles(NAME, main) == [RolesTold(worker=NAME, roles=main)]
    assert members.give_roles(NAME, main) == []
    assert not members.join(NAME, "hami", "relay", ROLES), "what its agent says counts once"
    members.learn(NAME, Lost(reason="killed"))
    assert members.learn(NAME, CameUp(hello=HELLO)) == [replace(UP, roles=main)]


def test_roles_of_what_is_not_up_are_told_by_its_hello(members: Members) -> None:
    main = frozenset({Role.MAIN})
    assert members.give_roles(NAME, main) == members.give_roles("nobody", main) == []
    assert members.learn(NAME, CameUp(hello=HELLO)) == [replace(UP, roles=main)]


def test_who_leaves_is_lost_and_what_comes_late_is_nothing(members: Members) -> None:
    members.learn(NAME, CameUp(hello=HELLO))
    assert members.remove(NAME) == [WorkerLost(worker=NAME, reason="it left")]
    assert members.remove(NAME) == []
    assert members.learn(NAME, CameUp(hello=HELLO)) == []
    assert members.heard(NAME, [LOAD]) == []
    assert members.drain(NAME) == members.revive(NAME) == []
    assert members.join(NAME, "hami", "relay", ROLES), "it may come again, and is new"


def test_only_what_frees_memory_is_sent_to_a_worker_that_is_not_up(members: Members) -> None:
    def deliverable() -> tuple[bool, bool]:
        return members.deliverable(NAME, PAUSE), members.deliverable(NAME, STOP)

    assert deliverable() == (False, True)
    members.learn(NAME, CameUp(hello=HELLO))
    assert deliverable() == (True, True)
    members.drain(NAME)
    assert deliverable() == (True, True), "what it has goes on"
    members.learn(NAME, Lost(reason="silent"))
    assert deliverable() == (False, True)
    members.remove(NAME)
    assert deliverable() == (False, False)


def test_ready_when_all_were_up_and_while_one_is(members: Members) -> None:
    assert members.why_not_ready() == f"waiting for workers: {NAME}"
    members.learn(NAME, CameUp(hello=HELLO))
    assert members.why_not_ready() == f"waiting for workers: {NAME}", "it has not yet said a word"
    members.heard(NAME, [LOAD])
    assert members.why_not_ready() is None
    members.drain(NAME)
    assert members.why_not_ready() == "no worker is up"
    members.revive(NAME)
    assert members.why_not_ready() is None
    members.learn(NAME, Lost(reason="silent"))
    assert members.why_not_ready() == "no worker is up"


def test_a_sites_state_is_that_of_its_best_worker() -> None:
    members = Members(frozenset({NAME}), ["hami", "shenzhen"])
    assert [members.site_state(site) for site in members.sites] == [SiteState.LOST] * 2
    members.join(NAME, "hami", "relay", ROLES)
    members.join("hami/relay/1", "hami", "relay", ROLES)
    assert members.site_state("hami") is SiteState.LOST
    members.learn(NAME, CameUp(hello=HELLO))
    assert members.site_state("hami") is SiteState.UP
    members.drain(NAME)
    assert members.site_state("hami") is SiteState.DRAINING
    members.stand("hami", drained=True)
    assert members.site_state("hami") is SiteState.DRAINING
    members.remove(NAME)
    assert members.site_state("hami") is SiteState.DRAINED
    members.stand("hami", drained=False)
    assert members.site_state("hami") is SiteState.LOST


def test_nobody_waits_for_the_workers_of_a_drained_site() -> None:
    members = Members(frozenset({NAME, "shenzhen/q/0"}), ["hami", "shenzhen"])
    members.stand("shenzhen", drained=True)
    assert members.why_not_ready() == f"waiting for workers: {NAME}"
    members.join(NAME, "hami", "relay", ROLES)
    members.learn(NAME, CameUp(hello=HELLO))
    members.heard(NAME, [LOAD])
    assert members.why_not_ready() is None
    members.stand("shenzhen", drained=False)
    assert members.why_not_ready() == "waiting for workers: shenzhen/q/0"


def test_roles_that_an_agent_reports_anew_hold_until_others_are_given(members: Members) -> None:
    members.learn(NAME, CameUp(hello=HELLO))
    main, both = frozenset({Role.MAIN}), frozenset({Role.MAIN, Role.RELAY})
    assert members.reported(NAME, ROLES) == []
    assert members.give_roles(NAME, main) == [RolesTold(worker=NAME, roles=main)]
    assert members.reported(NAME, ROLES) == [], "it said so before"
    assert members.reported(NAME, both) == [RolesTold(worker=NAME, roles=both)]
    assert members.by_name[NAME].roles == both
