"""How messages, events and actions are written down: data that nobody changes once it is made."""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """A dataclass with named fields that are never set again."""
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)
