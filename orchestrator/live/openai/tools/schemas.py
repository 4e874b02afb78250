"""Formats, tools and past calls in a request's body."""

from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

NAME = r"^[a-zA-Z0-9_-]{1,64}$"
MODES = ("none", "auto", "required")


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class JsonSchema(Strict):
    """`strict`: what of the schema cannot be kept to is refused, else it is only hoped for."""

    model_config = ConfigDict(protected_namespaces=())

    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool = False


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise PydanticCustomError(
                "json_schema", "json_schema belongs to the type json_schema, and to no other"
            )
        return self


class Called(Strict):
    """The function of a past call. `arguments` holds a JSON object."""

    name: Annotated[str, Field(min_length=1)]
    arguments: Annotated[dict[str, Any], WithJsonSchema({"type": "string"})]

    @field_validator("arguments", mode="before")
    @classmethod
    def _arguments(cls, value: Any) -> dict[str, Any]:
        try:
            arguments = orjson.loads(value) if isinstance(value, str) else None
        except orjson.JSONDecodeError:
            arguments = None
        if not isinstance(arguments, dict):
            raise PydanticCustomError("arguments", "must be a string that holds a JSON object")
        return arguments


class ToolCall(Strict):
    id: str
    type: Literal["function"] = "function"
    function: Called


class Function(Strict):
    """`parameters` left out: it takes no arguments. `strict`: see `JsonSchema`."""

    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False


class Tool(Strict):
    type: Literal["function"]
    function: Function


class NamedFunction(Strict):
    name: str


class NamedTool(Strict):
    type: Literal["function"]
    function: NamedFunction


def check_choice(value: Any) -> Any:
    """A `tool_choice` that may be one. Raises PydanticCustomError."""
    named = isinstance(value, dict) and value.get("type") == "function"
    if not named and value not in MODES:
        raise PydanticCustomError(
            "tool_choice", f"must be one of {', '.join(MODES)}, or name a function"
        )
    return value
