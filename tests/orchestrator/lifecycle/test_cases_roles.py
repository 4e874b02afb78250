"""Workers whose roles change while requests run: a drain of one role, and nothing is lost."""

from collections.abc import Callable

from orchestrator.lifecycle.phases import Phase
from orchestrator.state.actions import FinishReason
from orchestrator.state.events import RolesTold
from tests.orchestrator.lifecycle.machine_rig import (
    MAIN,
    SPARES,
    TWO_SITES,
    M,
    MachineRig,
    P,
    R,
    Role,
    finished,
    starts,
    stops,
    worker_up,
)

MakeRig = Callable[..., MachineRig]


def told(rig: MachineRig, worker: str, *roles: Role) -> list[tuple[Role, str]]:
    """The legs that are started because of it."""
    actions = rig.tell(RolesTold(worker=worker, roles=frozenset(roles)))
    assert stops(actions) == set(), "nobody's leg ends because of it"
    return starts(actions)


def test_new_legs_follow_the_new_roles(make_rig: MakeRig) -> None:
    rig = make_rig(SPARES)
    assert told(rig, "p0", R) == told(rig, "r0", P) == told(rig, "m0", R) == []
    assert starts(rig.arrive("first")) == [(P, "p1"), (R, "p0"), (M, "m1")]
    assert starts(rig.arrive("second")) == [(P, "r0"), (R, "r1"), (M, "m1")]


def test_a_leg_of_a_role_that_is_gone_goes_on_to_its_end(rig: MachineRig) -> None:
    """Drain and flip: main's worker prefills from now on, and finishes what it decodes."""
    rig.to_phase(Phase.MAIN)
    told(rig, "m0", P)
    told(rig, "p0", M)
    assert starts(rig.arrive("next")) == [(P, "m0"), (M, "p0")]
    rig.name = "a"
    law = len(rig.law)
    assert finished(rig.run(MAIN, law, *range(200, 240 - law)), FinishReason.LENGTH)


def test_a_replacement_keeps_to_the_roles_of_now(make_rig: MakeRig) -> None:
    rig = make_rig(SPARES)
    rig.to_phase(Phase.PREFILL)
    told(rig, "m1", P)
    told(rig, "r1", P, M)
    actions = rig.lose("p0")
    assert starts(actions)[0] in [(P, "p1"), (P, "r1"), (P, "m1")]
    rig.run(rig.legs()["prefill"], 0, 10)
    assert rig.req.main is not None
    assert rig.req.main.worker != "m1"


def test_whoever_waits_is_let_in_by_a_new_role(make_rig: MakeRig) -> None:
    rig = make_rig(TWO_SITES, slots=1)
    rig.arrive("first")
    assert starts(rig.arrive("waits")) == []
    rig.tell(worker_up("x0", "shenzhen", (R,)))
    assert told(rig, "x0", R, P) == [], "it can prefill, but nobody decodes"
    assert told(rig, "x0", P, M) == [(P, "x0"), (M, "x0")]


def test_with_nobody_left_in_a_role_any_worker_serves(rig: MachineRig) -> None:
    told(rig, "m0", P)
    placed = starts(rig.arrive())
    assert {role for role, _ in placed} >= {P, M}


def test_the_same_roles_again_are_no_change(rig: MachineRig) -> None:
    told(rig, "p0", P)
    assert rig.counts["roles_changed"] == 0
    told(rig, "p0", M)
    told(rig, "p0", M)
    assert rig.counts["roles_changed"] == 1


def test_a_worker_that_comes_up_again_has_the_roles_it_says(make_rig: MakeRig) -> None:
    rig = make_rig(SPARES)
    told(rig, "p0", M)
    rig.tell(rig.machine.ctx.world.workers["p0"].up)
    assert (P, "p0") in starts(rig.arrive())
