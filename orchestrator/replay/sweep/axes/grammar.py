"""The grammar of a sweep: PARAMETER=VALUES, with commas between the axes.

PARAMETER is a key of `PARAMETERS`, with a name in brackets for one of several: link.bandwidth,
link[hami-shenzhen].bandwidth, pool[hami/relay].instances. VALUES is a range, 5..100Gbps, or a list,
5|10|20Gbps; a number without a unit has that of the last one. A range may say how many steps it has
and how they lie: 5..100Gbps/8, 5..100Gbps/linear, 0..3/h/5/log.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.errors import UserError
from orchestrator.replay.scenario.schema import Scenario
from orchestrator.replay.sweep.axes.parameters import PARAMETERS, Parameter
from orchestrator.topology.mistakes import unknown
from orchestrator.topology.units import NUMBER, UnitError

STEPS = 6
WIDE = 4.0  # a range's end over its start from which on its steps are even in ratio
DIGITS = 3  # of the values between a range's ends

_PATH = re.compile(r"([a-z_]+)(?:\[([^\[\]]*)\])?\.([a-z_]+)")
_VALUE = re.compile(rf"\s*(-?\s*(?:{NUMBER}))\s*(.*?)\s*", re.DOTALL)
_HOW = re.compile(r"(.*?)(?:/(\d+))?(?:/(log|linear))?", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One parameter's values in ascending order, in `unit` ("" for plain numbers).

    `key` is that of `PARAMETERS`, `name` the one thing it is about, None: all. `log`: between two
    values one reads by their ratio.
    """

    key: str
    name: str | None
    unit: str
    values: tuple[float, ...]
    log: bool

    @property
    def parameter(self) -> Parameter:
        return PARAMETERS[self.key]

    @property
    def title(self) -> str:
        """As the user writes it."""
        if self.name is None:
            return self.key
        thing, what = self.key.split(".")
        return f"{thing}[{self.name}].{what}"

    @property
    def ends(self) -> str:
        """5 Gbps to 100 Gbps."""
        return f"{self.text(self.values[0])} to {self.text(self.values[-1])}"

    @property
    def span(self) -> str:
        """What it is over: 5 Gbps to 100 Gbps, 6 values."""
        return f"{self.ends}, {len(self.values)} values"

    def change(self, scenario: Scenario, value: float) -> Scenario:
        """The scenario in which it is so. Raises CannotSweep."""
        si = self.parameter.parse(f"{value!r}{self.unit}")
        return self.parameter.change(scenario, self.name, si)

    def text(self, value: float) -> str:
        """Of this axis, or between two values of it, as people write it."""
        number = f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}".replace(",", "")
        space = " " if self.unit[:1].isalpha() else ""
        return f"{number}{space}{self.unit}"


def parse_axes(texts: Iterable[str], scenario: Scenario) -> tuple[Axis, ...]:
    """The axes of one or several --sweep. Raises UserError, one line: place, value, way out."""
    parts = [part.strip() for text in texts for part in text.split(",")]
    axes = tuple(_axis(part, scenario) for part in parts)
    for number, axis in enumerate(axes):
        for earlier in axes[:number]:
            what = axis.parameter.sets
            if (what, axis.name) == (earlier.parameter.sets, earlier.name):
                raise UserError(
                    f"--sweep: {earlier.title} and {axis.title} both set the {what}; give one"
                )
    return axes


def _axis(text: str, scenario: Scenario) -> Axis:
    where = f"--sweep {text}"
    path, given, values = (part.strip() for part in text.partition("="))
    if not given or not values:
        raise UserError(f"{where}: expected PARAMETER=VALUES such as link.bandwidth=5..100Gbps")
    key, name = _known(where, path, scenario)
    parameter = PARAMETERS[key]
    try:
        return _values(key, name, values, parameter)
    except UnitError as error:
        raise UserError(f"{where}: {error}") from None


# ---------------------------------------------------------------------------------------- paths


def _known(where: str, path: str, scenario: Scenario) -> tuple[str, str | None]:
    match = _PATH.fullmatch(path)
    key = f"{match[1]}.{match[3]}" if match else path
    if match is None or key not in PARAMETERS:
        known = ", ".join(PARAMETERS)
        hint = unknown("parameter", key, list(PARAMETERS))
        raise UserError(f"{where}: {hint}" if known in hint else f"{where}: {hint} of {known}")
    parameter, name = PARAMETERS[key], match[2]
    if parameter.names is None:
        if name is not None:
            raise UserError(f"{where}: there is one {key} only; write it without [{name}]")
        return key, None
    names = parameter.names(scenario)
    thing, what = key.split(".")
    listed = list(dict.fromkeys(names.values()))
    if not names:
        raise UserError(f"{where}: scenario {scenario.name} has no {thing} whose {what} could vary")
    if name is None:
        if parameter.named:
            such = f"{thing}[{listed[0]}].{what}"
            raise UserError(f"{where}: say which, such as {such}; {thing}s: {', '.join(listed)}")
        return key, None
    if name not in names:
        raise UserError(f"{where}: {unknown(thing, name, listed)}")
    return key, names[name]


# --------------------------------------------------------------------------------------- values


def _values(key: str, name: str | None, text: str, parameter: Parameter) -> Axis:
    """Raises UnitError."""
    match = _HOW.fullmatch(text)
    assert match is not None  # it takes anything
    body, steps, spacing = match.groups()
    listed, ranged = "|" in body, ".." in body
    ends = re.split(r"\|" if listed else r"\.\.", body)
    if listed and ranged:
        raise UnitError(f"{body!r} is a list and a range at once; give one, such as {_such(key)}")
    if ranged and len(ends) != 2:
        raise UnitError(f"{body!r} is no range; write it such as {_such(key)}")
    if not ranged and (steps or spacing):
        raise UnitError(f"{body!r} is no range, so it has no steps; write it such as {_such(key)}")
    unit, numbers = _numbers(key, ends, parameter)
    for number in numbers:
        _check(number, unit, parameter)
    log = spacing == "log" if spacing else parameter.log and _is_wide(numbers)
    if ranged:
        if log and min(numbers) <= 0:
            raise UnitError("steps that are even in ratio begin above 0; write /linear instead")
        numbers = _range(numbers, unit, int(steps) if steps else None, log, parameter.whole)
    return Axis(key=key, name=name, unit=unit, values=tuple(sorted(set(numbers))), log=log)


def _such(key: str) -> str:
    return f"{key}={PARAMETERS[key].example}"


def _numbers(key: str, texts: Sequence[str], parameter: Parameter) -> tuple[str, list[float]]:
    """All in the unit of the last one."""
    pairs = []
    for text in texts:
        match = _VALUE.fullmatch(text)
        if match is None:
            raise UnitError(f"{text!r} is no number; write it such as {_such(key)}")
        pairs.append((match[1].replace(" ", ""), match[2].replace(" ", "")))
    unit = pairs[-1][1] or parameter.unit or ""
    numbers = []
    for number, own in reversed(pairs):  # if the last one lacks its unit, it is to be blamed
        value = parameter.parse(f"{number}{own or unit}")  # says what is wrong with it
        same = own in ("", unit)
        numbers.append(float(number) if same else value / parameter.parse(f"1{unit}"))
    numbers.reverse()
    return unit, numbers


def _check(number: float, unit: str, parameter: Parameter) -> None:
    if number < 0 or (parameter.positive and not number):
        least = "above" if parameter.positive else "at least"
        raise UnitError(f"must be {least} 0, got {number:g}{unit}")
    if number >= parameter.below:
        raise UnitError(f"must be below {parameter.below:g}, got {number:g}{unit}")
    if parameter.whole and number != int(number):
        raise UnitError(f"must be whole, got {number:g}{unit}")


def _is_wide(numbers: Sequence[float]) -> bool:
    return min(numbers) > 0 and max(numbers) >= WIDE * min(numbers)


def _range(
    ends: Sequence[float], unit: str, steps: int | None, log: bool, whole: bool
) -> list[float]:
    start, end = ends
    if start > end:
        raise UnitError(f"runs from {start:g} down to {end:g}; write {end:g}..{start:g}{unit}")
    if start == end:
        raise UnitError(f"begins and ends at {end:g}; for one value write {end:g}{unit}")
    if steps is not None and steps < 2:
        raise UnitError(f"a range has at least 2 steps, got {steps}")
    count = steps or STEPS
    between = np.geomspace(start, end, count) if log else np.linspace(start, end, count)
    # Ends as they are written; what lies between is rounded, and is what is computed too.
    inner = [float(f"{value:.{DIGITS}g}") for value in between[1:-1]]
    if whole:
        inner = [float(round(value)) for value in inner]
    return [start, *(value for value in inner if start < value < end), end]
