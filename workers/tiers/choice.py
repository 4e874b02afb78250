"""Load, or compute? How long a tier takes is measured; of every depth the best is taken."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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


def worth_loading(
    places: Sequence[Place | None],
    block_bytes: int,
    speeds: Speeds,
    now: float,
    compute_s: Callable[[int], float],
) -> int:
    """How many leading blocks of a run to load; the first that is nowhere ends the run.

    `compute_s(n)`: seconds that the first n blocks cost otherwise. What is computed after them
    costs the same in any case, so the depth with the largest gain is the best.
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
        gained_s = compute_s(depth) - load_s
        if gained_s > most_s:
            best, most_s = depth, gained_s
    return best
