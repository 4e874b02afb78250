"""From which line on does the far site pay?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import exp, log

from orchestrator.replay.sweep.axes.grammar import Axis
from orchestrator.replay.sweep.swept import Swept

# Where paying begins and ends; None: it goes on beyond the first or the last value.
Window = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """Where along one axis a policy gives more than the near one, at fixed values of the others.

    `others`: by the axes' places; `axis` is the place of the one that is looked along.
    """

    policy: str
    axis: int
    others: tuple[tuple[int, float], ...]
    windows: tuple[Window, ...]


def break_evens(swept: Swept) -> list[BreakEven]:
    """Of every policy but the near one, along every axis, at every value of the others."""
    return [
        found
        for policy in swept.far
        for place in range(len(swept.axes))
        for found in _along(swept, policy, place)
    ]


def text(found: BreakEven, axes: Sequence[Axis]) -> str:
    """As people say it: from 12 Gbps on; up to 3200 km; nowhere."""
    axis = axes[found.axis]
    parts = []
    for begin, end in found.windows:
        if begin is None and end is None:
            return "everywhere"
        if begin is None and end is not None:
            parts.append(f"up to {_short(axis, end)}")
        elif begin is not None and end is None:
            parts.append(f"from {_short(axis, begin)} on")
        elif begin is not None and end is not None:
            parts.append(f"from {_short(axis, begin)} to {_short(axis, end)}")
    return " and ".join(parts) or "nowhere"


def _short(axis: Axis, value: float) -> str:
    """A value between two that were computed is not known to more digits."""
    return axis.text(float(f"{value:.3g}"))


def _along(swept: Swept, policy: str, place: int) -> Iterator[BreakEven]:
    axis = swept.axes[place]
    rest = [other for number, other in enumerate(swept.axes) if number != place]
    for others in product(*(other.values for other in rest)):
        points = [(*others[:place], value, *others[place:]) for value in axis.values]
        gains = [swept.gain(point, policy) for point in points]
        places = [number for number in range(len(swept.axes)) if number != place]
        yield BreakEven(
            policy=policy,
            axis=place,
            others=tuple(zip(places, others, strict=True)),
            windows=tuple(windows(axis.values, gains, by_ratio=axis.log)),
        )


def windows(
    values: Sequence[float], gains: Sequence[float | None], *, by_ratio: bool
) -> Iterator[Window]:
    """Where a gain is above 0: linear between two values (by their ratio: in the logarithm).

    Where it is not known it ends.
    """
    pays = [gain is not None and gain > 0 for gain in gains]
    begin: float | None = None
    for number, (before, now) in enumerate(pairwise(pays), 1):
        if before == now:
            continue
        edge = _edge(values[number - 1 : number + 1], gains[number - 1 : number + 1], by_ratio)
        if now:
            begin = edge
        else:
            yield begin, edge
            begin = None
    if pays and pays[-1]:
        yield begin, None


def _edge(values: Sequence[float], gains: Sequence[float | None], by_ratio: bool) -> float:
    """Where between two values the gain is 0; where one is not known, at the one that is."""
    (a, b), (before, after) = values, gains
    if before is None or after is None:
        return b if before is None else a
    part = before / (before - after)
    return exp(log(a) + part * (log(b) - log(a))) if by_ratio and a > 0 else a + part * (b - a)
