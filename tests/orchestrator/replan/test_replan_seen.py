"""What the core knows, as the planner wants it."""

from dataclasses import replace

import pytest

from orchestrator.replan.seen import RECALL_S, LineSeen, as_told, problem_seen, see
from orchestrator.replan.window import FEW, LATELY_S, MOST, Window
from orchestrator.state.links import LinkView, Measured
from orchestrator.state.views import WorkerView, World
from tests.orchestrator.lifecycle.machine_rig import worker_up
from tests.orchestrator.replan.worlds import FAR, NEAR, RATE, M, P, base, seen
from workers.api.messages import Role


def world(now: float = 100.0) -> World:
    made = World(gateway_site="far", now=now)
    for name, pool, role in (
        ("near/compute/0", "compute", P),
        ("near/compute/1", "compute", P),
        ("far/memory/0", "memory", M),
    ):
        up = replace(worker_up(name, name.split("/")[0], (role,)), pool=pool)
        made.workers[name] = WorkerView(up=up)
    for ends in (("near", "far"), ("far", "near")):
        made.links[ends] = LinkView(0.02, RATE)
    return made


def test_who_takes_legs_and_in_which_roles() -> None:
    there = world()
    there.workers["near/compute/0"].draining = True
    there.workers["far/memory/0"].roles = frozenset({P, M})
    found = see(there, base(), None)
    assert {worker.name: worker.roles for worker in found.workers} == {
        "near/compute/1": {P},
        "far/memory/0": {P, M},
    }
    assert found.per_pool == {"near/compute": 1, "far/memory": 1}
    assert found.classes == base().classes
    assert found.lines == {"near-far": LineSeen(bytes_per_s=RATE, delay_s=0.01)}


@pytest.mark.parametrize(
    ("measured", "believed"),
    [
        ({("near", "far"): 2e8}, 2e8),
        ({("near", "far"): 3e8, ("far", "near"): 2e8}, 2e8),  # the slower of both ways
        ({("near", "far"): 5e9}, RATE),  # never more than was told
    ],
)
def test_a_line_is_as_it_was_measured(
    measured: dict[tuple[str, str], float], believed: float
) -> None:
    there = world()
    for ends, rate in measured.items():
        there.links[ends].seen_goodput = Measured(rate, 90.0)
    assert see(there, base(), None).lines["near-far"].bytes_per_s == believed


def test_a_line_that_is_avoided_is_remembered_for_a_while() -> None:
    """The router forgets sooner, so that it is tried; roles would flap with it."""
    there = world()
    link = there.links["near", "far"]
    link.seen_goodput = Measured(RATE / 10, 100.0)
    there.now = 100.0 + RECALL_S
    assert link.goodput_bytes_per_s(there.now) == RATE
    assert see(there, base(), None).lines["near-far"].bytes_per_s == RATE / 10
    there.now += 1.0
    assert see(there, base(), None).lines["near-far"].bytes_per_s == RATE


def test_the_way_is_as_long_as_was_measured() -> None:
    there = world()
    there.links["near", "far"].seen_rtt = Measured(0.2, 99.0)
    assert see(there, base(), None).lines["near-far"].delay_s == pytest.approx(0.1)


def test_the_problem_is_of_what_is_there() -> None:
    problem = problem_seen(base(), seen(NEAR[:1] + FAR, rate=RATE / 10, delay_s=0.05, prompt=7))
    assert [(pool.name, pool.chips, pool.shapes[0].most) for pool in problem.pools] == [
        ("near/compute", 1, 1),
        ("far/memory", 2, 2),
    ]
    assert all(pool.roles == frozenset(Role) for pool in problem.pools)
    assert (problem.lines[0].bytes_per_s, problem.lines[0].delay_s) == (RATE / 10, 0.05)
    assert problem.classes[0].prompt == 7
    assert problem.demand is None
    assert [pool.name for pool in problem_seen(base(), seen(FAR)).pools] == ["far/memory"]


def test_coded_and_raw_bytes_of_a_line() -> None:
    (line,) = base().lines
    coded = replace(base(), lines=(replace(line, bytes_per_s=1.5e9, wire_ratio=1.5),))
    told = as_told(coded, seen(rate=1.0)).lines["near-far"]
    assert told.bytes_per_s == RATE
    problem = problem_seen(coded, seen(rate=RATE / 10))
    assert problem.lines[0].bytes_per_s == pytest.approx(1.5e8)


def test_a_window_says_nothing_of_a_few() -> None:
    window = Window()
    for number in range(FEW):
        assert window.classes(float(number)) is None
        window.ended(float(number), prompt=1000, output=100, hit=200)
    classes = window.classes(FEW)
    assert classes is not None
    assert [(kind.prompt, kind.output, kind.hit) for kind in classes] == [(1000, 100, 200)]
    assert classes[0].rate == pytest.approx(1.0, rel=0.03)
    assert window.classes(LATELY_S + 10) is None, "those before are long ago"


def test_a_window_forgets_what_is_too_much() -> None:
    window = Window()
    for number in range(2 * MOST):
        window.ended(number / 1000, prompt=10 if number < MOST else 1000, output=5, hit=0)
    classes = window.classes(2.0)
    assert classes is not None
    assert {kind.prompt for kind in classes} == {1000}
