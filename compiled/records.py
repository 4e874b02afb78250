"""What compiled records need to look like interpreted ones from outside; called by `expand`."""

from collections.abc import Callable
from dataclasses import Field, fields
from typing import Any


def finish_record(cls: type[Any], annotations: dict[str, str]) -> None:
    """Give a compiled dataclass what `dataclass(slots=True)` would: exact types, slots, a copy.

    One that can change is no dataclass any more: to write it as JSON would not be safe.
    """
    cls.__annotations__ = annotations
    cls.__slots__ = tuple(annotations)
    cls.__reduce__ = _reducer(fields(cls))  # type: ignore[assignment]
    if not cls.__dataclass_params__.frozen:
        del cls.__dataclass_fields__


def _reducer(all_fields: tuple[Field[Any], ...]) -> Callable[[Any], tuple[Any, ...]]:
    """For pickle and copy. A compiled class makes nothing that its `__init__` has not seen."""

    def reduced(record: Any) -> tuple[Any, ...]:
        given: dict[str, Any] = {}
        later: dict[str, Any] = {}
        for field in all_fields:
            (given if field.init else later)[field.name] = getattr(record, field.name)
        return remade, (type(record), given, later)

    return reduced


def remade(cls: type[Any], given: dict[str, Any], later: dict[str, Any]) -> Any:
    """The record that had these values."""
    record = cls(**given)
    for name, value in later.items():
        object.__setattr__(record, name, value)
    return record
