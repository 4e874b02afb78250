"""From a case that breaks a promise to the few faults and requests that do it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from orchestrator.virtual.faults.cases import Case, play
from orchestrator.virtual.faults.checks import check
from orchestrator.virtual.promises import Promise

T = TypeVar("T")


def broken(case: Case) -> set[Promise]:
    """The promises that a case breaks."""
    return {breach.promise for breach in check(play(case))}


def shrink(case: Case, *, tries: int = 400) -> Case:
    """A part of the case that still breaks one of the same promises; at most so many runs.

    Faults go first, then requests: larger parts before smaller ones (Zeller's ddmin).
    """
    wanted = broken(case)
    left = tries

    def still(part: Case) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and bool(broken(part) & wanted)

    faults = _least(case.faults, lambda kept: still(replace(case, faults=tuple(kept))))
    case = replace(case, faults=tuple(faults))
    asks = _least(case.asks, lambda kept: still(replace(case, asks=tuple(kept))))
    case = replace(case, asks=tuple(asks))
    faults = _least(case.faults, lambda kept: still(replace(case, faults=tuple(kept))))
    return replace(case, faults=tuple(faults))


def _least(items: Sequence[T], holds: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """Items without which `holds` would no longer hold, one chunk at a time."""
    size = max(1, len(items) // 2)
    while items:
        at = 0
        while at < len(items):
            kept = [*items[:at], *items[at + size :]]
            if holds(kept):
                items = kept
            else:
                at += size
        if size == 1:
            return items
        size //= 2
    return items
