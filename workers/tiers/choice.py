"""Load, or compute? How long a tier takes is measured; of every depth the best is taken."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, Protocol

from workers.costs import Chunk, Costs
from workers.tiers.blocks import Tier

# Until a tier has been measured, and again once that is old: fast enough to be tried.
ASSUMED_BYTES_PER_S = {Tier.MEMORY: 2e9, Tier.FILES: 5e8}
ASSUMED_LATENCY_S = 0.002
BELIEVED_S = 60.0
_WEIGHT = 0.25  # of the newest measurement


class Place(NamedTuple):
    """Where a block is: which of the stores that a worker knows, and in which tier."""

    store: int
    tier: Tier


@dataclass(slots=True)
class _Measured:
    bytes_per_s: float
    at: float


class Speeds:
    """What loading takes, as it was measured in the last `BELIEVED_S`."""

    def __init__(self) -> None:
        self._rates: dict[Place, _Measured] = {}
        self._latency_s: dict[int, float] = {}

    def asked(self, store: int, took_s: float) -> None:
        """A question without blocks was answered."""
        old = self._latency_s.get(store, took_s)
        self._latency_s[store] = old + _WEIGHT * (took_s - old)

    def loaded(self, place: Place, nbytes: int, took_s: float, now: float) -> None:
        """Blocks came."""
        rate = nbytes / max(took_s - self.latency_s(place.store), took_s / 2)
        old = self._rates.get(place)
        if old is not None and now - old.at < BELIEVED_S:
            rate = 1 / ((1 - _WEIGHT) / old.bytes_per_s + _WEIGHT / rate)
        self._rates[place] = _Measured(rate, now)

    def latency_s(self, store: int) -> float:
        return self._latency_s.get(store, ASSUMED_LATENCY_S)

    def bytes_per_s(self, place: Place, now: float) -> float:
        measured = self._rates.get(place)
        if measured is None or now - measured.at >= BELIEVED_S:
            return ASSUMED_BYTES_PER_S[place.tier]
        return measured.bytes_per_s


def spared_s(costs: Costs, lacking: int, have: int, tokens: int) -> float:
    """Seconds of prefill that the first `tokens` of `lacking` ones cost, after `have` others.

    Not as much as they would take alone: a step takes as long as reading the weights, be its chunk
    short.
    """
    rest = lacking - tokens
    rest_s = costs.step_s([Chunk(rest, have + tokens)], 0, 0) if rest else 0.0
    return costs.step_s([Chunk(lacking, have)], 0, 0) - rest_s


class Rates(Protocol):
    """What loading takes; see `Speeds`."""

    def latency_s(self, store: int) -> float: ...
    def bytes_per_s(self, place: Place, now: float) -> float: ...


def worth_loading(
    places: Sequence[Place | None],
    block_bytes: int,
    speeds: Rates,
    now: float,
    compute_s: Callable[[int], float],
    *,
    limit_s: float = inf,
) -> int:
    """How many leading blocks of a run to load; the first that is nowhere ends the run, and the
    first that would not be here within `limit_s`, when nobody waits any more.

    `compute_s(n)`: seconds that the first n blocks cost otherwise, which loading them spares. What
    comes after them costs the same in any case, so the depth with the largest gain is the best.
    """
    best, most_s = 0, 0.0
    load_s, stores = 0.0, set()
    for depth, place in enumerate(places, start=1):
        if place is None:
            break
        if place.store not in stores:
            stores.add(place.store)
            load_s += speeds.latency_s(place.store)
        load_s += block_bytes / speeds.bytes_per_s(place, now)
        if load_s > limit_s:
            break
        gained_s = compute_s(depth) - load_s
        if gained_s > most_s:
            best, most_s = depth, gained_s
    return best
