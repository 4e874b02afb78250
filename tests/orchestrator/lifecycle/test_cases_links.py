"""Routes follow what senders measure: events in, the legs that are started out."""

from collections.abc import Callable

import pytest

from orchestrator.state.config import Deadlines
from orchestrator.state.events import Heard, Route
from orchestrator.state.links import FORGOTTEN_S
from tests.orchestrator.lifecycle.machine_rig import (
    MAIN,
    PROMPT,
    M,
    MachineRig,
    P,
    R,
    starts,
    worker_up,
)
from workers.api.messages import KVStats, LinkLoad

MakeRig = Callable[..., MachineRig]
KV = len(PROMPT) * 20_000  # bytes of the prompt
FAST, SLOW = 1e9, 1e4  # bytes/s
BOTH = (("p0", "hami", (P,)), ("r0", "hami", (R,)), ("m0", "shenzhen", (M,)), ("l0", "hami", (M,)))


def sees(rig: MachineRig, worker: str, **seen: object) -> None:
    """A worker of hami reports what it sees of the line to shenzhen."""
    known: dict[str, object] = {
        "site": "shenzhen",
        "goodput_bytes_per_s": SLOW,
        "rtt_s": 0.05,
        "loss": None,
        "queue_bytes": 50_000_000,
        "uncoded_bytes": 0,
        "sent_bytes": 1,
        "resent_bytes": 0,
    }
    link = LinkLoad(**(known | seen))  # type: ignore[arg-type]
    rig.load(worker, step_s=0.05, links=(link,))


def heartbeats(rig: MachineRig, count: int = 2, **seen: object) -> None:
    for _ in range(count):
        rig.now += 1.0
        sees(rig, "p0", **seen)


@pytest.fixture
def choice(make_rig: MakeRig) -> MachineRig:
    """Two mains: one beside the prefill, and a much faster one over a fast line."""
    rig = make_rig(BOTH)
    rig.link(FAST)
    rig.load("l0", step_s=0.2)
    rig.load("m0", step_s=0.02)
    return rig


def main_of(rig: MachineRig, name: str = "a") -> str:
    """Where the router puts a new request's main leg."""
    return dict(starts(rig.arrive(name)))[M]


def test_by_the_topology_the_far_main_is_better(choice: MachineRig) -> None:
    assert main_of(choice) == "m0"


def test_a_slow_line_is_avoided_once_it_is_measured(choice: MachineRig) -> None:
    heartbeats(choice)
    assert main_of(choice) == "l0"


def test_and_is_tried_again_when_the_measurement_is_old(choice: MachineRig) -> None:
    heartbeats(choice)
    assert main_of(choice) == "l0"
    choice.now += FORGOTTEN_S
    sees(choice, "p0", queue_bytes=0)  # it repeats its last estimate, but has not sent since
    assert main_of(choice, "b") == "m0"


def test_an_idle_lines_low_sample_changes_nothing(choice: MachineRig) -> None:
    heartbeats(choice, 5, queue_bytes=400)
    assert main_of(choice) == "m0"


def test_what_other_gateways_have_the_sender_send_is_waited_for(choice: MachineRig) -> None:
    """The line is as fast as the topology says, but very much waits for it."""
    heartbeats(choice, goodput_bytes_per_s=FAST, uncoded_bytes=100 * int(FAST))
    assert main_of(choice) == "l0"


def test_a_lost_workers_measurements_of_the_queue_go_with_it(choice: MachineRig) -> None:
    heartbeats(choice, goodput_bytes_per_s=FAST, uncoded_bytes=100 * int(FAST))
    choice.lose("p0")
    choice.tell(worker_up("p0", "hami", (P,)))
    assert main_of(choice) == "m0"


def test_a_round_trip_is_that_of_both_directions(choice: MachineRig) -> None:
    heartbeats(choice, rtt_s=0.03)
    world = choice.machine.ctx.world
    assert world.rtt_s("hami", "shenzhen") == world.rtt_s("shenzhen", "hami") == 0.03


def test_links_that_nobody_told_of_are_not_measured(rig: MachineRig) -> None:
    sees(rig, "p0", site="urumqi")
    sees(rig, "p0", site="hami")
    assert set(rig.machine.ctx.world.links) == {("hami", "shenzhen"), ("shenzhen", "hami")}


def test_transfers_that_came_small_are_expected_to_come_small(rig: MachineRig) -> None:
    rig.arrive()
    link = rig.machine.ctx.world.links["hami", "shenzhen"]
    assert link.waiting_bytes(rig.now) == KV
    stats = KVStats(request="a", epoch=MAIN, bytes_raw=KV, bytes_wire=KV // 2, transfer_s=1.0)
    rig.tell(Heard(worker="m0", message=stats))
    assert link.waiting_bytes(rig.now) == KV / 2
    back = rig.machine.ctx.world.links["shenzhen", "hami"]
    assert back.waiting_bytes(rig.now) == 0


# ---------------------------------------------------------------- KV that would come too late


@pytest.mark.parametrize(("limit_s", "main"), [(1e4, "m0"), (1.0, "l0")])
def test_kv_that_would_be_given_up_is_not_sent(
    make_rig: MakeRig, limit_s: float, main: str
) -> None:
    """The relay route hides the slow line, and its main is so much faster; but its KV is late."""
    rig = make_rig(BOTH, deadlines=Deadlines(kv=limit_s))
    rig.load("l0", step_s=5.0)
    rig.load("m0", step_s=0.02)
    assert main_of(rig) == main


def test_without_another_route_it_is_tried(make_rig: MakeRig) -> None:
    rig = make_rig(deadlines=Deadlines(kv=1.0))
    assert starts(rig.arrive()) == [(P, "p0"), (R, "r0"), (M, "m0")]


def test_a_client_that_wants_this_route_gets_it(make_rig: MakeRig) -> None:
    rig = make_rig(BOTH, deadlines=Deadlines(kv=1.0))
    actions = rig.arrive(route=Route.DIRECT)
    assert starts(actions) == [(P, "p0"), (M, "m0")]
