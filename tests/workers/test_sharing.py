"""Several gateways at one worker: who was refused comes next, and each is told of the others."""

from tests.workers.worker_rig import Rig, start
from workers.api.messages import Refused, Role, Stop
from workers.sharing import KEPT_S, Sharing, Taken, told_to


def begin(rig: Rig, gateway: str, number: int) -> bool:
    """Whether a leg of this gateway got a place."""
    request = f"{gateway}{number}"
    answers = rig.send(start(Role.PREFILL, request=request, gateway=gateway, limit=4))
    return not any(isinstance(answer, Refused) for answer in answers)


def end(rig: Rig, gateway: str, number: int) -> None:
    rig.send(Stop(request=f"{gateway}{number}", epoch=1))


def test_a_slot_that_comes_free_is_for_who_was_refused() -> None:
    rig = Rig(slots=4)
    assert [begin(rig, "a", i) for i in range(5)] == [True] * 4 + [False]
    assert not begin(rig, "b", 0)
    end(rig, "a", 0)
    assert not begin(rig, "a", 5), "it has most, and b has asked"
    assert begin(rig, "b", 1)
    end(rig, "a", 1)
    assert begin(rig, "a", 6), "b has what it asked for"


def test_a_slot_is_kept_no_longer_than_somebody_may_come_for_it() -> None:
    rig = Rig(slots=2)
    assert begin(rig, "a", 0)
    assert begin(rig, "a", 1)
    assert not begin(rig, "b", 0)
    end(rig, "a", 0)
    rig.wait(KEPT_S / 2)
    assert not begin(rig, "a", 2)
    rig.wait(KEPT_S)
    assert begin(rig, "a", 3)


def test_as_many_are_kept_as_were_refused_and_no_more_than_makes_them_even() -> None:
    sharing, taken = Sharing(), {"a": Taken(6, 60), "b": Taken(4, 40)}
    sharing.refused("b", 0.0)
    assert sharing.kept_from("a", taken, 0.0) == 1
    for _ in range(5):
        sharing.refused("b", 0.0)
    assert sharing.kept_from("a", taken, 0.0) == 2
    assert sharing.kept_from("b", taken, 0.0) == 0, "not from itself"
    sharing.refused("a", 0.0)
    assert sharing.kept_from("b", taken, 0.0) == 0, "not for who has more"
    assert sharing.kept_from("c", taken, 0.0) == 0
    for _ in range(5):
        sharing.started("b")
    assert sharing.kept_from("a", taken, 0.0) == 1
    assert sharing.kept_from("a", taken, KEPT_S) == 0


def test_each_gateway_is_told_what_all_others_take() -> None:
    rig = Rig(slots=4)
    for gateway, number in (("a", 0), ("a", 1), ("b", 0)):
        assert begin(rig, gateway, number)
    rig.worker.gateway_seen("c", rig.now)
    load, taken = rig.worker.load(), rig.worker.taken()
    told = {name: told_to(name, load, taken) for name in "abc"}
    assert {name: (t.gateways, t.others_slots) for name, t in told.items()} == {
        "a": (3, 1),
        "b": (3, 2),
        "c": (3, 3),
    }
    assert told["a"].others_tokens == taken["b"].tokens > 0
    alone = Rig()
    begin(alone, "a", 0)
    load = alone.worker.load()
    assert told_to("a", load, alone.worker.taken()) == load
    assert (load.gateways, load.others_slots) == (1, 0)
