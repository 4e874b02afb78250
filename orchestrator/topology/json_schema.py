"""The schema of a file as JSON Schema draft-07, which editors read (yaml-language-server)."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

DIALECT = "http://json-schema.org/draft-07/schema#"
REF = "#/definitions/{model}"


def json_schema(model: type[BaseModel], title: str) -> dict[str, Any]:
    """What a file that is read as `model` may say; quantities are texts with a unit.

    Every file that is good is good by it too; what only several places together can break (`rules`)
    it does not know.
    """
    found = model.model_json_schema(ref_template=REF)
    definitions = found.pop("$defs", {})
    told = {"$schema": DIALECT, **found, "title": title}
    if definitions:
        told["definitions"] = definitions
    return {key: _as_draft_07(value) for key, value in told.items()}


def _as_draft_07(node: Any) -> Any:
    """The same in the older draft's words, without defaults, which are in our units."""
    if isinstance(node, list):
        return [_as_draft_07(item) for item in node]
    if not isinstance(node, dict):
        return node
    told = {key: _as_draft_07(value) for key, value in node.items()}
    if "properties" not in node and not isinstance(told.get("default"), str | bool | None):
        told.pop("default")
    if "patternProperties" in told:  # of our names, and of no others
        told["additionalProperties"] = False
    if "prefixItems" in told:
        told["items"] = told.pop("prefixItems")
        told["additionalItems"] = False
    if "$ref" in told and len(told) > 1:  # what stands beside a reference is ignored there
        told = {"allOf": [{"$ref": told.pop("$ref")}], **told}
    return told


def outline(schema: dict[str, Any]) -> Iterator[str]:
    """A schema of `json_schema` in lines: every key with what it takes, `*` if it must be there."""
    yield from _keys(schema, schema.get("definitions", {}), "")


def _keys(node: dict[str, Any], definitions: dict[str, Any], indent: str) -> Iterator[str]:
    required = node.get("required", ())
    for key, value in node.get("properties", {}).items():
        yield from _key(f"{key}{'*' if key in required else ''}", value, definitions, indent)
    for value in node.get("patternProperties", {}).values():
        yield from _key("NAME", value, definitions, indent)


def _key(
    key: str, value: dict[str, Any], definitions: dict[str, Any], indent: str
) -> Iterator[str]:
    inner, taken = _taken(value, definitions)
    yield f"{indent}{key}: {taken}".rstrip()
    if inner is not None:
        yield from _keys(inner, definitions, f"{indent}  ")


def _taken(node: dict[str, Any], definitions: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """The mapping that stands there, if there is one; and in words what can stand there."""
    if "$ref" in node:
        return _taken(definitions[node["$ref"].rpartition("/")[2]], definitions)
    parts = [part for key in ("anyOf", "allOf") for part in node.get(key, ())]
    if parts:
        found = [_taken(part, definitions) for part in parts if part.get("type") != "null"]
        inner = next((mapping for mapping, _ in found if mapping is not None), None)
        return inner, " or ".join(dict.fromkeys(words for _, words in found if words))
    if "enum" in node:
        return None, " | ".join(str(value) for value in node["enum"])
    if "const" in node:
        return None, str(node["const"])
    if "examples" in node:
        return None, f"such as {node['examples'][0]}"
    if node.get("type") == "array":
        items = node.get("items", {})
        inner, words = _taken(items[0] if isinstance(items, list) else items, definitions)
        return inner, f"a list{f' of {words}' if words else ''}"
    if "properties" in node or "patternProperties" in node:
        return node, ""
    return None, {"object": "a mapping", "string": "text"}.get(node["type"], node["type"])
