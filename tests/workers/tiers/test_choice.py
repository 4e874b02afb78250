"""Load or compute: the depth with the largest gain, by what was measured lately."""

import pytest

from workers.costs import Chunk, RooflineCosts
from workers.tiers.blocks import Tier
from workers.tiers.choice import (
    ASSUMED_BYTES_PER_S,
    ASSUMED_LATENCY_S,
    BELIEVED_S,
    Place,
    Speeds,
    spared_s,
    worth_loading,
)

MEMORY, FILES, FAR = Place(0, Tier.MEMORY), Place(0, Tier.FILES), Place(1, Tier.MEMORY)
MB = 1_000_000


def speeds(**rates: float) -> Speeds:
    """Measured at time 0, without latency."""
    known = Speeds()
    for store in (0, 1):
        known.asked(store, 0.0)
    for name, rate in rates.items():
        known.loaded({"memory": MEMORY, "files": FILES, "far": FAR}[name], MB, MB / rate, 0.0)
    return known


def depth(places: list[Place | None], known: Speeds, block_s: float, at: float = 1.0) -> int:
    return worth_loading(places, MB, known, at, lambda n: n * block_s)


def test_what_comes_faster_than_it_is_computed_is_loaded() -> None:
    known = speeds(memory=1000 * MB, files=100 * MB)
    assert depth([MEMORY] * 8, known, block_s=0.002) == 8
    assert depth([MEMORY] * 8, known, block_s=0.0005) == 0
    assert depth([FILES] * 8, known, block_s=0.02) == 8
    assert depth([FILES] * 8, known, block_s=0.002) == 0


def test_a_slow_tier_behind_a_fast_one_is_computed() -> None:
    known = speeds(memory=1000 * MB, files=100 * MB)
    assert depth([MEMORY] * 5 + [FILES] * 3, known, block_s=0.002) == 5


def test_a_slow_part_before_a_fast_one_is_loaded_if_all_of_it_pays() -> None:
    known = speeds(memory=1000 * MB, files=400 * MB)
    assert depth([FILES] * 2 + [MEMORY] * 6, known, block_s=0.002) == 8
    assert depth([FILES] * 6 + [MEMORY] * 2, known, block_s=0.002) == 0


def test_the_first_block_that_is_nowhere_ends_it() -> None:
    known = speeds(memory=1000 * MB)
    assert depth([MEMORY, MEMORY, None, MEMORY], known, block_s=1.0) == 2
    assert depth([None, MEMORY], known, block_s=1.0) == 0
    assert depth([], known, block_s=1.0) == 0


def test_what_would_come_too_late_is_not_counted_on() -> None:
    """All eight would pay; of those that are here in time, four, none does: a slow start."""
    known, places = speeds(memory=1000 * MB, files=100 * MB), [FILES] * 4 + [MEMORY] * 4
    block_s = 0.009

    def within(limit_s: float) -> int:
        return worth_loading(places, MB, known, 1.0, lambda n: n * block_s, limit_s=limit_s)

    assert within(0.1) == 8
    assert within(0.0405) == 0


def test_each_stores_latency_counts_once() -> None:
    known = speeds(memory=1000 * MB, far=1000 * MB)
    for _ in range(50):
        known.asked(1, 0.01)
    places: list[Place | None] = [MEMORY] * 4 + [FAR] * 20
    assert depth(places, known, block_s=0.002) == 24
    assert depth(places[:6], known, block_s=0.002) == 4


def test_a_long_prompt_is_loaded_where_a_short_one_is_computed() -> None:
    """Attention makes each token dearer than the last; its bytes stay the same."""
    costs = RooflineCosts(
        flops=4e14,
        memory_bytes_per_s=2e12,
        active_params=8e9,
        attention_width=32 * 4096,
        kv_bytes_per_token=131_072,
        weight_bytes=1.6e10,
    )
    known = speeds(memory=2500 * MB)

    def loaded(tokens: int) -> int:
        return worth_loading(
            [MEMORY] * (tokens // 16), 16 * 131_072, known, 1.0, lambda n: costs.chunk_s(16 * n, 0)
        )

    assert loaded(1024) == 0
    assert loaded(131_072) == 8192


def test_what_is_spared_is_not_what_it_would_take_alone() -> None:
    """The rest is one chunk more or less full: its weights are read in any case."""
    costs = RooflineCosts(
        flops=4e14,
        memory_bytes_per_s=1e12,
        active_params=8e9,
        attention_width=32 * 4096,
        kv_bytes_per_token=131_072,
        weight_bytes=1.6e10,
    )
    whole_s, weights_s = costs.step_s([Chunk(4097, 0)], 0, 0), 0.016
    assert spared_s(costs, 4097, 0, 4096) == pytest.approx(whole_s - weights_s, rel=0.01)
    assert spared_s(costs, 65, 0, 64) < 0.001
    assert spared_s(costs, 64, 0, 64) == pytest.approx(weights_s, rel=0.01)


def test_nobody_has_measured_yet() -> None:
    fresh = Speeds()
    assert fresh.latency_s(0) == ASSUMED_LATENCY_S
    assert fresh.bytes_per_s(FILES, 0.0) == ASSUMED_BYTES_PER_S[Tier.FILES]


def test_an_old_measurement_is_believed_no_more() -> None:
    """A tier that was slow once is tried again."""
    known = speeds(files=1 * MB)
    assert known.bytes_per_s(FILES, BELIEVED_S - 1) == pytest.approx(1 * MB)
    assert known.bytes_per_s(FILES, BELIEVED_S) == ASSUMED_BYTES_PER_S[Tier.FILES]


def test_newer_measurements_weigh_in() -> None:
    known = speeds(memory=100 * MB)
    for _ in range(30):
        known.loaded(MEMORY, MB, 0.001, 1.0)
    assert known.bytes_per_s(MEMORY, 2.0) == pytest.approx(1000 * MB, rel=0.01)
