"""A line of the result."""

from dataclasses import dataclass
from typing import Any

from benchmarks.validate.fit import Errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was compared, and how far off it was. `fit_on`: where free constants came from."""

    name: str
    metric: str
    fit_on: str
    errors: Errors

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "metric": self.metric,
            "n": self.errors.n,
            "fit_on": self.fit_on,
            "error_mean": self.errors.mean,
            "error_p50": self.errors.p50,
            "error_p90": self.errors.p90,
        }
