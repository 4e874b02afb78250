"""The network between processes: delays, order, partitions, resets, the dead and the frozen."""

from random import Random

import pytest

from orchestrator.virtual.network import SAME_SITE_S, Accidents, Connection, Network
from orchestrator.virtual.process import Process
from orchestrator.virtual.schedule import Schedule

ONE_WAY_S = 0.025


class Rig:
    """Two processes in two sites and a third beside the first, and what each heard, with times."""

    def __init__(self, *, jitter_s: float = 0.0, bytes_per_s: float = 1000.0) -> None:
        self.schedule = Schedule()
        self.network = Network(
            self.schedule,
            Random(1),
            one_way_s=ONE_WAY_S,
            bytes_per_s=bytes_per_s,
            jitter_s=jitter_s,
        )
        self.a, self.b, self.near = (
            Process(name, site, self.schedule)
            for name, site in [("a", "hami"), ("b", "shenzhen"), ("near", "hami")]
        )
        for process in (self.a, self.b, self.near):
            process.start()
        self.heard: list[tuple[float, object]] = []

    def hear(self, what: object) -> None:
        self.heard.append((round(self.schedule.now, 6), what))

    @property
    def words(self) -> list[object]:
        return [what for _, what in self.heard]

    def connect(self) -> Connection:
        return Connection(
            self.network,
            self.a,
            self.b,
            near_end=lambda reason: self.hear(f"a: {reason}"),
            far_end=lambda reason: self.hear(f"b: {reason}"),
        )

    def run(self, seconds: float) -> None:
        self.schedule.run(self.schedule.now + seconds)


@pytest.fixture
def rig() -> Rig:
    return Rig()


# ---------------------------------------------------------------- delay and order


def test_a_message_takes_one_way(rig: Rig) -> None:
    rig.network.send(rig.a, rig.b, rig.hear, "far")
    rig.network.send(rig.a, rig.near, rig.hear, "near")
    rig.run(1.0)
    assert rig.heard == [(SAME_SITE_S, "near"), (ONE_WAY_S, "far")]


def test_messages_may_overtake_each_other_those_of_a_connection_do_not() -> None:
    rig = Rig(jitter_s=0.1)
    for number in range(50):
        rig.network.send(rig.a, rig.b, rig.hear, number)
    rig.run(1.0)
    assert sorted(rig.words) == list(range(50)) != rig.words
    assert {at > ONE_WAY_S for at, _ in rig.heard} == {True}
    rig.heard.clear()
    connection = rig.connect()
    for number in range(50):
        connection.send(rig.a, rig.hear, number)
    rig.run(1.0)
    assert rig.words == list(range(50))


def test_delayed_messages_come_within_their_delay(rig: Rig) -> None:
    rig.network.accidents = Accidents(delay_s=2.0)
    for number in range(50):
        rig.network.send(rig.a, rig.b, rig.hear, number)
    rig.run(3.0)
    assert rig.words != sorted(rig.words)
    assert 1.0 < max(at for at, _ in rig.heard) <= 2.0 + ONE_WAY_S


def test_kv_takes_its_turn_on_the_line_and_leaves_the_other_direction_alone(rig: Rig) -> None:
    """500 bytes at 1000 bytes a second, twice."""
    connection = rig.connect()
    connection.send(rig.a, rig.hear, "first", nbytes=500)
    connection.send(rig.a, rig.hear, "second", nbytes=500)
    rig.run(0.1)
    connection.send(rig.b, rig.hear, "back", nbytes=100)
    rig.network.send(rig.a, rig.b, rig.hear, "message")
    rig.run(2.0)
    assert rig.heard == [
        (0.1 + ONE_WAY_S, "message"),
        (0.1 + 0.1 + ONE_WAY_S, "back"),
        (0.5 + ONE_WAY_S, "first"),
        (1.0 + ONE_WAY_S, "second"),
    ]


# ---------------------------------------------------------------- partitions


def test_a_partition_one_way_holds_and_heals_in_order(rig: Rig) -> None:
    connection = rig.connect()
    rig.run(0.1)
    rig.network.cut("hami", "shenzhen")
    connection.send(rig.a, rig.hear, 1)
    connection.send(rig.a, rig.hear, 2)
    connection.send(rig.b, rig.hear, "the other way")
    rig.network.send(rig.a, rig.near, rig.hear, "inside the site")
    rig.run(5.0)
    assert rig.words == ["inside the site", "the other way"]
    rig.heard.clear()
    rig.network.heal("hami", "shenzhen")
    connection.send(rig.a, rig.hear, 3)
    rig.run(1.0)
    assert rig.words == [1, 2, 3]
    assert rig.heard[0][0] == 5.1 + ONE_WAY_S


def test_what_was_under_way_when_the_cut_came_is_held_too(rig: Rig) -> None:
    rig.network.send(rig.a, rig.b, rig.hear, "x")
    rig.run(ONE_WAY_S / 2)
    rig.network.cut("hami", "shenzhen")
    rig.run(1.0)
    assert rig.words == []
    rig.network.heal("hami", "shenzhen")
    rig.run(1.0)
    assert rig.words == ["x"]


def test_two_cuts_of_one_way_need_two_heals(rig: Rig) -> None:
    rig.network.cut("hami", "shenzhen")
    rig.network.cut("hami", "shenzhen")
    rig.network.send(rig.a, rig.b, rig.hear, "x")
    rig.run(1.0)
    rig.network.heal("hami", "shenzhen")
    rig.run(1.0)
    assert rig.words == []
    rig.network.heal("hami", "shenzhen")
    rig.run(1.0)
    assert rig.words == ["x"]


def test_a_cut_between_two_processes_leaves_their_neighbours_alone(rig: Rig) -> None:
    rig.network.cut("a", "b")
    for source in (rig.a, rig.near):
        rig.network.send(source, rig.b, rig.hear, source.name)
    rig.run(1.0)
    assert rig.words == ["near"]
    # Of a second cut that is still there it runs into that one.
    rig.network.cut("hami", "shenzhen")
    rig.network.heal("a", "b")
    rig.run(1.0)
    assert rig.words == ["near"]
    rig.network.heal("hami", "shenzhen")
    rig.run(1.0)
    assert rig.words == ["near", "a"]


def test_what_a_partition_holds_is_gone_when_the_connection_is_closed(rig: Rig) -> None:
    connection = rig.connect()
    rig.run(0.1)
    rig.network.cut("shenzhen", "hami")
    connection.send(rig.b, rig.hear, "held")
    rig.run(1.0)
    connection.close(rig.a, "it gave up")
    rig.network.heal("shenzhen", "hami")
    rig.run(1.0)
    assert rig.words == ["b: it gave up"]


# ---------------------------------------------------------------- connections and their ends


def test_it_is_reached_one_way_later(rig: Rig) -> None:
    connection = rig.connect()
    assert not connection.reached
    rig.run(ONE_WAY_S)
    assert connection.reached
    assert connection.open_at(rig.a)
    assert connection.open_at(rig.b)


def test_a_close_comes_after_what_was_sent_and_who_closes_hears_nothing(rig: Rig) -> None:
    connection = rig.connect()
    connection.send(rig.a, rig.hear, "last words")
    connection.close(rig.a, "done")
    connection.send(rig.a, rig.hear, "too late")
    connection.close(rig.a, "again")
    rig.run(1.0)
    assert rig.words == ["last words", "b: done"]
    assert not rig.a.connections
    assert not rig.b.connections


def test_a_reset_loses_what_is_in_flight_and_both_hear_of_it(rig: Rig) -> None:
    connection = rig.connect()
    rig.run(1.0)
    connection.send(rig.a, rig.hear, "in flight")
    connection.send(rig.b, rig.hear, "in flight back")
    connection.reset("an accident")
    connection.reset("another")
    rig.run(1.0)
    assert sorted(map(str, rig.words)) == ["a: an accident", "b: an accident"]
    assert not connection.open_at(rig.a)
    assert not connection.open_at(rig.b)


def test_a_reset_before_it_is_reached(rig: Rig) -> None:
    connection = rig.connect()
    connection.send(rig.a, rig.hear, "hello")
    connection.reset("an accident")
    rig.run(1.0)
    assert rig.words == ["a: an accident"]
    assert not connection.reached


def test_the_dead_refuse_one_round_trip_later(rig: Rig) -> None:
    rig.b.kill()
    connection = rig.connect()
    connection.send(rig.a, rig.hear, "hello")
    rig.run(1.0)
    assert rig.heard == [(2 * ONE_WAY_S, "a: b refused the connection")]
    assert not connection.reached


def test_a_death_is_told_by_the_kernel(rig: Rig) -> None:
    connection = rig.connect()
    rig.run(1.0)
    connection.send(rig.b, rig.hear, "last words")
    rig.b.kill()
    rig.run(1.0)
    assert rig.words == ["last words", "a: b died"]
    assert not rig.a.connections


def test_a_connection_is_with_one_life(rig: Rig) -> None:
    connection = rig.connect()
    rig.run(1.0)
    connection.send(rig.a, rig.hear, "to the first life")
    rig.b.kill()
    rig.b.start()
    rig.run(1.0)
    assert rig.words == ["a: b died"]


def test_one_that_died_and_lives_again_takes_a_connection_that_comes_then(rig: Rig) -> None:
    rig.b.kill()
    connection = rig.connect()
    connection.send(rig.a, rig.hear, "hello")
    rig.b.start()
    rig.run(1.0)
    assert rig.words == ["hello"]


def test_a_frozen_process_takes_connections_and_hears_later(rig: Rig) -> None:
    rig.b.freeze()
    connection = rig.connect()
    connection.send(rig.a, rig.hear, 1)
    connection.send(rig.a, rig.hear, 2)
    rig.run(1.0)
    assert connection.reached
    assert rig.words == []
    rig.b.thaw()
    assert rig.words == [1, 2]


def test_a_frozen_process_hears_of_an_end_when_it_thaws(rig: Rig) -> None:
    connection = rig.connect()
    rig.run(1.0)
    rig.b.freeze()
    connection.send(rig.a, rig.hear, "waits")
    rig.run(1.0)
    rig.a.kill()
    rig.run(1.0)
    assert rig.words == []
    rig.b.thaw()
    assert rig.words == ["waits", "b: a died"]
