"""Writes out what `@record` and `@dataclass` make, so that it can be compiled.

A compiler sees the text only. Left to `dataclass`, a compiled class would get an interpreted
`__init__`, and records are made by the dozen for every request. So the decorator keeps all but
that, and the `__init__` is written into the class: the same parameters, the same defaults.

Numbers and pairs of a compiled class lie in it as C has them, and whoever asks from outside gets a
new object each time. orjson lets go of what it got from a dataclass before it has looked at it. So
frozen records, which travel, keep the objects they were given, `Any` to the compiler; the others
are no dataclasses to orjson any more (see `records`).
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_RECORD = ast.parse("dataclass(frozen=True, kw_only=True)", mode="eval").body
# Frozen attributes are set in `__init__` alone: the compiled one sets them in place.
_SET = "{} = {}  # type: ignore[misc]"


@dataclass(frozen=True, slots=True)
class _Edit:
    """Lines [first, stop) give way to others; lines count from 0."""

    first: int
    stop: int
    lines: list[str]


def expand(source: str, open_classes: frozenset[str] = frozenset()) -> str:
    """The module with its records written out. Classes of those names may be derived from.

    Raises ValueError for a `field` with an argument that is not known here.
    """
    tree = ast.parse(source)
    lines = source.splitlines()
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    edits, ends = [], []
    imports = [
        "from dataclasses import dataclass",
        "from typing import Any",
        "from compiled.records import finish_record",
    ]
    for cls in classes:
        if cls.name in open_classes:
            imports.append("from mypy_extensions import mypyc_attr")
            edits.append(_opened(cls))
        made = _dataclass_call(cls)
        if made is not None:
            edits += _written_out(cls, *made)
            annotations = {name: ast.unparse(field.annotation) for name, field in _fields(cls)}
            ends.append(f"finish_record({cls.name}, {annotations!r})")
    behind_docstring = tree.body[0].end_lineno or 0
    edits.append(_Edit(behind_docstring, behind_docstring, imports))
    for edit in sorted(edits, key=lambda edit: edit.first, reverse=True):
        lines[edit.first : edit.stop] = edit.lines
    return "\n".join([*lines, *ends, ""])


def _opened(cls: ast.ClassDef) -> _Edit:
    at = _first_line(cls)
    return _Edit(at, at, ["@mypyc_attr(allow_interpreted_subclasses=True)"])


def _first_line(cls: ast.ClassDef) -> int:
    return min([cls.lineno, *(decorator.lineno for decorator in cls.decorator_list)]) - 1


def _dataclass_call(cls: ast.ClassDef) -> tuple[ast.expr, ast.Call] | None:
    """The decorator that makes a record of the class, and the call that it stands for."""
    for decorator in cls.decorator_list:
        match decorator:
            case ast.Name(id="record"):
                assert isinstance(_RECORD, ast.Call)
                return decorator, _RECORD
            case ast.Call(func=ast.Name(id="dataclass")):
                return decorator, decorator
            case _:
                pass
    return None


def _fields(cls: ast.ClassDef) -> Iterator[tuple[str, ast.AnnAssign]]:
    for node in cls.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node


def _written_out(cls: ast.ClassDef, decorator: ast.expr, call: ast.Call) -> Iterator[_Edit]:
    """The decorator without what is not wanted, and the `__init__` behind the fields."""
    options = {option.arg: ast.unparse(option.value) for option in call.keywords}
    options.pop("slots", None)  # a compiled class has nothing else
    arguments = ", ".join(f"{name}={value}" for name, value in {"init": "False", **options}.items())
    stop = decorator.end_lineno or decorator.lineno
    yield _Edit(decorator.lineno - 1, stop, [f"@dataclass({arguments})"])

    parameters, body = [], []
    for name, field in _fields(cls):
        told = ast.unparse(field.annotation)
        if options.get("frozen") == "True" and _unboxed(field.annotation):
            told = "Any"
            yield _Edit(field.lineno - 1, field.end_lineno or 0, [_as_any(name, field)])
        parameter, value = _parameter(name, told, field)
        if parameter is not None:
            parameters.append(parameter)
        if value is not None:
            body.append(_SET.format(f"self.{name}", value))
    if any(isinstance(node, ast.FunctionDef) and node.name == "__post_init__" for node in cls.body):
        body.append("self.__post_init__()")
    if parameters and options.get("kw_only") == "True":
        parameters.insert(0, "*")
    at = max([field.end_lineno or 0 for _, field in _fields(cls)], default=cls.end_lineno or 0)
    head = f"    def __init__({', '.join(['self', *parameters])}) -> None:"
    yield _Edit(at, at, [head, *(f"        {line}" for line in body or ["pass"])])


def _unboxed(annotation: ast.expr) -> bool:
    """Whether a compiled class has such a value as C has it: a number, a tuple of some length."""
    match annotation:
        case ast.Name(id="int" | "float"):
            return True
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[*_, last])):
            return not (isinstance(last, ast.Constant) and last.value is Ellipsis)
        case _:
            return False


def _as_any(name: str, field: ast.AnnAssign) -> str:
    value = "" if field.value is None else f" = {ast.unparse(field.value)}"
    return f"    {name}: Any{value}"


def _parameter(name: str, told: str, field: ast.AnnAssign) -> tuple[str | None, str | None]:
    """A field of type `told` as a parameter, and the value that is set; None: there is none."""
    told = f"{name}: {told}"
    match field.value:
        case None:
            return told, name
        case ast.Call(func=ast.Name(id="field"), keywords=keywords):
            options = {option.arg: option.value for option in keywords}
        case value:
            return f"{told} = {ast.unparse(value)}", name
    if unknown := options.keys() - {"default", "default_factory", "init", "repr"}:
        raise ValueError(f"line {field.lineno}: {name}: field({', '.join(map(str, unknown))}=...)")
    made = _made(options["default_factory"]) if "default_factory" in options else None
    default = ast.unparse(options["default"]) if "default" in options else None
    if "init" in options:
        return None, made or default
    if made is not None:
        return f"{told} | None = None", f"{made} if {name} is None else {name}"
    return told if default is None else f"{told} = {default}", name


def _made(factory: ast.expr) -> str:
    """What a factory makes; an empty display says its type by where it goes."""
    match factory:
        case ast.Lambda(body=body):
            return ast.unparse(body)
        case ast.Name(id="list"):
            return "[]"
        case ast.Name(id="dict"):
            return "{}"
        case _:
            return f"{ast.unparse(factory)}()"
