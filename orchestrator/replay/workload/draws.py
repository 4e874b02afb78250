"""What is drawn for a generated workload: arrivals, lengths, prefix hits."""

import random
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from math import exp, inf, log, sqrt


class Process(StrEnum):
    POISSON = "poisson"
    UNIFORM = "uniform"  # evenly spaced
    GAMMA = "gamma"  # gaps with a coefficient of variation of their own


@dataclass(frozen=True, slots=True)
class Burst:
    """From `begin` to `end` (s) requests come `factor` times as fast."""

    begin: float
    end: float
    factor: float

    def __post_init__(self) -> None:
        if not (0 <= self.begin < self.end < inf and 0 <= self.factor < inf):
            raise ValueError(f"burst from {self.begin:g} to {self.end:g} s, x {self.factor:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Times of arrival. `per_s`: outside bursts. `cv`: of GAMMA's gaps, 1 is Poisson's."""

    per_s: float
    process: Process = Process.POISSON
    cv: float = 1.0
    bursts: tuple[Burst, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.per_s < inf or not 0 < self.cv < inf:
            raise ValueError(f"arrivals of {self.per_s:g} a second, cv {self.cv:g}: must be > 0")
        if any(a.end > b.begin for a, b in zip(self.bursts, self.bursts[1:], strict=False)):
            raise ValueError("bursts must be in order and apart")

    def times(self, draw: random.Random) -> Iterator[float]:
        """Without end. A burst is a stretch of time in which more of it passes."""
        at = 0.0
        # When a stretch ends, and how fast requests came in it.
        ends = [stretch for b in self.bursts for stretch in ((b.begin, 1.0), (b.end, b.factor))]
        while True:
            amount = self._gap(draw) / self.per_s
            while ends and amount > (ends[0][0] - at) * ends[0][1]:
                amount -= (ends[0][0] - at) * ends[0][1]
                at = ends.pop(0)[0]
            at += amount / (ends[0][1] if ends else 1.0)
            yield at

    def _gap(self, draw: random.Random) -> float:
        """With a mean of 1."""
        if self.process is Process.UNIFORM:
            return 1.0
        if self.process is Process.POISSON or self.cv == 1.0:
            return draw.expovariate(1.0)
        shape = 1 / self.cv**2
        return draw.gammavariate(shape, 1 / shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens: `mean` for all, or log-normal with that mean and coefficient of variation `cv`.

    Cut off at `least` and `most`, which lowers or raises the mean a little.
    """

    mean: float
    cv: float = 0.0
    least: int = 1
    most: int = 1 << 20
    _sigma: float = field(init=False, repr=False, compare=False)  # of the length's logarithm

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.mean <= self.most or not 0 <= self.cv < inf:
            raise ValueError(
                f"lengths of {self.mean:g} tokens between {self.least} and {self.most}, "
                f"cv {self.cv:g}"
            )
        object.__setattr__(self, "_sigma", sqrt(log(1 + self.cv**2)))

    def drawn(self, draw: random.Random) -> int:
        if not self.cv:
            return round(self.mean)
        sigma = self._sigma
        length = self.mean * exp(sigma * draw.gauss(0.0, 1.0) - sigma * sigma / 2)
        return max(self.least, min(self.most, round(length)))


@dataclass(frozen=True, slots=True)
class Hits:
    """Which part of a prompt was seen before: a distribution by its quantiles, linear between.

    `points`: (probability, part), from probability 0 to 1.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        chances = [chance for chance, _ in self.points]
        if chances != sorted(chances) or chances[:1] != [0.0] or chances[-1:] != [1.0]:
            raise ValueError("hits: probabilities must go from 0 to 1")
        if any(not 0 <= part < 1 for _, part in self.points):
            raise ValueError("hits: parts must be in [0, 1)")

    def drawn(self, draw: random.Random) -> float:
        u = draw.random()
        place = min(bisect_right(self.points, (u, inf)), len(self.points) - 1)
        (a, low), (b, high) = self.points[place - 1], self.points[place]
        return low + (high - low) * (u - a) / (b - a) if b > a else high


def fixed(part: float) -> Hits:
    """The same for all."""
    return Hits(((0.0, part), (1.0, part)))


NARROW = Hits(((0.0, 0.85), (1.0, 0.95)))
# Spread over 2-99 % with a mean of 90 %, as PDD's: most prompts are nearly known, a few hardly.
SKEWED = Hits(((0.0, 0.02), (0.05, 0.50), (0.15, 0.88), (0.4, 0.96), (1.0, 0.99)))
NONE = fixed(0.0)
