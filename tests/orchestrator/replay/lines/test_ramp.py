"""What prefill hands over before it ends, and what of it a line could have carried."""

import random
from math import inf

import pytest

from orchestrator.replay.lines.ramp import Ramp, Spare, layerwise


def total(claimed: list[tuple[float, float, float]]) -> float:
    return sum(rate * (end - begin) for begin, end, rate in claimed)


def claim(spare: Spare, since: float, ramp: Ramp, each: float = inf) -> float:
    return total(spare.claim(since, ramp, ratio=1.0, each_bytes_per_s=each))


def idle(begin: float, end: float, rate: float = 100.0) -> Spare:
    spare = Spare()
    spare.add(begin, end, rate)
    return spare


def ramp(
    began_at: float, chunks: list[tuple[float, int, int]], layers: int, **changes: int
) -> Ramp:
    """Of a prompt of which every token is wanted and takes 1 byte.

    `chunks`: when so many of so many tokens each, that take equally long, had been computed.
    """
    tokens = sum(each * count for _, each, count in chunks) + changes.get("hit", 0)
    wanted = {"hit": 0, "first": 0, "stop": tokens} | changes
    single, start = [], began_at
    for ended_at, each, count in chunks:
        step_s = (ended_at - start) / count
        single += [(start + n * step_s, each) for n in range(1, count + 1)]
        start = ended_at
    return layerwise(began_at, single, layers, token_bytes=1.0, **wanted)


def test_layers_of_one_chunk() -> None:
    # 4 layers of 2 s each: the first goes from 3 on, the last is there when the prefill ends.
    assert ramp(1.0, [(9.0, 400, 1)], 4) == ((3.0, 0.0), (9.0, 300.0))


def test_layers_of_several_chunks() -> None:
    found = ramp(0.0, [(4.0, 100, 1), (8.0, 100, 1), (16.0, 100, 1)], 4)
    assert found == ((1.0, 0.0), (5.0, 100.0), (10.0, 200.0), (16.0, 275.0))


def test_chunks_in_a_row_are_late_by_a_layer_of_one() -> None:
    layered, whole = ramp(0.0, [(12.0, 100, 3)], 4), ramp(0.0, [(12.0, 100, 3)], 1)
    assert layered == ((1.0, 0.0), (5.0, 100.0), (9.0, 200.0), (12.0, 275.0))
    assert whole == ((4.0, 0.0), (8.0, 100.0), (12.0, 200.0), (12.0, 200.0))


def test_a_cached_prefix_need_not_wait() -> None:
    found = ramp(0.0, [(10.0, 200, 1)], 4, hit=300)
    assert found == ((0.0, 300.0), (2.5, 300.0), (10.0, 450.0))
    assert claim(idle(0.0, 10.0), 0.0, found) == pytest.approx(450)
    cached = ramp(2.0, [], 4, hit=300)
    assert cached == ((2.0, 300.0), (2.0, 300.0))
    assert claim(idle(0.0, 4.0), 0.0, cached) == pytest.approx(200)


def test_what_the_far_end_has_is_not_waited_for() -> None:
    """Of chunks of 100 tokens, 250 are there: what is missing begins in the middle of the third."""
    chunks = [(12.0, 100, 3), (16.0, 100, 1)]
    assert ramp(0.0, chunks, 4, first=250) == ((9.0, 0.0), (13.0, 50.0), (16.0, 125.0))
    assert ramp(0.0, chunks, 4, first=350) == ((13.0, 0.0), (16.0, 37.5))
    assert ramp(0.0, chunks, 4, hit=50, first=0, stop=420)[-1] == (16.0, 402.5)


def test_a_model_of_one_layer_hands_over_chunks() -> None:
    assert ramp(0.0, [(4.0, 100, 1), (8.0, 100, 1)], 1)[-1] == (8.0, 100.0)


@pytest.mark.parametrize("layers", [1, 4, 32])
@pytest.mark.parametrize("rate", [20.0, 100.0, 1000.0])
def test_what_is_left_as_in_closed_form(layers: int, rate: float) -> None:
    """n chunks of c bytes, T seconds each, in L layers, over an idle line of R bytes a second: it
    is busy from T / L on, so n c - R (n T - T / L) are left, but one layer's c / L at least."""
    chunks, each, seconds = 8, 500, 4.0
    found = ramp(0.0, [(3 * seconds, each, 3), (chunks * seconds, each, chunks - 3)], layers)
    sent = claim(idle(0.0, chunks * seconds, rate), 0.0, found)
    left = chunks * each - rate * (chunks * seconds - seconds / layers)
    assert chunks * each - sent == pytest.approx(max(each / layers, left))


def test_a_fast_line_leaves_one_layer() -> None:
    kv = ramp(0.0, [(4.0, 100, 1), (8.0, 100, 1)], 10)
    assert claim(idle(0.0, 8.0), 0.0, kv) == pytest.approx(190)


def test_a_slow_line_is_busy_from_the_first_layer_on() -> None:
    kv = ramp(0.0, [(4.0, 400, 1), (8.0, 400, 1)], 8)
    assert claim(idle(0.0, 8.0, 10.0), 0.0, kv) == pytest.approx(75)
    assert claim(idle(0.0, 8.0, 10.0), 6.0, kv) == pytest.approx(20)


def test_idle_too_early_is_no_use() -> None:
    spare = idle(0.0, 5.0)
    spare.add(9.0, 10.0, 100.0)
    kv = ((4.0, 0.0), (10.0, 600.0))  # 100 a second, of which the line is busy from 5 to 9
    assert claim(spare, 0.0, kv) == pytest.approx(200)


def test_what_is_claimed_is_gone() -> None:
    spare = idle(0.0, 10.0)
    kv = ((0.0, 0.0), (10.0, 600.0))
    assert claim(spare, 0.0, kv) == pytest.approx(600)
    assert claim(spare, 0.0, kv) == pytest.approx(400)
    assert claim(spare, 0.0, kv) == pytest.approx(0, abs=1e-9)


def test_prefills_side_by_side_both_stream() -> None:
    """Each takes a tenth of the line, all the time: neither is in the other's way."""
    spare = idle(0.0, 10.0)
    kv = ramp(0.0, [(10.0, 100, 1)], 20)
    for _ in range(5):
        assert claim(spare, 0.0, kv) == pytest.approx(95)


def test_a_connection_carries_no_more_than_it_can() -> None:
    spare = idle(0.0, 10.0)
    assert claim(spare, 0.0, ((0.0, 1000.0),), each=30.0) == pytest.approx(300)
    assert claim(spare, 0.0, ((0.0, 1000.0),), each=80.0) == pytest.approx(700)


def test_the_wire_carries_coded_bytes() -> None:
    claimed = idle(0.0, 10.0).claim(
        0.0, ((0.0, 0.0), (10.0, 600.0)), ratio=2.0, each_bytes_per_s=inf
    )
    assert total(claimed) == pytest.approx(300)


@pytest.mark.parametrize("seed", range(20))
def test_as_integrated_in_small_steps(seed: int) -> None:
    draw = random.Random(seed)
    spare, gaps, at = Spare(), [], 0.0
    for _ in range(12):
        begin = at + draw.uniform(0, 1)
        at = begin + draw.uniform(0.1, 2)
        gaps.append((begin, at, draw.uniform(5, 50)))
        spare.add(*gaps[-1])
    began = draw.uniform(0, at / 2)
    chunks, end = [], began
    for _ in range(draw.randrange(1, 6)):
        end += draw.uniform(0.2, (at - began) / 5)
        chunks.append((min(end, at), draw.randrange(1, 100), 1))
    kv = ramp(began, chunks, draw.choice([1, 4, 40]))
    sent, there, step = 0.0, 0.0, 0.001
    for number in range(int(at / step) + 1):
        now = number * step
        for (x, low), (y, high) in zip(kv, [*kv[1:], (inf, kv[-1][1])], strict=True):
            if x <= now < y:
                there = low + (high - low) * (now - x) / (y - x)
        rate = sum(rate for begin, end, rate in gaps if begin <= now < end)
        sent = min(sent + rate * step, max(sent, there))
    assert claim(spare, began, kv) == pytest.approx(sent, abs=1.0, rel=0.01)


def test_long_ago_is_kept_as_a_mean() -> None:
    spare = Spare()
    for second in range(1000):
        spare.add(second, second + 0.5, 100.0)
    assert claim(spare, 990.0, ((0.0, 1e9),)) == pytest.approx(500)
    assert claim(spare, 0.0, ((0.0, 1e9),)) == pytest.approx(50_000 - 500)
