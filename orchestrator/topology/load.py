"""Read a topology file: all of its mistakes, or a Topology."""

import re
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from orchestrator.catalogue import Catalogue, load_catalogue
from orchestrator.topology.document import Document, read_document
from orchestrator.topology.mistakes import Mistake, Path, TopologyError, path_text, unknown
from orchestrator.topology.rules import NO_ROLES, Draft, Found, broken_rules
from orchestrator.topology.schema import FROM_FILE, ONE_DELAY, Pool, Topology
from workers.api.messages import Role

# Keys that DESIGN names but nothing reads yet: refused with the reason instead of a guess.
NOT_YET = {"tls": "not supported yet; leave it out (traffic between sites is not encrypted)"}


def load_topology(path: str | FilePath) -> Topology:
    """The topology in a file, its model directory (if it names one) made absolute.

    Raises TopologyError with every mistake in the file.
    """
    file = FilePath(path)
    document = read_document(file)
    catalogue = load_catalogue()
    mistakes = list(document.mistakes)
    spoiled = {mistake.path for mistake in mistakes}
    topology: Topology | None = None
    if isinstance(document.data, dict):
        try:
            topology = _validate(Topology, document.data)
        except ValidationError as error:
            mistakes += _schema_mistakes(document, error, spoiled)
        for where, message in _rule_mistakes(document.data, file.parent, catalogue):
            mistakes.append(document.mistake(where, message))
    else:
        mistakes.append(
            document.mistake((), f"expected keys and values, got {_kind(document.data)}")
        )
    if mistakes or topology is None:
        raise TopologyError(mistakes)
    directory = _model_directory(topology.model, file.parent)
    return topology.model_copy(update={"model": str(directory)}) if directory else topology


def _validate(model: type[BaseModel], data: object) -> Any:
    return model.model_validate(data, context=FROM_FILE, by_alias=True, by_name=False)


# ------------------------------------------------------------------------- the schema's mistakes


def _schema_mistakes(
    document: Document, error: ValidationError, spoiled: set[str]
) -> Iterator[Mistake]:
    for detail in error.errors(include_url=False):
        path, kind = detail["loc"], detail["type"]
        if kind == "one_delay" or path_text(path) in spoiled:
            continue  # told by a rule, or already by the reader
        if path and path[-1] == "[key]":
            path, kind = path[:-1], "name"
        yield document.mistake(path, _message(path, kind, detail), at_key=kind in AT_KEY)


AT_KEY = {"extra_forbidden", "name", "missing"}


def _message(path: Path, kind: str, detail: ErrorDetails) -> str:
    value, ctx = detail["input"], detail.get("ctx", {})
    key = str(path[-1]) if path else ""
    match kind:
        case "extra_forbidden":
            return NOT_YET.get(key) or unknown("key", key, _keys(path[:-1]))
        case "missing":
            return NO_ROLES if key == "roles" else "missing; it has no default"
        case "name":
            return f"the name {path[-1]!r} may only have letters, digits, - and _ (at most 40)"
        case "literal_error" | "enum":
            noun = "role" if kind == "enum" else key
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
        case "too_long":
            return f"expected {ctx['max_length']} values, got {ctx['actual_length']}"
    expected = EXPECTED.get(kind, detail["msg"].lower())
    return f"expected {expected}, got {_kind(value)}"


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


def _kind(value: object) -> str:
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


def _keys(path: Path) -> list[str]:
    """The keys that are allowed in the mapping at `path`."""
    annotation: Any = Topology
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


# --------------------------------------------------------------------------- the rules' mistakes


def _rule_mistakes(
    data: dict[str, Any], directory: FilePath, catalogue: Catalogue
) -> Iterator[Found]:
    yield from _model_rules(data.get("model"), directory, catalogue)
    raw_pools = dict(_raw_pools(data))
    for (site, name), raw in raw_pools.items():
        chip = raw.get("chip") if isinstance(raw, dict) else None
        if isinstance(chip, str) and chip not in catalogue.chips:
            path: Path = ("sites", site, "pools", name, "chip")
            yield path, unknown("chip", chip, list(catalogue.chips))
    links = data.get("links")
    for i, raw in enumerate(links if isinstance(links, list) else []):
        if isinstance(raw, dict) and ("distance_km" in raw) == ("delay" in raw):
            yield ("links", i), ONE_DELAY
    yield from broken_rules(_draft(data, raw_pools))


def _raw_pools(data: dict[str, Any]) -> Iterator[tuple[tuple[str, str], object]]:
    for site, raw_site in _mapping(data.get("sites")).items():
        for name, raw in _mapping(_mapping(raw_site).get("pools")).items():
            yield (site, name), raw


def _mapping(raw: object) -> dict[str, Any]:
    return raw if isinstance(raw, dict) else {}


def _draft(data: dict[str, Any], raw_pools: dict[tuple[str, str], object]) -> Draft:
    roles: dict[str, dict[str, frozenset[Role] | None]] = {
        site: {} for site in _mapping(data.get("sites"))
    }
    pools: dict[tuple[str, str], Pool] = {}
    for (site, name), raw in raw_pools.items():
        roles[site][name] = _roles(raw)
        try:
            pools[site, name] = _validate(Pool, raw)
        except ValidationError:
            continue  # reported by the schema
    links = data.get("links", [])
    gateway_site = _mapping(data.get("gateway")).get("site")
    route = _mapping(data.get("policy")).get("route", "auto")
    return Draft(
        roles=roles,
        pools=pools,
        ends=tuple(map(_ends, links)) if isinstance(links, list) else (None,),
        gateway_site=gateway_site if isinstance(gateway_site, str) else None,
        route=route if isinstance(route, str) else None,
    )


def _roles(raw: object) -> frozenset[Role] | None:
    named = _mapping(raw).get("roles")
    known = set(Role)
    if not isinstance(named, list) or not named or not all(n in known for n in named):
        return None
    return frozenset(map(Role, named))


def _ends(raw: object) -> tuple[str, str] | None:
    match _mapping(raw).get("between"):
        case [str(a), str(b)]:
            return a, b
    return None


# -------------------------------------------------------------------------------------- the model


def _model_rules(model: object, directory: FilePath, catalogue: Catalogue) -> Iterator[Found]:
    if not isinstance(model, str) or not model:
        return
    path = _model_directory(model, directory)
    if path is None:
        if model not in catalogue.models:
            yield ("model",), unknown("model", model, list(catalogue.models))
    elif not path.is_dir():
        yield ("model",), f"there is no model directory {path}"
    elif not (path / "config.json").is_file():
        yield ("model",), f"{path} is not a model directory: it has no config.json"


def _model_directory(model: str, directory: FilePath) -> FilePath | None:
    """Where the model lies if its name looks like a path, relative to the topology's file."""
    if "/" not in model and not model.startswith((".", "~")):
        return None
    return (directory / FilePath(model).expanduser()).resolve()
