"""What an agent makes of its workers' words and silences."""

from typing import Any

import pytest

from orchestrator.membership.inventory import (
    RENEW_MOST_S,
    RENEW_S,
    START_S,
    Assigned,
    Description,
    Drain,
    Order,
    Phase,
    Place,
    Remove,
    Renewals,
    SiteInventory,
)
from orchestrator.membership.reports import WorkerState, read_report
from orchestrator.membership.standing import Standing
from workers.api.messages import Role

A, B = "hami/p/0", "hami/p/1"
NOBODY = "its process does not answer"


def inventory(*names: str) -> SiteInventory:
    return SiteInventory(
        "hami",
        [Assigned(name=name, pool="p", roles=(Role.PREFILL,)) for name in names or (A,)],
        front="127.0.0.1:7",
        epoch=3,
        start_s=START_S,
        now=0.0,
    )


def said(phase: str, reason: str | None = None, draining: bool = False) -> Description:
    return Description(
        http="127.0.0.1:1",
        kv="127.0.0.1:2",
        phase=Phase(phase),
        reason=reason,
        draining=draining,
        info={"pid": 7} if phase == "serving" else None,
    )


def of(site: SiteInventory, name: str = A) -> tuple[str, str | None]:
    """A worker's state and reason, as they are reported."""
    worker = next(w for w in site.report("renewed")["workers"] if w["name"] == name)
    return worker["state"], worker["reason"]


# What brings a new worker into each state.
WAYS: dict[str, list[Any]] = {
    "starting": [],
    "up": ["serving"],
    "restarting": ["serving", "silence"],
    "draining": ["serving", "drain"],
    "failed": ["failed"],
    "drained": ["serving", "drain", "ended"],
}


def tell(site: SiteInventory, what: str, now: float) -> list[Order]:
    if what == "silence":
        return site.unanswered(A, None, now)
    if what == "drain":
        return site.drain([A])
    phase, _, draining = what.partition(" ")
    return site.described(A, said(phase, draining=draining == "draining"), now)


def brought(state: str) -> SiteInventory:
    site = inventory()
    site.begin([], None)
    for what in WAYS[state]:
        tell(site, what, 1.0)
    assert of(site)[0] == state
    return site


REMOVE, DRAIN = [Remove(worker=A)], [Drain(worker=A)]


@pytest.mark.parametrize(
    ("state", "what", "then", "orders"),
    [
        ("starting", "loading", "starting", []),
        ("starting", "silence", "starting", []),
        ("starting", "serving", "up", []),
        ("starting", "serving draining", "draining", []),  # another agent had told it
        ("starting", "failed", "failed", REMOVE),
        ("starting", "ended", "drained", REMOVE),
        ("starting", "drain", "draining", DRAIN),
        ("up", "loading", "restarting", []),
        ("up", "silence", "restarting", []),
        ("up", "serving", "up", []),
        ("up", "serving draining", "draining", []),  # a signal had told it
        ("up", "failed", "failed", REMOVE),
        ("up", "ended", "drained", REMOVE),
        ("up", "drain", "draining", DRAIN),
        ("restarting", "loading", "restarting", []),
        ("restarting", "silence", "restarting", []),
        ("restarting", "serving", "up", []),
        ("restarting", "failed", "failed", REMOVE),
        ("restarting", "drain", "draining", DRAIN),
        ("draining", "loading", "drained", REMOVE),  # another process: nothing left to drain
        ("draining", "silence", "draining", []),
        ("draining", "serving draining", "draining", []),
        ("draining", "serving", "draining", DRAIN),  # the order was lost
        ("draining", "failed", "failed", REMOVE),
        ("draining", "ended", "drained", REMOVE),
        ("draining", "drain", "draining", DRAIN),
        *(("failed", what, "failed", []) for what in ("serving", "silence", "ended", "drain")),
        *(("drained", what, "drained", []) for what in ("serving", "silence", "failed", "drain")),
    ],
)
def test_transitions(state: str, what: str, then: str, orders: list[Order]) -> None:
    site = brought(state)
    assert tell(site, what, 2.0) == orders
    assert of(site)[0] == then
    assert site.watched == ([] if then in ("failed", "drained") else [A])


def test_the_ways_lead_everywhere() -> None:
    assert WAYS.keys() == set(WorkerState)


def test_what_runs_is_adopted_and_the_rest_placed() -> None:
    site = inventory(A, B)
    assert site.begin([A], None) == [Place(worker=B)]
    site.placed(B, "127.0.0.1:3", "127.0.0.1:4")
    site.described(A, said("serving"), 1.0)
    first, second = site.report("renewed")["workers"]
    assert (first["http"], first["kv"]) == ("127.0.0.1:1", "127.0.0.1:2")
    assert first["roles"] == ["prefill"], "as it is told, whatever its process was"
    assert (second["http"], second["kv"], second["state"]) == (
        "127.0.0.1:3",
        "127.0.0.1:4",
        "starting",
    )


def test_no_room_fails_what_would_be_placed_and_leaves_what_runs() -> None:
    site = inventory(A, B)
    assert site.begin([A], "its nodes hold 1 workers") == []
    assert site.watched == [A]
    assert of(site, B) == ("failed", "its nodes hold 1 workers")
    assert site.report("renewed")["refusal"] == "its nodes hold 1 workers"


def test_no_room_matters_to_nobody_when_all_run() -> None:
    site = inventory(A, B)
    assert site.begin([A, B], "its nodes hold 1 workers") == []
    assert site.watched == [A, B]
    assert site.report("renewed")["refusal"] is None


@pytest.mark.parametrize(("what", "reason"), [("loading", "loading model"), ("silence", NOBODY)])
def test_what_is_not_up_in_time_has_failed_and_says_of_what(what: str, reason: str) -> None:
    site = brought("up")  # at 1.0
    assert tell(site, what, 1.0 + START_S) == []
    assert of(site) == ("restarting", reason)
    assert tell(site, what, 1.5 + START_S) == REMOVE
    assert of(site) == ("failed", f"not up within 180 s: {reason}")


def test_a_drained_worker_that_never_answers_again_is_drained() -> None:
    """Else it would be reported as draining for ever."""
    site = brought("draining")
    assert tell(site, "silence", 1.0 + START_S) == []
    assert tell(site, "silence", 1.5 + START_S) == REMOVE
    assert of(site) == ("drained", None)


def test_patience_begins_anew_when_it_served() -> None:
    site = brought("up")
    tell(site, "silence", 100.0)
    tell(site, "serving", 150.0)
    assert tell(site, "silence", 150.0 + START_S) == []


def test_reasons() -> None:
    site = inventory()
    site.begin([], None)
    assert of(site) == ("starting", None)
    site.unanswered(A, "no node with label site=hami", 1.0)
    assert of(site) == ("starting", "no node with label site=hami")
    site.described(A, said("serving", "the engine makes no progress"), 2.0)
    assert of(site) == ("up", "the engine makes no progress")
    site.described(A, said("serving"), 3.0)
    assert of(site) == ("up", None)
    site.described(A, said("failed", "port 1 is in use"), 4.0)
    assert of(site) == ("failed", "port 1 is in use")


@pytest.mark.parametrize("state", WAYS)
def test_gateways_can_read_the_report(state: str) -> None:
    report = read_report(brought(state).report("renewed"))
    assert (report.site, report.agent_epoch) == ("hami", 3)
    assert report.workers[A].state is WorkerState(state)


def test_only_the_workers_of_this_site_can_be_drained() -> None:
    site = inventory(A, B)
    site.begin([A, B], None)
    assert site.drain([B, "mars/p/0"]) == [Drain(worker=B)]
    assert site.names == [A, B]


def test_a_gateway_that_is_away_is_asked_less_often() -> None:
    renewals = Renewals()
    assert renewals.state == "not yet renewed"
    waits = [renewals.failed("ConnectError: refused") for _ in range(4)]
    assert waits == [2 * RENEW_S, 4 * RENEW_S, RENEW_MOST_S, RENEW_MOST_S]
    assert renewals.state == "ConnectError: refused"
    assert renewals.renewed() == RENEW_S
    assert renewals.state == "renewed"
    assert renewals.failed("again") == 2 * RENEW_S


AWAY, BACK = Standing(version=1, drained=True), Standing(version=2)
RENEW = Standing(version=1, replace=frozenset({A}))
PLACE = [Place(worker=A)]


@pytest.mark.parametrize(
    ("state", "standing", "then", "orders"),
    [
        *((s, AWAY, "draining", DRAIN) for s in ("starting", "up", "restarting", "draining")),
        *((s, AWAY, s, []) for s in ("failed", "drained")),
        *((s, RENEW, "draining", DRAIN) for s in ("up", "draining")),
        *((s, RENEW, s, []) for s in ("starting", "restarting")),  # that is under way
        *((s, RENEW, "starting", PLACE) for s in ("failed", "drained")),
    ],
)
def test_what_is_wanted_of_a_site(
    state: str, standing: Standing, then: str, orders: list[Order]
) -> None:
    site = brought(state)
    assert not site.drained
    assert site.told(standing, 2.0) == orders
    assert of(site)[0] == then
    assert site.told(standing, 3.0) == [], "it is no news"
    told = site.report("renewed")["standing"]
    assert told == {"version": 1, "drained": standing.drained, "replace": []}
    assert site.drained == (standing.drained and then in ("failed", "drained"))


def test_a_drained_site_has_its_workers_again_when_those_that_run_have_ended() -> None:
    site = inventory(A, B)
    site.begin([A, B], None)
    for name in (A, B):
        site.described(name, said("serving"), 1.0)
    assert site.told(AWAY, 2.0) == [Drain(worker=A), Drain(worker=B)]
    assert site.described(A, said("ended"), 3.0) == REMOVE
    assert not site.drained, "one still runs"
    assert site.told(BACK, 4.0) == [Place(worker=A), Drain(worker=B)]
    assert (of(site, A)[0], of(site, B)[0]) == ("starting", "draining")
    assert site.described(B, said("ended"), 5.0) == [Remove(worker=B), Place(worker=B)]
    assert site.told(AWAY, 6.0) == [], "an older word comes late"
    assert of(site, B) == ("starting", None)


def test_a_replaced_worker_is_back_and_stays_away_if_its_site_drains_meanwhile() -> None:
    site = brought("up")
    assert site.told(RENEW, 2.0) == DRAIN
    assert tell(site, "ended", 3.0) == REMOVE + PLACE
    assert tell(site, "silence", 2.5 + START_S) == [], "patience began anew"
    assert tell(site, "serving", 4.0) == []
    assert of(site)[0] == "up"
    assert site.told(Standing(version=2, replace=frozenset({A})), 5.0) == DRAIN
    assert site.told(Standing(version=3, drained=True), 6.0) == DRAIN
    assert tell(site, "ended", 7.0) == REMOVE
    assert of(site)[0] == "drained"
    assert site.drained


def test_what_does_not_fit_is_not_placed_because_somebody_wants_it() -> None:
    site = inventory()
    site.begin([], "its nodes hold 0 workers")
    assert site.told(RENEW, 1.0) == []
    assert of(site) == ("failed", "its nodes hold 0 workers")


def assigned(*names: str, role: Role = Role.PREFILL) -> list[Assigned]:
    return [Assigned(name=name, pool="p", roles=(role,)) for name in names]


def test_a_site_that_is_to_have_other_workers() -> None:
    site = inventory(A, B)
    site.begin([A, B], None)
    for name in (A, B):
        site.described(name, said("serving"), 1.0)
    new = "hami/p/2"
    assert site.follow(assigned(A, new), [], 2.0) == [Drain(worker=B), Place(worker=new)]
    assert site.names == [A, B, new], "it is forgotten when it has ended"
    assert (of(site, B)[0], of(site, new)[0]) == ("draining", "starting")
    assert site.described(B, said("ended"), 3.0) == [Remove(worker=B)]
    assert (site.names, site.watched) == ([A, new], [A, new])
    assert site.follow(assigned(A, new, role=Role.MAIN), [], 4.0) == [], "roles need no process"
    assert {tuple(w["roles"]) for w in site.report("renewed")["workers"]} == {("main",)}


CHANGED: dict[str, tuple[str, list[Order]]] = {
    "starting": ("starting", REMOVE + PLACE),
    "restarting": ("starting", REMOVE + PLACE),
    "up": ("draining", DRAIN),
    "draining": ("draining", DRAIN),
    "failed": ("starting", PLACE),
    "drained": ("starting", PLACE),
}


@pytest.mark.parametrize("state", CHANGED)
def test_a_changed_worker_is_another_process(state: str) -> None:
    then, orders = CHANGED[state]
    site = brought(state)
    assert site.follow(assigned(A), [A], 2.0) == orders
    assert of(site)[0] == then
    if then == "draining":
        assert tell(site, "ended", 3.0) == REMOVE + PLACE


def test_who_goes_and_comes_back_meanwhile_is_placed_again() -> None:
    site = brought("up")
    assert site.follow([], [], 2.0) == DRAIN
    assert site.told(RENEW, 2.5) == DRAIN, "it is still to be forgotten"
    assert site.follow(assigned(A), [], 3.0) == []
    assert tell(site, "ended", 4.0) == REMOVE + PLACE
    site = brought("drained")
    assert site.follow([], [], 2.0) == []
    assert site.names == []


def test_who_fails_instead_of_ending_is_replaced_or_forgotten_all_the_same() -> None:
    site = brought("starting")
    site.told(AWAY, 2.0)
    site.told(BACK, 2.5)
    assert tell(site, "failed", 3.0) == REMOVE + PLACE
    assert of(site) == ("starting", None)
    site = brought("starting")
    assert site.follow([], [], 2.0) == DRAIN
    assert tell(site, "failed", 3.0) == REMOVE
    assert site.names == []


def test_a_drained_site_places_what_it_was_told_meanwhile_when_it_is_back() -> None:
    site = brought("up")
    site.told(AWAY, 2.0)
    assert site.follow(assigned(A, B), [A], 3.0) == []
    assert of(site, B)[0] == "drained"
    assert tell(site, "ended", 4.0) == REMOVE
    assert site.drained
    assert site.told(BACK, 5.0) == [Place(worker=A), Place(worker=B)]
