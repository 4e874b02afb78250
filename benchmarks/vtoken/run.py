"""`pdd bench vtoken`: what tables and packing give: blocks, requests at once, throughput."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from benchmarks.machine import machine
from benchmarks.vtoken.model import attention_of, blocks, load, table_overhead
from benchmarks.vtoken.serving import LENGTHS, Lengths, Played, blocks_after_prompts, jobs, play
from workers.kv.evict.config import Eviction, Reclaim
from workers.kv.evict.policies import POLICIES

CONTROL = "sink-recent"  # which must gain nothing
SLO = 1.05  # times the baseline's p95
THROUGHPUT_AT = 16  # tokens of a block: throughput takes many runs, and is measured for these only
PAPER = {
    "blocks_saved": "0.272-0.723",
    "throughput_gain": "up to 1.37 within SLO (p95 at most 1.05 x the baseline's)",
    "concurrency_gain": 2.0,
    "table_overhead": "under 0.01",
    "lines": "under 50 a policy",
}


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured. `part` of the requests of a run; `rounds` of halving find a rate."""

    policies: tuple[str, ...]
    ratios: tuple[float, ...]
    blocks: tuple[int, ...]
    lengths: tuple[str, ...]
    part: float
    rounds: int
    context: int


FULL = Extent(
    ("h2o", "scissorhands", "random"), (0.3, 0.5, 0.7), (16, 32, 48), tuple(LENGTHS), 1.0, 5, 2048
)
SHORT = Extent(("random",), (0.5,), (16,), ("longbench",), 0.5, 3, 512)


def run(*, short: bool, tell: Callable[[str], None]) -> dict[str, Any]:
    """Raises ModelError where the default model is not there."""
    about, extent = machine(), SHORT if short else FULL
    loaded = load()
    tell("the default model reads")
    attention = attention_of(loaded, extent.context)
    overhead = table_overhead(loaded, 8, extent.context)
    cells = []
    for policy, ratio, size in product((*extent.policies, CONTROL), extent.ratios, extent.blocks):
        naive, packed = blocks(attention, policy, ratio, size, extent.context)
        for lengths in extent.lengths:
            tell(f"{policy}, {ratio:.0%} die, blocks of {size}, {lengths}")
            cells.append(
                {"policy": policy, "ratio": ratio, "block": size, "lengths": lengths}
                | _cell(LENGTHS[lengths], policy, ratio, size, extent)
                | {"blocks_saved_on_the_model": 1 - packed / naive, "ceiling": ratio}
            )
    return {
        "cells": [cell for cell in cells if cell["policy"] != CONTROL],
        "control": [cell for cell in cells if cell["policy"] == CONTROL],
        "random": [_random(ratio, size) for ratio in extent.ratios for size in extent.blocks],
        "table_overhead": overhead["more_s"] / overhead["step_s"],
        "table": overhead,
        "lines": {name: len(inspect.getsource(p).splitlines()) for name, p in POLICIES.items()},
        "paper": PAPER,
        "machine": about,
    }


def _eviction(policy: str, ratio: float, reclaim: Reclaim) -> Eviction:
    return Eviction(
        policy=policy,
        budget=1 - ratio,
        slack=16,
        recent=16,
        first=4,
        waste=0.1,
        low=1.0,
        reclaim=reclaim,
    )


def _cell(
    lengths: Lengths, policy: str, ratio: float, size: int, extent: Extent
) -> dict[str, float | None]:
    """Packed against in place: the same requests, the same tokens die."""
    count = round(extent.part * lengths.count)

    def played(reclaim: Reclaim, rate: float | None, kv_tokens: int) -> Played:
        work = jobs(lengths, count, rate, seed=7)
        eviction = _eviction(policy, ratio, reclaim)
        kv_tokens = kv_tokens // size * size
        return play(work, eviction, kv_tokens=kv_tokens, block_size=size)

    longest = lengths.prompt[2] + lengths.output[2] + size
    plenty, scarce = count * longest, 6 * longest
    both = (Reclaim.NAIVE, Reclaim.REPACK)
    naive, packed = (played(reclaim, None, plenty) for reclaim in both)
    few, many = (played(reclaim, None, scarce) for reclaim in both)
    found: dict[str, float | None] = {
        "blocks_saved": 1 - packed.blocks_per_request / naive.blocks_per_request,
        "concurrency_gain": many.concurrency / few.concurrency,
        "throughput_gain": None,
    }
    if size != THROUGHPUT_AT or policy == CONTROL:
        return found
    capacity = count / few.ended_at
    # The baseline near its capacity, and how far the rate can rise until p95 is 5 % above it.
    base_rate = 0.8 * capacity
    limit_s = SLO * played(Reclaim.NAIVE, base_rate, scarce).latency_p95_s

    def rate_within(reclaim: Reclaim) -> float:
        low, high = base_rate, 2.5 * capacity
        for _ in range(extent.rounds):
            middle = (low + high) / 2
            if played(reclaim, middle, scarce).latency_p95_s <= limit_s:
                low = middle
            else:
                high = middle
        return low

    gain = rate_within(Reclaim.REPACK) / rate_within(Reclaim.NAIVE)
    return found | {"throughput_gain": gain}


def _random(ratio: float, size: int) -> dict[str, float]:
    """Random deaths in one long prompt, packed at once: by the formula, 1 - (1-e)/(1-e^S)."""

    def held(reclaim: Reclaim) -> float:
        orders = _eviction("random", ratio, reclaim)
        orders = replace(orders, first=0, recent=1, slack=1, waste=0.0)
        return blocks_after_prompts(orders, 12, 6000, size)

    return {
        "ratio": ratio,
        "block": size,
        "measured": 1 - held(Reclaim.REPACK) / held(Reclaim.NAIVE),
        "formula": 1 - (1 - ratio) / (1 - ratio**size),
    }
