"""Constants of a card that are not in any data sheet, found by trying."""

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.catalogue import Chip, Figure, Grade

MOST = {"mfu": 1.0, "mbu": 1.0, "serial": 1.0, "link_mbu": 1.0}
LEAST = 1e-6
FIRST_STEP, LAST_STEP = 0.3, 0.01  # parts by which a constant is changed

Constants = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Parts of what was measured, of `n` values."""

    n: int
    mean: float
    p50: float
    p90: float


def errors(predicted: list[float], measured: list[float]) -> Errors:
    """|predicted / measured - 1| of each pair."""
    found = sorted(abs(p / m - 1) for p, m in zip(predicted, measured, strict=True))
    n = len(found)
    return Errors(
        n=n,
        mean=sum(found) / n,
        p50=found[(n - 1) // 2],
        p90=found[min(n - 1, int(0.9 * n))],
    )


def search(start: Constants, loss: Callable[[Constants], float]) -> Constants:
    """The constants with the least loss near `start`: each in turn up and down, ever finer."""
    best, least = start, loss(start)
    step = FIRST_STEP
    while step > LAST_STEP:
        improved = False
        for key in start:
            for factor in (1 + step, 1 / (1 + step)):
                value = max(LEAST, min(best[key] * factor, MOST.get(key, best[key] * factor)))
                tried = best | {key: value}
                if (found := loss(tried)) < least:
                    best, least, improved = tried, found, True
                    break
        if not improved:
            step /= 2
    return best


def fitted(chip: Chip, constants: Constants) -> Chip:
    """The chip with these constants in place of the catalogue's."""
    update = {
        key: Figure(value=value, grade=Grade.MEASURED, source="fitted")
        for key, value in constants.items()
    }
    return chip.model_copy(update=update)
