"""A linear programme, put together a row at a time: the most of a gain, rows within their limits.

All columns are at least 0. SciPy's HiGHS solves it; a coefficient below 1e-9 of its row's limit is
none to it.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog  # type: ignore[import-untyped]
from scipy.sparse import csr_array  # type: ignore[import-untyped]

Cell = tuple[int, float]  # column, coefficient
Add = Callable[[int, float], None]  # of a cell to a row


class Solution(NamedTuple):
    """[columns] of the best, and for each row what one unit more of its limit would add."""

    x: NDArray[np.float64]
    duals: tuple[float, ...]


class LinearProgramme:
    """Rows and columns as they are found. Cells of one place add up."""

    def __init__(self, columns: int = 0) -> None:
        self.columns = columns
        self._limits: list[float] = []
        self._cells: list[tuple[int, int, float]] = []
        self._zeros = 0
        self._zero_cells: list[tuple[int, int, float]] = []

    def column(self) -> int:
        """A new one, by its number."""
        self.columns += 1
        return self.columns - 1

    def at_most(self, limit: float, cells: Iterable[Cell] = ()) -> Add:
        """A row whose sum is at most `limit`; more cells can be added to it."""
        row = len(self._limits)
        self._limits.append(limit)

        def add(column: int, value: float) -> None:
            if value:
                self._cells.append((row, column, value))

        for column, value in cells:
            add(column, value)
        return add

    def zero(self, cells: Iterable[Cell]) -> None:
        """A row whose sum is 0."""
        self._zero_cells += ((self._zeros, column, value) for column, value in cells)
        self._zeros += 1

    def maximise(self, gain: NDArray[np.float64]) -> Solution | None:
        """The most of `gain` [columns]; None: nothing is possible."""
        limits = np.array(self._limits)
        # Rows in parts of what there is: seconds beside 1e9 bytes are hard on a solver.
        scale = np.where(limits > 0, limits, 1.0)
        cells = [(row, column, value / scale[row]) for row, column, value in self._cells]
        found = linprog(
            -gain,
            A_ub=_matrix(cells, len(limits), self.columns),
            b_ub=limits / scale,
            A_eq=_matrix(self._zero_cells, self._zeros, self.columns),
            b_eq=np.zeros(self._zeros),
            method="highs",
        )
        if found.status != 0:
            return None
        duals = tuple(map(float, -found.ineqlin.marginals / scale))
        return Solution(found.x, duals)


def _matrix(cells: list[tuple[int, int, float]], rows: int, columns: int) -> csr_array:
    places, along, values = zip(*cells, strict=True) if cells else ((), (), ())
    return csr_array((values, (places, along)), shape=(rows, columns))
