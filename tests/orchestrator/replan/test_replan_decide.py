"""New roles if they are worth it, and as few workers as possible that change."""

import pytest

from orchestrator.plan.assignment import Assignment, Post
from orchestrator.replan.decide import Case, Decision, decide, rate_of, roles_of
from orchestrator.replan.seen import WorkerSeen, problem_seen
from tests.orchestrator.replan.worlds import FAR, NEAR, RATE, M, P, R, base, crew, seen
from workers.api.messages import Role


def decided(workers: tuple[WorkerSeen, ...], *, rate: float = RATE, gain: float = 0.15) -> Decision:
    world = seen(workers, rate=rate)
    return decide(Case(base=base(), seen=world, why=("because",), gain=gain))


def after(workers: tuple[WorkerSeen, ...], decision: Decision) -> tuple[WorkerSeen, ...]:
    """The workers with the roles that were decided."""
    new = {change.worker: change.after for change in decision.changes}
    return tuple(
        WorkerSeen(name=w.name, site=w.site, pool=w.pool, roles=new.get(w.name, w.roles))
        for w in workers
    )


def test_a_line_at_a_tenth_makes_each_site_serve_by_itself() -> None:
    workers = NEAR + FAR
    decision = decided(workers, rate=RATE / 10)
    assert [change.worker for change in decision.changes] == ["near/compute/1", "far/memory/1"]
    changed = after(workers, decision)
    assert [worker.roles for worker in changed] == [{P}, {M}, {M}, {P}]
    problem = problem_seen(base(), seen(rate=RATE / 10))
    assert rate_of(problem, workers) == pytest.approx(decision.rate_before)
    assert rate_of(problem, changed) == pytest.approx(decision.rate_after)
    assert decision.rate_after > 2 * decision.rate_before
    assert decision.text.startswith("because: near/compute/1 prefill > main, far/memory/1 main > p")


def test_what_was_decided_is_decided_once() -> None:
    """In the same world the new roles are the best, and so are the old ones in theirs."""
    workers = NEAR + FAR
    for rate in (RATE / 10, RATE):
        workers = after(workers, decided(workers, rate=rate))
        again = decided(workers, rate=rate)
        assert again.changes == ()
        assert "roles stay" in again.text


def test_a_small_gain_is_not_worth_it() -> None:
    workers = NEAR + FAR
    gain = decided(workers, rate=RATE / 10)
    needed = gain.rate_after / gain.rate_before - 1
    assert decided(workers, rate=RATE / 10, gain=needed + 0.01).changes == ()
    assert decided(workers, rate=RATE / 10, gain=needed - 0.01).changes != ()


@pytest.mark.parametrize("left", [NEAR, FAR])
def test_a_site_that_is_left_alone_prefills_and_decodes(left: tuple[WorkerSeen, ...]) -> None:
    decision = decided(left)
    assert len(decision.changes) == 1
    assert {role for worker in after(left, decision) for role in worker.roles} == {P, M}
    assert decision.rate_before == 0.0
    assert decision.rate_after > 0.0


def test_a_worker_that_is_left_alone_takes_every_role() -> None:
    decision = decided(FAR[:1])
    assert [change.after for change in decision.changes] == [frozenset(Role)]
    assert decision.text == (
        "because: far/memory/0 main > prefill+relay+main; nothing keeps the goal, so everybody "
        "takes what comes"
    )
    assert decided(after(FAR[:1], decision)).changes == ()


def test_workers_with_several_roles_count_as_what_suits_best() -> None:
    every = crew("near/compute", (P, R, M), (P, M)) + crew("far/memory", (P, M), (M,))
    single = after(NEAR + FAR, decided(NEAR + FAR, rate=RATE / 10))
    problem = problem_seen(base(), seen(every, rate=RATE / 10))
    assert rate_of(problem, every) == pytest.approx(rate_of(problem, single))
    assert decided(every, rate=RATE / 10).changes == ()


def post(pool: str, prefill: int = 0, relay: int = 0, main: int = 0) -> Post:
    return Post(pool=pool, parallel=1, prefill=prefill, relay=relay, main=main)


def test_those_who_do_it_already_go_on() -> None:
    workers = crew("a/x", (M,), (P,), (P, M), (R,), (M,)) + crew("b/y", (P,))
    assignment = Assignment(posts=(post("a/x", prefill=2, main=2), post("b/y", prefill=1)))
    roles = roles_of(workers, assignment)
    assert roles == {
        "a/x/0": {M},
        "a/x/1": {P},
        "a/x/2": {P},
        "a/x/4": {M},
        "b/y/0": {P},
    }, "the relay is not needed, and stays what it is"


def test_the_rest_takes_what_is_left() -> None:
    workers = crew("a/x", (M,), (M,), (M,))
    assert roles_of(workers, Assignment(posts=(post("a/x", prefill=1, relay=1, main=1),))) == {
        "a/x/0": {M},
        "a/x/1": {P},
        "a/x/2": {R},
    }
