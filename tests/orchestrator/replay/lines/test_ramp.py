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


def test_layers_of_one_chunk() -> None:
    # 4 layers of 2 s each: the first goes from 3 on, the last is there when the prefill ends.
    assert layerwise(1.0, [(9.0, 400.0)], 4) == ((3.0, 0.0), (9.0, 300.0))


def test_layers_of_several_chunks() -> None:
    ramp = layerwise(0.0, [(4.0, 100.0), (8.0, 200.0), (16.0, 300.0)], 4)
    assert ramp == ((1.0, 0.0), (5.0, 100.0), (10.0, 200.0), (16.0, 275.0))


def test_a_cached_prefix_need_not_wait() -> None:
    ramp = layerwise(0.0, [(10.0, 500.0)], 4, before=300.0)
    assert ramp == ((0.0, 300.0), (2.5, 300.0), (10.0, 450.0))
    assert claim(idle(0.0, 10.0), 0.0, ramp) == pytest.approx(450)
    assert layerwise(2.0, [], 4, before=300.0) == ((2.0, 300.0), (2.0, 300.0))
    assert claim(idle(0.0, 4.0), 0.0, layerwise(2.0, [], 4, before=300.0)) == pytest.approx(200)


def test_a_model_of_one_layer_hands_over_chunks() -> None:
    assert layerwise(0.0, [(4.0, 100.0), (8.0, 200.0)], 1)[-1] == (8.0, 100.0)


def test_a_fast_line_leaves_one_layer() -> None:
    ramp = layerwise(0.0, [(4.0, 100.0), (8.0, 200.0)], 10)
    assert claim(idle(0.0, 8.0), 0.0, ramp) == pytest.approx(190)


def test_a_slow_line_is_busy_from_the_first_layer_on() -> None:
    ramp = layerwise(0.0, [(4.0, 400.0), (8.0, 800.0)], 8)
    assert claim(idle(0.0, 8.0, 10.0), 0.0, ramp) == pytest.approx(75)
    assert claim(idle(0.0, 8.0, 10.0), 6.0, ramp) == pytest.approx(20)


def test_idle_too_early_is_no_use() -> None:
    spare = idle(0.0, 5.0)
    spare.add(9.0, 10.0, 100.0)
    ramp = ((4.0, 0.0), (10.0, 600.0))  # 100 a second, of which the line is busy from 5 to 9
    assert claim(spare, 0.0, ramp) == pytest.approx(200)


def test_what_is_claimed_is_gone() -> None:
    spare = idle(0.0, 10.0)
    ramp = ((0.0, 0.0), (10.0, 600.0))
    assert claim(spare, 0.0, ramp) == pytest.approx(600)
    assert claim(spare, 0.0, ramp) == pytest.approx(400)
    assert claim(spare, 0.0, ramp) == pytest.approx(0, abs=1e-9)


def test_prefills_side_by_side_both_stream() -> None:
    """Each takes a tenth of the line, all the time: neither is in the other's way."""
    spare = idle(0.0, 10.0)
    ramp = layerwise(0.0, [(10.0, 100.0)], 20)
    for _ in range(5):
        assert claim(spare, 0.0, ramp) == pytest.approx(95)


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
    chunks, end, nbytes = [], began, 0.0
    for _ in range(draw.randrange(1, 6)):
        end += draw.uniform(0.2, (at - began) / 5)
        nbytes += draw.uniform(1, 100)
        chunks.append((min(end, at), nbytes))
    ramp = layerwise(began, chunks, draw.choice([1, 4, 40]))
    sent, there, step = 0.0, 0.0, 0.001
    for number in range(int(at / step) + 1):
        now = number * step
        for (x, low), (y, high) in zip(ramp, [*ramp[1:], (inf, ramp[-1][1])], strict=True):
            if x <= now < y:
                there = low + (high - low) * (now - x) / (y - x)
        rate = sum(rate for begin, end, rate in gaps if begin <= now < end)
        sent = min(sent + rate * step, max(sent, there))
    assert claim(spare, began, ramp) == pytest.approx(sent, abs=1.0, rel=0.01)


def test_long_ago_is_kept_as_a_mean() -> None:
    spare = Spare()
    for second in range(1000):
        spare.add(second, second + 0.5, 100.0)
    assert claim(spare, 990.0, ((0.0, 1e9),)) == pytest.approx(500)
    assert claim(spare, 0.0, ((0.0, 1e9),)) == pytest.approx(50_000 - 500)
