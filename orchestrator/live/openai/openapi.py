"""What the endpoint takes and gives, as OpenAPI 3.1 tells it to programs (`/openapi.json`).

Requests are described by the very schemas that read them, answers by hand.
"""

from typing import Any

from pydantic.json_schema import models_json_schema

from orchestrator.live.openai.schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Message,
    TokenizeRequest,
)
from orchestrator.state.actions import FinishReason

Schema = dict[str, Any]

_REF = "#/components/schemas/"
_ERRORS = {
    400: "the request cannot be served; `param` names the field",
    401: "no key, or one that is not known",
    404: "there is no such model",
    408: "the body took too long",
    413: "the body is too large",
    429: "the tenant's rate is used up; see Retry-After",
    500: "a defect of the server",
    503: "nobody can serve it now; see Retry-After",
    504: "a phase of the request took longer than its deadline",
}
_STRING: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}


def document(*, version: str, model: str) -> Schema:
    """The whole document of a gateway that serves one model."""
    requests = (ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)
    _, defined = models_json_schema(
        [(request, "validation") for request in requests], ref_template=_REF + "{model}"
    )
    schemas = defined["$defs"]
    for body in (*requests, Message):
        schemas[body.__name__] = _described(schemas[body.__name__], model)
    return {
        "openapi": "3.1.0",
        "info": {"title": "PDD", "version": version},
        "paths": {
            "/v1/chat/completions": _post("ChatRequest", _answer(_CHAT_CHOICE), streams=True),
            "/v1/completions": _post("CompletionRequest", _answer(_TEXT_CHOICE), streams=True),
            "/tokenize": _post("TokenizeRequest", _TOKENS),
            "/detokenize": _post("DetokenizeRequest", _object(prompt=_STRING)),
            "/v1/models": _get(_object(object=_STRING, data=_list(_MODEL))),
            "/v1/models/{name}": _get(_MODEL, 404) | {"parameters": [_name_in_path(model)]},
            "/health": _get(_object(status=_STRING)),
            "/ready": _ready(),
            "/version": _get(_object(version=_STRING)),
            "/status": _get({"type": "object"}),
            "/metrics": {"get": {"responses": {"200": _content("text/plain", _STRING)}}},
        },
        "components": {
            "schemas": schemas | {"Error": _object(error=_ERROR)},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _described(schema: Schema, model: str) -> Schema:
    """A body as it is read: null leaves a field out, and `model` can only be the one served."""
    fields = dict(schema.get("properties", {}))
    if "model" in fields:
        fields["model"] = {"enum": [model]}
    for name in fields.keys() - set(schema.get("required", ())):
        fields[name] = _or_null(fields[name])
    return schema | {"properties": fields}


def _post(request: str, answer: Schema, *, streams: bool = False) -> Schema:
    answered = _content("application/json", answer)
    if streams:
        answered["content"]["text/event-stream"] = {"schema": _STRING}
    return {
        "post": {
            "requestBody": {"required": True} | _json({"$ref": _REF + request}),
            "responses": {"200": answered} | _failures(*_ERRORS),
        }
    }


def _get(answer: Schema, *failures: int) -> Schema:
    told = {"200": _content("application/json", answer)}
    return {"get": {"responses": told | _failures(401, 500, 503, *failures)}}


def _ready() -> Schema:
    """For a probe, whose refusal is no error."""
    path = _get(_object(status=_STRING))
    path["get"]["responses"]["503"] = _content(
        "application/json", _object(status=_STRING, reason=_STRING)
    )
    return path


def _failures(*statuses: int) -> Schema:
    return {
        str(status): {"description": _ERRORS[status]} | _json({"$ref": _REF + "Error"})
        for status in statuses
    }


def _name_in_path(model: str) -> Schema:
    return {"name": "name", "in": "path", "required": True, "schema": {"enum": [model]}}


def _content(media: str, schema: Schema) -> Schema:
    return {"description": "as asked", "content": {media: {"schema": schema}}}


def _json(schema: Schema) -> Schema:
    return {"content": {"application/json": {"schema": schema}}}


# ------------------------------------------------------------------------------------ answers


def _object(**fields: Schema) -> Schema:
    """With at least these fields."""
    return {"type": "object", "properties": fields, "required": list(fields)}


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _answer(choice: Schema) -> Schema:
    """Of either endpoint, when it is not streamed."""
    return _object(
        id=_STRING,
        object=_STRING,
        created=_COUNT,
        model=_STRING,
        choices=_list(choice),
        usage=_USAGE,
    )


_ERROR = _object(message=_STRING, type=_STRING, param=_or_null(_STRING), code=_or_null(_STRING))
_MODEL = _object(id=_STRING, object=_STRING, created=_COUNT, owned_by=_STRING, max_model_len=_COUNT)
_USAGE = _object(
    prompt_tokens=_COUNT,
    completion_tokens=_COUNT,
    total_tokens=_COUNT,
    prompt_tokens_details=_object(cached_tokens=_COUNT),
)
_TOKENS = _object(count=_COUNT, max_model_len=_COUNT, tokens=_list(_COUNT))
_REASON: Schema = {"enum": [*(reason.value for reason in FinishReason), "tool_calls"]}
_LOGPROBS = _or_null({"type": "object"})
_CHAT_CHOICE = _object(
    index=_COUNT,
    message=_object(role={"const": "assistant"}, content=_or_null(_STRING)),
    logprobs=_LOGPROBS,
    finish_reason=_REASON,
)
_TEXT_CHOICE = _object(index=_COUNT, text=_STRING, logprobs=_LOGPROBS, finish_reason=_REASON)
