"""Site leases: what an agent's report, or its silence, does to the workers."""

import pytest

from orchestrator.membership.leases import (
    Change,
    Draining,
    Left,
    Present,
    Serving,
    SiteLeases,
)
from orchestrator.membership.reports import LeaseRefused, Report, WorkerReport, WorkerState
from orchestrator.membership.standing import Standing
from workers.api.messages import Role

LEASE_S = 10.0
A, B, S = "hami/p/0", "hami/p/1", "shenzhen/q/0"


def worker(name: str, state: str = "up", reason: str | None = None) -> WorkerReport:
    return WorkerReport(
        name=name,
        pool=name.split("/")[1],
        roles=frozenset({Role.PREFILL}),
        state=WorkerState(state),
        reason=reason,
        http="127.0.0.1:1",
        kv="127.0.0.1:2",
    )


def report(
    *workers: WorkerReport, epoch: int = 1, site: str = "hami", standing: Standing | None = None
) -> Report:
    return Report(
        site=site,
        agent_epoch=epoch,
        workers={w.name: w for w in workers},
        standing=standing or Standing(),
    )


@pytest.fixture
def leases() -> SiteLeases:
    return SiteLeases(["hami", "shenzhen"], LEASE_S)


MEANING: dict[str, list[Change]] = {
    "starting": [],
    "up": [Present(site="hami", worker=worker(A)), Serving(worker=A)],
    "restarting": [],
    "failed": [Left(worker=A)],
    "draining": [Present(site="hami", worker=worker(A, "draining")), Draining(worker=A)],
    "drained": [Left(worker=A)],
}


@pytest.mark.parametrize(("state", "changes"), MEANING.items())
def test_what_each_state_means(leases: SiteLeases, state: str, changes: list[Change]) -> None:
    """Each time it is reported: what could not be carried out is tried again."""
    for now in (0.0, 1.0):
        assert leases.renew(report(worker(A, state)), now) == changes


def test_every_state_has_a_meaning() -> None:
    assert MEANING.keys() == set(WorkerState)


def test_a_lapse_drains_its_site_only_and_once_and_a_renewal_ends_it(leases: SiteLeases) -> None:
    assert leases.next_deadline() is None
    leases.renew(report(worker(A), worker(B, "restarting")), 0.0)
    leases.renew(report(worker(S), site="shenzhen"), 1.0)
    assert leases.next_deadline() == LEASE_S
    assert leases.expire(LEASE_S - 0.01) == []
    assert leases.expire(LEASE_S) == [Draining(worker=A), Draining(worker=B)]
    assert leases.next_deadline() == 1.0 + LEASE_S
    assert leases.expire(LEASE_S + 0.5) == []
    assert Serving(worker=A) in leases.renew(report(worker(A)), 10.6)
    assert leases.expire(11.0) == [Draining(worker=S)]
    assert leases.expire(20.6) == [Draining(worker=A)], "it can lapse again"
    assert leases.next_deadline() is None


def test_who_is_no_longer_reported_has_left_first_of_all(leases: SiteLeases) -> None:
    leases.renew(report(worker(A), worker(B)), 0.0)
    changes = leases.renew(report(worker(B), epoch=2), 1.0)
    assert changes == [
        Left(worker=A),
        Present(site="hami", worker=worker(B)),
        Serving(worker=B),
    ]


def test_an_older_agent_is_refused_and_changes_nothing(leases: SiteLeases) -> None:
    leases.renew(report(worker(A), epoch=2), 0.0)
    with pytest.raises(LeaseRefused, match="a newer agent of hami holds the lease"):
        leases.renew(report(worker(A, "failed", "gone"), epoch=1), 5.0)
    assert leases.failures() == {}
    assert leases.next_deadline() == LEASE_S, "nor did it renew anything"


def test_a_lapsed_lease_is_free_to_any_agent(leases: SiteLeases) -> None:
    """Else an agent whose machine's clock is behind could never follow another."""
    leases.renew(report(worker(A), epoch=2), 0.0)
    leases.expire(LEASE_S)
    assert Serving(worker=A) in leases.renew(report(worker(A), epoch=1), LEASE_S + 1)
    leases.renew(report(worker(A), epoch=2), LEASE_S + 2)
    with pytest.raises(LeaseRefused):
        leases.renew(report(worker(A), epoch=1), LEASE_S + 3)


def test_a_site_nobody_knows_is_refused(leases: SiteLeases) -> None:
    with pytest.raises(LeaseRefused, match="no site 'mars' in the topology; there are hami, shen"):
        leases.renew(report(site="mars"), 0.0)


def test_failures_are_told_with_their_causes_while_they_are_reported(leases: SiteLeases) -> None:
    leases.renew(report(worker(A, "failed", "no memory"), worker(B, "failed")), 0.0)
    leases.renew(report(worker(S), site="shenzhen"), 0.0)
    assert leases.failures() == {A: "no memory", B: "no reason given"}
    leases.renew(report(worker(A), worker(B, "failed")), 1.0)
    assert leases.failures() == {B: "no reason given"}


def drained(version: int) -> Standing:
    return Standing(version=version, drained=True)


def test_a_drained_site_gets_nothing_new_from_then_on_whatever_is_reported(
    leases: SiteLeases,
) -> None:
    leases.renew(report(worker(A), worker(B)), 0.0)
    assert leases.drain("hami") == [Draining(worker=A), Draining(worker=B)]
    assert leases.standing("hami") == drained(1)
    assert leases.standing("shenzhen") == Standing()
    changes = leases.renew(report(worker(A)), 1.0)  # sent before the agent knew
    assert changes[1:] == [Present(site="hami", worker=worker(A)), Draining(worker=A)]
    assert leases.drain("hami", undo=True) == []
    assert leases.standing("hami") == Standing(version=2)
    assert Draining(worker=A) in leases.renew(
        report(worker(A, "draining"), standing=drained(1)), 2.0
    )
    assert Serving(worker=A) in leases.renew(report(worker(A), standing=Standing(version=2)), 3.0)


def test_another_gateway_learns_it_from_the_agent(leases: SiteLeases) -> None:
    assert Draining(worker=A) in leases.renew(report(worker(A), standing=drained(4)), 0.0)
    assert leases.standing("hami") == drained(4)
    leases.drain("hami", undo=True)
    assert leases.standing("hami") == Standing(version=5), "a later word than all others"
    leases.renew(report(worker(A), standing=drained(5)), 1.0)
    assert leases.standing("hami") == drained(5), "of two with one version the agent's holds"


def test_a_worker_is_to_be_replaced_until_its_agent_has_heard_it(leases: SiteLeases) -> None:
    leases.renew(report(worker(A), worker(B)), 0.0)
    assert leases.replace("hami", A) == [Draining(worker=A)]
    assert leases.replace("hami", B) == [Draining(worker=B)]
    wanted = Standing(version=2, replace=frozenset({A, B}))
    leases.renew(report(worker(A), worker(B), standing=Standing(version=1)), 1.0)
    assert leases.standing("hami") == wanted
    leases.renew(report(worker(A, "draining"), standing=Standing(version=2)), 2.0)
    assert leases.standing("hami") == Standing(version=2), "once only"
    leases.renew(report(worker(A), epoch=2), 3.0)
    assert leases.standing("hami") == Standing(version=2), "what a new agent is told"
