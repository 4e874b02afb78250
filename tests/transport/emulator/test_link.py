"""One direction of a line in virtual time: rate, delay, order, precedence, loss, cuts."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transport.emulator.line import LineDirection, LinkSpec, Plane

TEN_MBPS = LinkSpec(delay_s=0.025, rate_bytes_per_s=1.25e6)


def drain(line: LineDirection, until: float = float("inf")) -> list[tuple[float, object, int]]:
    """Everything that arrives up to `until`, with its time."""
    arrived = []
    while (deadline := line.next_deadline()) is not None and deadline <= until:
        arrived += [(deadline, conn, nbytes) for conn, nbytes in line.pop(deadline)]
    return arrived


def test_a_megabyte_takes_its_time():
    line = LineDirection(TEN_MBPS)
    line.push("a", Plane.KV, 1_000_000, 0.0)
    arrived = drain(line)
    assert sum(n for _, _, n in arrived) == 1_000_000
    assert arrived[0][0] == pytest.approx(0.025 + 1400 / 1.25e6)
    assert arrived[-1][0] == pytest.approx(0.825)
    assert line.sent_bytes[Plane.KV] == 1_000_000


def test_small_pushes_add_up_to_the_same():
    line = LineDirection(TEN_MBPS)
    for _ in range(1000):
        line.push("a", Plane.KV, 100, 0.0)
    assert drain(line)[-1][0] == pytest.approx(0.025 + 0.08)


def test_a_line_that_idled_starts_at_once_and_not_before():
    line = LineDirection(TEN_MBPS)
    line.push("a", Plane.KV, 1250, 0.0)
    drain(line)
    line.push("a", Plane.KV, 1250, 5.0)
    assert [t for t, _, _ in drain(line)] == [pytest.approx(5.026)]


def test_a_late_driver_does_not_change_the_rate():
    prompt, late = LineDirection(TEN_MBPS), LineDirection(TEN_MBPS)
    for line in (prompt, late):
        line.push("a", Plane.KV, 100_000, 0.0)
    exact = drain(prompt)
    now, got = 0.0, []
    while late.next_deadline() is not None:
        now += 0.0037
        got += [n for _, n in late.pop(now)]
    assert got == [n for _, _, n in exact]
    assert now == pytest.approx(exact[-1][0], abs=0.004)


def test_precedence_is_strict():
    line = LineDirection(TEN_MBPS)
    line.push("kv", Plane.KV, 200_000, 0.0)
    line.push("tokens", Plane.TOKENS, 20_000, 0.0)
    line.pop(0.01)
    line.push("control", Plane.CONTROL, 200, 0.01)
    last = {conn: at for at, conn, _ in drain(line)}
    # One quantum of the lower plane may be under way.
    assert last["control"] < 0.01 + 0.025 + 2 * 0.00112 + 0.00016
    assert last["tokens"] == pytest.approx(0.025 + 20_200 / 1.25e6, abs=0.0012)
    assert last["kv"] == pytest.approx(0.025 + 220_200 / 1.25e6)


def test_connections_of_one_plane_take_turns():
    line = LineDirection(TEN_MBPS)
    line.push("big", Plane.KV, 500_000, 0.0)
    line.push("small", Plane.KV, 14_000, 0.0)
    last = {conn: at for at, conn, _ in drain(line)}
    assert last["small"] == pytest.approx(0.025 + 28_000 / 1.25e6, abs=0.0012)


@pytest.mark.parametrize(
    ("rate", "quantum"), [(1.25e5, 1400), (1.25e6, 1400), (1.25e7, 12500), (1.25e9, 65536)]
)
def test_quanta(rate: float, quantum: int):
    assert LinkSpec(delay_s=0, rate_bytes_per_s=rate).quantum_bytes == quantum


def test_jitter_spreads_and_never_reorders():
    spec = LinkSpec(delay_s=0.025, rate_bytes_per_s=1.25e6, jitter_s=0.005)
    line = LineDirection(spec, seed=1)
    for at in range(200):
        line.push("a", Plane.KV, 1 + at, at * 0.01)
        line.pop(at * 0.01)
    sizes = [n for _, _, n in drain(line)]
    assert sizes == sorted(sizes)
    lone = []
    for at in range(200):
        line.push(at, Plane.KV, 10, 10.0 + at)
        lone += [t - 10.0 - at for t, _, _ in drain(line)]
    assert min(lone) >= 0.025
    assert 0.027 < sum(lone) / len(lone) < 0.031


def test_loss_stalls_one_connection_for_a_round_trip():
    spec = LinkSpec(delay_s=0.025, rate_bytes_per_s=1.25e6, loss=0.02)
    line = LineDirection(spec, seed=3)
    line.push("a", Plane.KV, 1_448_000, 0.0)
    arrived = drain(line)
    assert sum(n for _, _, n in arrived) == 1_448_000
    times = [t for t, _, _ in arrived]
    assert times == sorted(times)
    stalls = sum(b - a > 0.04 for a, b in pairwise(times))
    assert 5 < stalls < 40  # of about 20; two within one round trip show as one
    line = LineDirection(LinkSpec(delay_s=0.025, rate_bytes_per_s=1.25e6, loss=0.999), seed=3)
    line.push("lossy", Plane.KV, 10, 0.0)
    assert drain(line)[0][0] == pytest.approx(0.075, abs=1e-4)


def test_marks_keep_their_place_and_take_no_room():
    line = LineDirection(TEN_MBPS)
    line.push("a", Plane.KV, 5000, 0.0)
    line.push("a", Plane.KV, 0, 0.0)
    line.push("b", Plane.KV, 0, 0.0)
    arrived = drain(line)
    a = [n for _, conn, n in arrived if conn == "a"]
    assert sum(a) == 5000
    assert a.index(0) == len(a) - 1
    assert next(t for t, conn, _ in arrived if conn == "b") == pytest.approx(0.025, abs=0.0012)


def test_a_cut_holds_everything_and_loses_nothing():
    line = LineDirection(TEN_MBPS)
    line.push("a", Plane.KV, 100_000, 0.0)
    before = drain(line, until=0.05)
    line.cut(0.05)
    assert line.next_deadline() is None
    line.push("a", Plane.KV, 1000, 1.0)
    assert line.pop(2.0) == []
    line.restore(3.05)
    after = drain(line)
    assert sum(n for _, _, n in before + after) == 101_000
    assert after[0][0] > 3.05
    assert after[-1][0] == pytest.approx(3.0 + 0.025 + 101_000 / 1.25e6, abs=0.002)
    line.restore(9.0)  # not cut: nothing happens
    assert line.next_deadline() is None


def test_forget_drops_one_connection_only():
    line = LineDirection(TEN_MBPS)
    line.push("gone", Plane.KV, 10_000, 0.0)
    line.push("kept", Plane.KV, 10_000, 0.0)
    line.pop(0.004)
    line.forget("gone")
    assert line.queued_bytes("gone", Plane.KV) == 0
    assert {conn for _, conn, _ in drain(line)} == {"kept"}


def test_a_change_counts_from_the_next_quantum():
    line = LineDirection(TEN_MBPS)
    line.push("a", Plane.KV, 125_000, 0.0)
    drain(line, until=0.05)
    line.spec = LinkSpec(delay_s=0.025, rate_bytes_per_s=1.25e7)
    assert drain(line)[-1][0] == pytest.approx(0.05 + 0.0625 / 10 + 0.025 - 0.0025, abs=0.03)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate_bytes_per_s": 0},
        {"rate_bytes_per_s": float("nan")},
        {"delay_s": -1},
        {"jitter_s": -1},
        {"loss": 1},
    ],
)
def test_impossible_lines(wrong: dict):
    with pytest.raises(ValueError):
        LinkSpec(**({"delay_s": 0.0, "rate_bytes_per_s": 1.0} | wrong))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["push", "pop", "cut", "restore"]),
            st.integers(0, 3),
            st.integers(0, 5000),
        ),
        max_size=80,
    )
)
@settings(max_examples=150, deadline=None)
def test_every_byte_arrives_in_order_and_the_clock_advances(actions):
    spec = LinkSpec(delay_s=0.01, rate_bytes_per_s=1e6, jitter_s=0.002, loss=0.05)
    line = LineDirection(spec)
    now, pushed, popped = 0.0, dict.fromkeys(range(4), 0), dict.fromkeys(range(4), 0)
    for action, conn, amount in actions:
        now += amount / 1e6
        match action:
            case "push":
                line.push(conn, Plane(conn % 3), amount, now)
                pushed[conn] += amount
            case "pop":
                for which, nbytes in line.pop(now):
                    popped[which] += nbytes
                deadline = line.next_deadline()
                assert deadline is None or deadline > now
            case "cut":
                line.cut(now)
            case "restore":
                line.restore(now)
    line.restore(now)
    for _, which, nbytes in drain(line):
        popped[which] += nbytes
    assert popped == pushed
    assert sum(line.sent_bytes.values()) == sum(pushed.values())
    assert sum(line.queued_total(plane) for plane in Plane) == 0
