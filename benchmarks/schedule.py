"""Whose bytes go first: PDD's transfers in virtual time under four ways to share one line.

Every way gets the same arrivals. Three share a line over which each transfer is striped, so that
one alone may fill it: `fair` (all at once, equal shares, as TCP would), `fifo` (one after the
other), `ours` (the lowest `transport.stream.schedule.rank`, preemptive). The fourth, `pool`, is
PDD's own: a connection per transfer out of a bounded pool. Its published figures are the pool's, so
that one says whether this is the right workload.

Transfers are fluid, and shared as the replay's lines share them. What is left out is the same for
every way over striped connections: the line's delay and the time of a last piece on one connection
(7 ms for 256 KiB at PDD's 288 Mbps).
"""

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.replay.lines.shares import Flow, Ranked, Share, Shared
from transport.stream.schedule import AGEING_SHARE, ageing_bytes_per_s

# PDD, arXiv 2609.13161: a prompt's KV whole, the mean of what a hit leaves to be sent, the line.
PROMPT_BYTES = 65_536 * 4_290
MEAN_MISS = 0.1
LINE_BYTES_PER_S = 20e9 / 8
# Fitted to its P50 and P99: requests come at LOAD of the line, then for BURST_S at BURST times
# that; PDD's pool holds so many connections, none faster than its cap.
LOAD = 0.88
BURST = 2.7
CALM_S, BURST_S = 275.0, 15.0
POOL_CONNECTIONS = 93
CONNECTION_BYTES_PER_S = 288e6 / 8
FITTED = {
    "skewed": {"p50_s": 0.296, "p99_s": 21.1},
    "narrow": {"p50_s": 0.869, "p99_s": 22.6},
}
SHARES = (0.0, 0.002, 0.004, AGEING_SHARE, 0.006, 0.008, 0.012)

_NARROW_MISS = (0.05, 0.15)
_SKEWED_MISS = (0.01, 0.98)


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bytes that are ready to go at a time."""

    at: float
    nbytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """How long each transfer took, in their order; when the last ended; bytes over the line."""

    seconds: list[float]
    ended_at: float
    carried_bytes: float


Way = Callable[[Sequence[Transfer]], Moved]


def run(*, seeds: int, tell: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """P50, P99 and longest of every way: medians over seeds 1..`seeds`, lowest and highest."""
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    for seed in range(1, seeds + 1):
        tell(f"seed {seed} of {seeds}")
        for spread in MISSES:
            transfers = workload(spread, seed)
            for name, way in (WAYS | _AGEINGS).items():
                row = _percentiles(way(transfers).seconds)
                found.setdefault(name, {}).setdefault(spread, []).append(row)
    return {
        "load": LOAD,
        "seeds": seeds,
        **{name: _over_seeds(found[name], statistics.median) for name in WAYS},
        "spread": {name: _over_seeds(found[name], _ends) for name in WAYS},
        "times_better": {
            f"ours_than_{name}": _times_better(found[name], found["ours"])
            for name in WAYS
            if name != "ours"
        },
        "ageing_share": AGEING_SHARE,
        "ageing": [
            {"share": share, **_over_seeds(found[f"{share}"], statistics.median)}
            for share in SHARES
        ],
        "pool_fitted": FITTED,
    }


# ------------------------------------------------------------------ the workload


def workload(spread: str, seed: int) -> list[Transfer]:
    """PDD's transfers: Poisson, calm and then a burst; the part of the prompt to be sent from
    `MISSES[spread]`. Arrivals of one seed are the same for every spread."""
    draw = random.Random(seed)
    miss_of = MISSES[spread]
    calm_per_s = LOAD * LINE_BYTES_PER_S / (MEAN_MISS * PROMPT_BYTES)
    transfers: list[Transfer] = []
    at = 0.0
    while True:
        # An exponential amount of rate x time, part of it before the burst, part of it in it.
        amount = draw.expovariate(1.0)
        calm = min(amount, max(0.0, CALM_S - at) * calm_per_s)
        at += calm / calm_per_s + (amount - calm) / (BURST * calm_per_s)
        if at > CALM_S + BURST_S:
            return transfers
        transfers.append(Transfer(at, miss_of(draw.random()) * PROMPT_BYTES))


def _narrow_miss(u: float) -> float:
    """Hits uniform between 85 and 95 %."""
    low, high = _NARROW_MISS
    return low + (high - low) * u


def _skewed_miss(u: float) -> float:
    """Hits between 2 and 99 %, mostly high: the miss follows a power law cut at both ends.

    PDD gives the range and the mean only; with them this law has no free parameter left, and its
    median puts a transfer over one connection at PDD's own P50.
    """
    low, high = (end**-_SKEWED_POWER for end in _SKEWED_MISS)
    return float((low - u * (low - high)) ** (-1 / _SKEWED_POWER))


def _power_with_mean(mean: float, low: float, high: float) -> float:
    """The a in (0, 1) for which the density x**-(1 + a) on [low, high] has that mean."""
    under, over = 0.0, 1.0
    for _ in range(50):
        a = (under + over) / 2
        total = (low**-a - high**-a) / a
        if (high ** (1 - a) - low ** (1 - a)) / (1 - a) / total > mean:
            under = a
        else:
            over = a
    return (under + over) / 2


_SKEWED_POWER = _power_with_mean(MEAN_MISS, *_SKEWED_MISS)
MISSES = {"skewed": _skewed_miss, "narrow": _narrow_miss}


# ------------------------------------------------------------------ ways to share a line


def moved(transfers: Sequence[Transfer], share: Share) -> Moved:
    """Over an idle line that is shared that way. `transfers` are in order of time."""
    seconds = [0.0] * len(transfers)
    now = carried = 0.0
    arriving = 0
    while True:
        due = share.next()
        arrives_at = transfers[arriving].at if arriving < len(transfers) else math.inf
        if due is not None and due[0] <= arrives_at:
            carried += share.used() * (due[0] - now)
            now, flow = due
            share.pop()
            seconds[flow.item] = now - flow.at
        elif arriving < len(transfers):
            carried += share.used() * (arrives_at - now)
            now = arrives_at
            share.add(now, Flow(arriving, transfers[arriving].nbytes, at=now))
            arriving += 1
        else:
            return Moved(seconds=seconds, ended_at=now, carried_bytes=carried)


def _pool(transfers: Sequence[Transfer]) -> Moved:
    pool = Shared(
        LINE_BYTES_PER_S, each_bytes_per_s=CONNECTION_BYTES_PER_S, at_once=POOL_CONNECTIONS
    )
    return moved(transfers, pool)


def _fair(transfers: Sequence[Transfer]) -> Moved:
    return moved(transfers, Shared(LINE_BYTES_PER_S))


def _fifo(transfers: Sequence[Transfer]) -> Moved:
    return moved(transfers, Shared(LINE_BYTES_PER_S, at_once=1))


def _ours(transfers: Sequence[Transfer]) -> Moved:
    ageing = ageing_bytes_per_s(LINE_BYTES_PER_S)
    return moved(transfers, Ranked(LINE_BYTES_PER_S, ageing_bytes_per_s=ageing))


def _aged(share: float) -> Way:
    def way(transfers: Sequence[Transfer]) -> Moved:
        ageing = share * LINE_BYTES_PER_S
        return moved(transfers, Ranked(LINE_BYTES_PER_S, ageing_bytes_per_s=ageing))

    return way


WAYS: dict[str, Way] = {"fair": _fair, "fifo": _fifo, "ours": _ours, "pool": _pool}
_AGEINGS = {f"{share}": _aged(share) for share in SHARES}


# ------------------------------------------------------------------ figures

Rows = dict[str, list[dict[str, float]]]  # per spread of hits, a row per seed


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest value that at least `part` of all do not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(part * len(values)) - 1)]


def _percentiles(seconds: list[float]) -> dict[str, float]:
    """Also the longest: what the order costs those it puts last."""
    return {
        "p50_s": percentile(seconds, 0.5),
        "p99_s": percentile(seconds, 0.99),
        "max_s": max(seconds),
    }


def _over_seeds(rows: Rows, of: Callable[[list[float]], Any]) -> dict[str, dict[str, Any]]:
    return {
        spread: {column: of([row[column] for row in per_seed]) for column in per_seed[0]}
        for spread, per_seed in rows.items()
    }


def _ends(values: list[float]) -> list[float]:
    return [min(values), max(values)]


def _times_better(theirs: Rows, ours: Rows) -> dict[str, dict[str, dict[str, float]]]:
    """Of the medians, and of the seed on which ours does worst."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for spread, per_seed in theirs.items():
        found[spread] = {}
        for column in per_seed[0]:
            pairs = [
                (row[column], our[column]) for row, our in zip(per_seed, ours[spread], strict=True)
            ]
            medians = [statistics.median(side) for side in zip(*pairs, strict=True)]
            found[spread][column.removesuffix("_s")] = {
                "medians": medians[0] / medians[1],
                "worst_seed": min(their / our for their, our in pairs),
            }
    return found
