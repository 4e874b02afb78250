"""Messages as JSON: `encode` to a dict with a `kind`, `decode` back, strictly.

The checks are built once from the messages' own annotations, so a message has one definition.
Every integer is 0 or more (a seed may be negative), every token id fits 32 bits. `Wire` does the
same for any family of dataclasses, whose fields may hold messages.
"""

import math
import reprlib
import types
from array import array
from collections.abc import Callable, Container, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Any, Union, get_args, get_origin, get_type_hints

from workers.api.messages import (
    ControlMessage,
    DownMessage,
    Feed,
    KVFailed,
    KVStats,
    Landed,
    Load,
    NextTokens,
    Pause,
    Paused,
    Refused,
    Resume,
    Resync,
    SendKV,
    Start,
    Stop,
    TokenRun,
    UpMessage,
)


class WireError(ValueError):
    """A message that cannot be read; the text is one line and names the field."""


KINDS: dict[str, type] = {
    "start": Start,
    "sendkv": SendKV,
    "pause": Pause,
    "resume": Resume,
    "stop": Stop,
    "feed": Feed,
    "resync": Resync,
    "tok": TokenRun,
    "step": NextTokens,
    "landed": Landed,
    "paused": Paused,
    "refused": Refused,
    "kvfail": KVFailed,
    "kvstats": KVStats,
    "load": Load,
}
CONTROL: tuple[type, ...] = get_args(ControlMessage)
TOKENS: tuple[type, ...] = (Feed, Resync)
UP: tuple[type, ...] = get_args(UpMessage)

Check = Callable[[Any, str], Any]
Form = Callable[[Any], Any]
# kind, names of the fields, what reads them all, and those that need a form of their own
_Writer = tuple[
    str, tuple[str, ...], Callable[[Any], tuple[Any, ...]], tuple[tuple[str, Form], ...]
]

MAX_INT = 2**63 - 1
MIN_SIGNED, MAX_SIGNED = -(2**63), 2**64 - 1  # what a sampler's key and JSON's integers hold
SIGNED = frozenset({"seed", "priority"})  # fields that may be below 0


class Wire:
    """How the classes of one family travel: as an object with a `kind` and the class's own fields.

    `what` names one of them in errors. Raises TypeError for a class with a field that has no form.
    """

    def __init__(self, kinds: Mapping[str, type], what: str) -> None:
        self._kinds = kinds
        self._what = what
        self._readers = {cls: _record(cls) for cls in kinds.values()}
        self._writers = {cls: _writer(kind, cls) for kind, cls in kinds.items()}

    def encode(self, value: Any) -> dict[str, Any]:
        """A dict that orjson writes as it is: enums, tuples and nested dataclasses stay inside."""
        kind, names, values, formed = self._writers[type(value)]
        body = dict(zip(names, values(value), strict=True), kind=kind)
        for name, form in formed:
            body[name] = form(body[name])
        return body

    def decode(self, body: Any, allowed: Container[type]) -> Any:
        """What `body` holds, one of the classes in `allowed`. Raises WireError."""
        if type(body) is not dict:
            raise WireError(f"{self._what} must be an object, got {shown(body)}")
        kind = body.get("kind")
        if not isinstance(kind, str) or self._kinds.get(kind) not in allowed:
            raise WireError(f"kind: unknown or not accepted here: {shown(kind)}")
        return self._readers[self._kinds[kind]](body, kind)


def encode(message: DownMessage | UpMessage) -> dict[str, Any]:
    """A dict that orjson writes as it is."""
    return MESSAGES.encode(message)


def decode(body: Any, allowed: tuple[type, ...]) -> Any:
    """The message `body` holds, one of the classes in `allowed`. Raises WireError."""
    return MESSAGES.decode(body, allowed)


# ---------------------------------------------------------------- checks, one per type


def shown(value: Any) -> str:
    """A value that somebody else wrote, for an error's one line: short, however large or deep."""
    text = _FEW.repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


_FEW = reprlib.Repr()  # repr itself gives up at values that JSON still nests
_FEW.maxlevel, _FEW.maxstring, _FEW.maxother, _FEW.maxlong = 3, 60, 60, 60


def _integer(value: Any, path: str) -> int:
    if type(value) is not int or not 0 <= value <= MAX_INT:
        raise WireError(f"{path}: must be an integer of 0 or more, got {shown(value)}")
    return value


def _signed(value: Any, path: str) -> int:
    if type(value) is not int or not MIN_SIGNED <= value <= MAX_SIGNED:
        raise WireError(f"{path}: must be an integer of 64 bits, got {shown(value)}")
    return value


def _number(value: Any, path: str) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise WireError(f"{path}: must be a finite number, got {shown(value)}")
    return float(value)


def _text(value: Any, path: str) -> str:
    if type(value) is not str:
        raise WireError(f"{path}: must be a string, got {shown(value)}")
    return value


def _flag(value: Any, path: str) -> bool:
    if type(value) is not bool:
        raise WireError(f"{path}: must be true or false, got {shown(value)}")
    return value


def _ids(value: Any, path: str) -> tuple[int, ...]:
    if type(value) is not list:
        raise WireError(f"{path}: must be a list of token ids, got {shown(value)}")
    try:
        return tuple(array("I", value))
    except (TypeError, OverflowError):
        raise WireError(f"{path}: must be a list of token ids, got {shown(value)}") from None


def _choice(cls: type[StrEnum]) -> Check:
    known = {str(member): member for member in cls}

    def check(value: Any, path: str) -> StrEnum:
        found = known.get(value) if type(value) is str else None
        if found is None:
            raise WireError(f"{path}: must be one of {', '.join(cls)}, got {shown(value)}")
        return found

    return check


def _optional(inner: Check) -> Check:
    return lambda value, path: None if value is None else inner(value, path)


def _list_of(inner: Check) -> Check:
    def check(value: Any, path: str) -> tuple[Any, ...]:
        if type(value) is not list:
            raise WireError(f"{path}: must be a list, got {shown(value)}")
        return tuple(inner(item, path) for item in value)

    return check


def _pair(first: Check, second: Check) -> Check:
    def check(value: Any, path: str) -> tuple[Any, Any]:
        if type(value) is not list or len(value) != 2:
            raise WireError(f"{path}: must be a pair, got {shown(value)}")
        return first(value[0], path), second(value[1], path)

    return check


def _set_of(inner: Check) -> Check:
    items = _list_of(inner)

    def check(value: Any, path: str) -> frozenset[Any]:
        checked = items(value, path)
        if len(set(checked)) < len(checked):
            raise WireError(f"{path}: must hold nothing twice, got {shown(value)}")
        return frozenset(checked)

    return check


def _table_of(inner: Check) -> Check:
    def check(value: Any, path: str) -> dict[str, Any]:
        if type(value) is not dict:
            raise WireError(f"{path}: must be an object, got {shown(value)}")
        return {name: inner(item, path) for name, item in value.items()}

    return check


def _record(cls: type) -> Check:
    """A dataclass from an object: unknown and missing fields are refused."""
    hints = get_type_hints(cls)
    checks = {f.name: _signed if f.name in SIGNED else _check(hints[f.name]) for f in fields(cls)}
    required = {
        f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING
    }

    def check(value: Any, path: str) -> Any:
        if type(value) is not dict:
            raise WireError(f"{path}: must be an object, got {shown(value)}")
        values = {}
        for name, item in value.items():
            field_check = checks.get(name)
            if field_check is not None:
                values[name] = field_check(item, name)
            elif name != "kind":
                raise WireError(f"{path}: unknown field {shown(name)}")
        if not required <= values.keys():
            raise WireError(f"{path}: {', '.join(sorted(required - values.keys()))} missing")
        try:
            return cls(**values)
        except ValueError as error:
            raise WireError(f"{path}: {error}") from error

    return _of_one_length(check) if cls is NextTokens else check


def _of_one_length(inner: Check) -> Check:
    """Of a table in columns."""

    def check(value: Any, path: str) -> Any:
        table = inner(value, path)
        if len({len(getattr(table, f.name)) for f in fields(table)}) > 1:
            raise WireError(f"{path}: columns of different lengths")
        return table

    return check


_SIMPLE: dict[Any, Check] = {int: _integer, float: _number, str: _text, bool: _flag}


def _check(hint: Any) -> Check:
    """The check for one annotation. Raises TypeError for one that messages do not use yet."""
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if hint == tuple[int, ...]:
        return _ids
    args = get_args(hint)
    if get_origin(hint) in (types.UnionType, Union) and args[-1] is type(None) and len(args) == 2:
        return _optional(_check(args[0]))
    if _is_message(hint):
        return lambda value, path: MESSAGES.decode(value, args)
    if get_origin(hint) is frozenset:
        return _set_of(_check(args[0]))
    if get_origin(hint) is dict and args[0] is str:
        return _table_of(_check(args[1]))
    if get_origin(hint) is tuple:
        if args[-1] is Ellipsis:
            return _list_of(_check(args[0]))
        if len(args) == 2:
            return _pair(_check(args[0]), _check(args[1]))
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _choice(hint)
    if is_dataclass(hint) and isinstance(hint, type):
        return _record(hint)
    raise TypeError(f"no wire form for {hint}")


def _is_message(hint: Any) -> bool:
    """Whether a field holds one of several messages, each with its kind."""
    union = get_origin(hint) in (types.UnionType, Union)
    return union and set(get_args(hint)) <= set(KINDS.values())


def _form(hint: Any) -> Form | None:
    """What makes a field's value one that orjson writes; None: it does already."""
    if _is_message(hint):
        return encode
    return sorted if get_origin(hint) is frozenset else None


def _writer(kind: str, cls: type) -> _Writer:
    hints = get_type_hints(cls)
    names = tuple(f.name for f in fields(cls))
    formed = tuple((name, form) for name in names if (form := _form(hints[name])) is not None)
    if len(names) > 1:
        return kind, names, attrgetter(*names), formed
    # attrgetter takes at least one name, and gives no tuple for one.
    return kind, names, lambda value: tuple(getattr(value, name) for name in names), formed


MESSAGES = Wire(KINDS, "a message")
