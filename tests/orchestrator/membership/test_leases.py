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


def report(*workers: WorkerReport, epoch: int = 1, site: str = "hami") -> Report:
    return Report(site=site, agent_epoch=epoch, workers={w.name: w for w in workers})


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
