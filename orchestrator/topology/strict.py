"""Read a file against a strict schema: all of its mistakes, each with its place, or the model."""

import re
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from orchestrator.topology.document import Document, read_document
from orchestrator.topology.mistakes import Mistake, Path, TopologyError, path_text, unknown
from orchestrator.topology.schema import FROM_FILE

M = TypeVar("M", bound=BaseModel)


def load_model(model: type[M], path: FilePath) -> M:
    """What a file describes. Raises TopologyError with every mistake in it."""
    loaded, mistakes = check(model, read_document(path))
    if mistakes or loaded is None:
        raise TopologyError(mistakes)
    return loaded


def check(model: type[M], document: Document) -> tuple[M | None, list[Mistake]]:
    """What a document describes, None if it does not fit the schema; and all its mistakes."""
    mistakes = list(document.mistakes)
    if not isinstance(document.data, dict):
        found = _kind_of(document.data)
        mistakes.append(document.mistake((), f"expected keys and values, got {found}"))
        return None, mistakes
    try:
        return validate(model, document.data), mistakes
    except ValidationError as error:
        spoiled = {mistake.path for mistake in mistakes}
        mistakes += _schema_mistakes(document, model, error, spoiled)
        return None, mistakes


def validate(model: type[M], data: object) -> M:
    """Raises pydantic's ValidationError."""
    return model.model_validate(data, context=FROM_FILE, by_alias=True, by_name=False)


def _schema_mistakes(
    document: Document,
    model: type[BaseModel],
    error: ValidationError,
    spoiled: set[str],
) -> Iterator[Mistake]:
    """What the schema found; `spoiled` are the paths that the reader has told of already."""
    details = error.errors(include_url=False)
    parents = {detail["loc"][:-1] for detail in details}
    for detail in details:
        path, kind = detail["loc"], detail["type"]
        if kind == "too_short" and path in parents:
            continue  # pydantic does not count a wrong part
        if kind == "one_delay" or path_text(path) in spoiled:
            continue  # told by a rule, or already by the reader
        if path and path[-1] == "[key]":
            path, kind = path[:-1], "unknown_key" if kind == "enum" else "name"
        message = _message(model, path, kind, detail)
        yield document.mistake(path, message, at_key=kind in AT_KEY)


AT_KEY = {"extra_forbidden", "name", "missing", "unknown_key"}


def _message(model: type[BaseModel], path: Path, kind: str, detail: ErrorDetails) -> str:
    value, ctx = detail["input"], detail.get("ctx", {})
    key = str(path[-1]) if path else ""
    match kind:
        case "extra_forbidden":
            return unknown("key", key, _keys(model, path[:-1]))
        case "missing":
            return "missing; it has no default"
        case "name":
            return f"the name {path[-1]!r} may only have letters, digits, - and _ (at most 40)"
        case "unknown_key":
            return unknown("key", key, re.findall(r"'([^']+)'", ctx["expected"]))
        case "literal_error" | "enum":
            noun = "role" if kind == "enum" and isinstance(path[-1], int) else key
            known = re.findall(r"'([^']+)'", ctx["expected"])
            return unknown(noun, value, known)
        case "value_error":
            return str(ctx["error"])
        case "greater_than":
            return f"must be above {ctx['gt']:g}, got {value}"
        case "greater_than_equal":
            return f"must be at least {ctx['ge']:g}, got {value}"
        case "less_than":
            return f"must be below {ctx['lt']:g}, got {value}"
        case "less_than_equal":
            return f"must be at most {ctx['le']:g}, got {value}"
        case "finite_number":
            return f"must be a finite number, got {value}"
        case "string_too_short":
            return "must not be empty"
        case "too_short":
            return f"needs at least {ctx['min_length']}"
        case "too_long":
            return f"expected {ctx['max_length']} values, got {ctx['actual_length']}"
    expected = EXPECTED.get(kind, detail["msg"].lower())
    return f"expected {expected}, got {_kind_of(value)}"


EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "dict_type": "keys and values",
    "model_type": "keys and values",
    "tuple_type": "a list",
    "frozen_set_type": "a list",
}


def _kind_of(value: object) -> str:
    """What stands there, in a few words."""
    match value:
        case None:
            return "nothing"
        case dict():
            return "keys and values"
        case list():
            return "a list"
        case str():
            return f"the text {value!r}" if len(value) <= 40 else f"the text {value[:40]!r}..."
        case bool():
            return str(value).lower()
    return str(value)


def _keys(model: type[BaseModel], path: Path) -> list[str]:
    """The keys that are allowed in the mapping at `path`."""
    annotation: Any = model
    for part in path:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            fields = annotation.model_fields
            annotation = next(f.annotation for k, f in fields.items() if (f.alias or k) == part)
        else:  # a dict by name or a tuple by position: what it holds
            held = [a for a in get_args(annotation) if a is not Ellipsis]
            annotation = held[-1]
        annotation = _bare(annotation)
    return [field.alias or key for key, field in annotation.model_fields.items()]


def _bare(annotation: Any) -> Any:
    """The annotation without `Annotated` and without `| None`."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    options = [a for a in get_args(annotation) if a is not type(None)]
    if type(None) in get_args(annotation) and len(options) == 1:
        return _bare(options[0])
    return annotation
