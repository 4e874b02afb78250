"""All that was measured by others, against the replay's costs and engine room."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.validate import runs, tables
from benchmarks.validate.fit import Constants
from benchmarks.validate.table import Row

DATA = Path(__file__).parents[3] / "shared/validation"


def run(*, data: Path = DATA, tell: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Errors as parts of what was measured, and the constants that were fitted.

    Raises FileNotFoundError where the measurements are not.
    """
    tell("Splitwise: fitting on half of the sizes")
    found, constants = tables.splitwise(data)
    found += tables.distserve(data, constants["a100-80gb"])
    tell(f"vLLM: fitting on {runs.FIT_ON[0]}")
    fit_on = runs.read_run(data, *runs.FIT_ON)
    card = runs.fit(fit_on)
    judged = [runs.read_run(data, *which) for which in runs.JUDGED]
    for each in (fit_on, *judged):
        tell(f"vLLM: {each.name}")
        found += runs.rows(each, card, fit_on.name)
    other, other_card, rows = _other_card(data, card, fit_on.name, tell)
    found += rows
    steady = [each for each in (fit_on, *judged, other) if each.ranks == 1]
    return {
        "tables": [row.as_json() for row in found],
        "fast_vs_step_s": max(
            runs.fast_vs_step_s(each, other_card if each is other else card) for each in steady
        ),
        "constants": {**constants, "rtx-pro-6000": card, "rtx4090": other_card},
    }


def _other_card(
    data: Path, card: Constants, fit_on: str, tell: Callable[[str], None]
) -> tuple[runs.Run, Constants, list[Row]]:
    """A card that is short of KV all the time: by another's constants, and by its own."""
    other = runs.read_run(data, *runs.OTHER_CARD)
    tell(f"vLLM: fitting on the first half of {other.name}")
    half = len(other.asks) // 2
    own = runs.fit(other, slice(half))
    rows = runs.rows(other, card, fit_on)
    rows += runs.rows(other, own, "the first half of its requests", slice(half, None))
    return other, own, rows
