"""Request bodies: what is understood, with its bounds, and what is refused by name.

Nothing is ignored in silence. A field whose given value asks for nothing (`functions: []`,
`best_of: 1`, null) passes. Labels that cannot change an answer (`user`, `metadata`,
`safety_identifier`, `prompt_cache_key`) pass and have no effect. Every other field is refused
with 400 and its name, unknown ones with the nearest known. Fields beyond OpenAI's: top_k, min_p,
repetition_penalty, min_tokens, ignore_eos, cache_salt, priority, and the `pdd_` ones.
"""

import difflib
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    Field,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from orchestrator.live.openai.errors import ApiError
from orchestrator.live.openai.tools.schemas import (
    NamedTool,
    ResponseFormat,
    Strict,
    Tool,
    ToolCall,
    check_choice,
)

MAX_CHOICES = 16
MAX_LOGPROBS = 20
MAX_STOPS = 4
MAX_WEIGHT = 100
MAX_BIASES = 1024
MAX_BIAS = 100
MAX_TOOLS = 128
INT64 = 2**63

# What is taken in more than one form, for those who only read the schema.
_TEXT = {"type": "string"}
_STOP = {"type": "string", "minLength": 1}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": _TEXT},
    "required": ["type", "text"],
    "additionalProperties": False,
}
_CONTENT = {"anyOf": [_TEXT, {"type": "array", "items": _PART}, {"type": "null"}]}
_BIASES = {
    "type": "object",
    "propertyNames": {"pattern": r"^[0-9]+$"},
    "additionalProperties": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS},
    "maxProperties": MAX_BIASES,
}


def _one_or_more(of: dict[str, Any], most: int) -> dict[str, Any]:
    """One of these, or a list of them."""
    return {"anyOf": [of, {"type": "array", "items": of, "minItems": 1, "maxItems": most}]}


class StreamOptions(Strict):
    """`continuous_usage_stats`: every chunk tells the usage so far."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: Literal[False] = False


class Common(Strict):
    """What both endpoints take. `temperature` defaults to OpenAI's 1; 0 is greedy.

    `min_tokens` holds back end-of-text, not stop strings. `seed` of choice i is seed + i. Among
    the requests that wait for a place the smallest `priority` is served first.
    """

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] = 1.0
    logit_bias: Annotated[dict[int, float], WithJsonSchema(_BIASES)] = Field(default_factory=dict)
    response_format: ResponseFormat | None = None
    seed: Annotated[int, Field(ge=-INT64, lt=INT64)] | None = None
    stop: Annotated[tuple[str, ...], WithJsonSchema(_one_or_more(_STOP, MAX_STOPS))] = ()
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    min_tokens: Annotated[int, Field(ge=0)] = 0
    ignore_eos: bool = False
    cache_salt: Annotated[str, Field(max_length=256)] = ""
    priority: Annotated[int, Field(ge=-INT64, lt=INT64)] = 0
    pdd_timings: bool = False
    pdd_token_ids: bool = False
    pdd_margins: bool = False
    pdd_route: Literal["auto", "local", "direct", "relay"] = "auto"
    pdd_handoff: Literal["auto", "catch-up", "one-shot"] | None = None
    pdd_weight: Annotated[float, Field(gt=0, le=MAX_WEIGHT, allow_inf_nan=False)] = 1.0

    @field_validator("stop", mode="before")
    @classmethod
    def _stop(cls, value: Any) -> tuple[str, ...]:
        stops = [value] if isinstance(value, str) else value
        if not isinstance(stops, list) or not all(isinstance(s, str) for s in stops):
            raise PydanticCustomError("stop", "must be a string or a list of strings")
        if len(stops) > MAX_STOPS:
            raise PydanticCustomError("stop", f"at most {MAX_STOPS} strings, got {len(stops)}")
        if not all(stops):
            raise PydanticCustomError("stop", "a stop string must not be empty")
        return tuple(stops)

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _logit_bias(cls, value: Any) -> dict[int, float]:
        if not isinstance(value, dict) or len(value) > MAX_BIASES:
            raise PydanticCustomError(
                "logit_bias", f"must be an object of at most {MAX_BIASES} biases by token id"
            )
        for id, bias in value.items():
            if not id.isdecimal():
                raise PydanticCustomError("logit_bias", f"a token id is a number, got {id[:20]!r}")
            if type(bias) not in (int, float) or not -MAX_BIAS <= bias <= MAX_BIAS:
                raise PydanticCustomError(
                    "logit_bias", f"a bias is a number from -{MAX_BIAS} to {MAX_BIAS}"
                )
        return {int(id): float(bias) for id, bias in value.items()}

    @field_validator("top_k")
    @classmethod
    def _top_k(cls, value: int | None) -> int | None:
        return None if value in (0, -1) else value  # both mean "off" elsewhere


class Message(Strict):
    """`content` of several text parts is joined with newlines."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, WithJsonSchema(_CONTENT)] = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _by_role(self) -> Self:
        wanted = {
            "content": self.content is not None or bool(self.tool_calls),
            "tool_calls": not self.tool_calls or self.role == "assistant",
            "tool_call_id": (self.tool_call_id is not None) == (self.role == "tool"),
        }
        wrong = [field for field, right in wanted.items() if not right]
        if wrong:
            given = getattr(self, wrong[0]) is not None
            what = "does not belong in" if given else "is missing in"
            raise PydanticCustomError(
                "role", f"{what} a message of role {self.role}", {"field": wrong[0]}
            )
        return self

    @field_validator("content", mode="before")
    @classmethod
    def _content(cls, value: Any) -> str:
        if isinstance(value, str):
            return value
        if not isinstance(value, list):
            raise PydanticCustomError("content", "must be a string or a list of text parts")
        return "\n".join(_part_text(part) for part in value)


def _part_text(part: Any) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise PydanticCustomError("content", "a content part must be an object with a type")
    if part["type"] != "text":
        raise PydanticCustomError("content", "only text parts are supported by this model")
    if part.keys() != {"type", "text"} or not isinstance(part["text"], str):
        raise PydanticCustomError("content", "a text part has type and text, a string")
    return part["text"]


class ChatRequest(Common):
    """`tool_choice` defaults to auto where there are tools."""

    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[Tool] = Field(default_factory=list, max_length=MAX_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | NamedTool = "auto"
    parallel_tool_calls: bool = True
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @field_validator("tool_choice", mode="before")
    @classmethod
    def _tool_choice(cls, value: Any) -> Any:
        return check_choice(value)


class CompletionRequest(Common):
    """`prompt` is one prompt or up to 16, each a string or a list of token ids."""

    prompt: Annotated[
        tuple[str | tuple[int, ...], ...],
        WithJsonSchema({"anyOf": [_IDS, _one_or_more({"anyOf": [_TEXT, _IDS]}, MAX_CHOICES)]}),
    ]
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _prompt(cls, value: Any) -> tuple[str | tuple[int, ...], ...]:
        if isinstance(value, str) or _is_ids(value):
            value = [value]
        if not isinstance(value, list) or not all(isinstance(p, str) or _is_ids(p) for p in value):
            raise PydanticCustomError(
                "prompt", "must be a string, a list of token ids, or a list of either"
            )
        if not value:
            raise PydanticCustomError("prompt", "must hold at least one prompt")
        if len(value) > MAX_CHOICES:
            raise PydanticCustomError("prompt", f"at most {MAX_CHOICES} prompts, got {len(value)}")
        return tuple(p if isinstance(p, str) else tuple(p) for p in value)


class TokenizeRequest(Strict):
    """vLLM's: either `prompt`, or `messages` as the chat endpoint's template renders them."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    tools: list[Tool] = Field(default_factory=list, max_length=MAX_TOOLS)
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: Literal[False] = False
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("prompt", "give either prompt or messages")
        return self


class DetokenizeRequest(Strict):
    model: str | None = None
    tokens: Annotated[tuple[int, ...], WithJsonSchema(_IDS | {"minItems": 0})]

    @field_validator("tokens", mode="before")
    @classmethod
    def _tokens(cls, value: Any) -> tuple[int, ...]:
        if value != [] and not _is_ids(value):
            raise PydanticCustomError("tokens", "must be a list of token ids")
        return tuple(value)


Body = TypeVar("Body", ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(v) is int for v in value)


# ------------------------------------------------------------ fields with nothing behind them

_LABELS = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key"})


def _one_of(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


_NEUTRAL: dict[str, Callable[[Any], bool]] = {
    "tools": _one_of([]),
    "tool_choice": _one_of("none", "auto"),
    "functions": _one_of([]),
    "function_call": _one_of("none", "auto"),
    "parallel_tool_calls": _one_of(True, False),
    "modalities": _one_of(["text"]),
    "audio": _one_of(),
    "prediction": _one_of(),
    "moderation": _one_of(),
    "reasoning_effort": _one_of(),
    "verbosity": _one_of("medium"),
    "web_search_options": _one_of(),
    "service_tier": _one_of("auto", "default"),
    "store": _one_of(False),
    "prompt_cache_options": _one_of(),
    "prompt_cache_retention": _one_of(),
    "suffix": _one_of(""),
    "best_of": _one_of(1),
    "echo": _one_of(False),
    "prompt_logprobs": _one_of(),
}
_NEUTRAL_IN_MESSAGE: dict[str, Callable[[Any], bool]] = {
    "function_call": _one_of(),
    "refusal": _one_of(),
    "audio": _one_of(),
    "annotations": _one_of([]),
}


def _without_neutral(
    body: dict[str, Any], neutral: dict[str, Callable[[Any], bool]], where: str
) -> dict[str, Any]:
    """`body` without the fields that ask for nothing. Raises ApiError naming one that does."""
    kept = {}
    for field, value in body.items():
        if value is None:
            continue
        asks_nothing = neutral.get(field)
        if asks_nothing is None:
            kept[field] = value
        elif not asks_nothing(value):
            name = where + field
            raise ApiError(
                400,
                f"{name}: not supported by this server",
                param=name,
                code="unsupported_parameter",
            )
    return kept


def read(schema: type[Body], body: Any) -> Body:
    """A request body that may be served. Raises ApiError 400 naming the field."""
    if not isinstance(body, dict):
        raise ApiError(400, "the request body must be a JSON object")
    known = schema.model_fields.keys()
    fields = _without_neutral(body, {k: v for k, v in _NEUTRAL.items() if k not in known}, "")
    for label in _LABELS:
        fields.pop(label, None)
    messages = fields.get("messages")
    if isinstance(messages, list):
        fields["messages"] = [
            _without_neutral(m, _NEUTRAL_IN_MESSAGE, f"messages[{i}].")
            if isinstance(m, dict)
            else m
            for i, m in enumerate(messages)
        ]
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        raise _from_validation(schema, error.errors(include_url=False)[0]) from error


def _from_validation(schema: type[BaseModel], detail: ErrorDetails) -> ApiError:
    param = ""
    for part in detail["loc"]:
        param += f"[{part}]" if isinstance(part, int) else f".{part}" if param else part
    if (field := detail.get("ctx", {}).get("field")) is not None:
        param += f".{field}"  # of a message whose role says what belongs in it
    what = detail["msg"][:1].lower() + detail["msg"][1:]
    code = None
    if detail["type"] == "extra_forbidden":
        code = "unknown_parameter"
        what = "unknown field"
        near = difflib.get_close_matches(param, schema.model_fields, n=1)
        if near:
            what += f"; did you mean {near[0]}?"
    elif detail["type"] == "missing":
        code = "missing_required_parameter"
        what = "required"
    elif isinstance(detail.get("input"), bool | int | float):
        what += f", got {detail['input']}"
    return ApiError(400, f"{param}: {what}", param=param, code=code)
