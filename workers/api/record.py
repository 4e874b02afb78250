"""How messages, events and actions are written down: data that nobody changes once it is made."""

from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """A dataclass with named fields that are never set again."""
    made = dataclass(frozen=True, slots=True, kw_only=True)(cls)
    made.__init__ = _quick_init(made)  # type: ignore[method-assign]
    return made


def _quick_init(cls: type[Any]) -> Any:
    """The `__init__` that dataclass would make, at half its time.

    A frozen dataclass looks every field's name up to set it, and records are made by the dozen for
    each request: here each slot is set by its own descriptor, which is known beforehand.
    """
    names: dict[str, Any] = {}
    parameters, lines = [], []
    for f in fields(cls):
        names[f"_set_{f.name}"] = cls.__dict__[f.name].__set__
        value = f.name
        if f.default is not MISSING:
            names[f"_default_{f.name}"] = f.default
            parameters.append(f"{f.name}=_default_{f.name}")
        elif f.default_factory is not MISSING:
            names[f"_make_{f.name}"], names["_missing"] = f.default_factory, MISSING
            parameters.append(f"{f.name}=_missing")
            value = f"_make_{f.name}() if {f.name} is _missing else {f.name}"
        else:
            parameters.append(f.name)
        lines.append(f"    _set_{f.name}(self, {value})")
    head = ", ".join(["self", "*", *parameters]) if parameters else "self"
    exec(f"def __init__({head}):\n" + ("\n".join(lines) or "    pass"), names)  # as dataclass does
    return names["__init__"]
