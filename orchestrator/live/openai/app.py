"""The FastAPI application: routes, keys, body limits, and errors in OpenAI's shape."""

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from orchestrator.live.openai.answer import Answer, Patience
from orchestrator.live.openai.errors import ApiError, internal, scrub, unavailable
from orchestrator.live.openai.intake import Intake, Prepared, unknown_model
from orchestrator.live.openai.service import ModelCard, Service
from orchestrator.live.openai.shapes import ChatShape, CompletionShape
from orchestrator.live.openai.template import ChatTemplate
from orchestrator.live.openai.vocabulary import Vocabulary
from orchestrator.metrics.exposition import Metrics

log = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health", "/ready"})  # no key needed
BODY_BASE = 1 << 20
BODY_PER_TOKEN = 32  # bytes of JSON that a token of context may take
BODY_SECONDS = 30.0
INLINE_BODY = 32 << 10  # a larger prompt is tokenised in a thread, so that streams go on


def create_app(
    service: Service,
    *,
    metrics: Metrics,
    api_keys: frozenset[str] | None = None,
    patience: Patience | None = None,
    draw_seed: Callable[[], int] = lambda: secrets.randbits(63),
) -> FastAPI:
    """The gateway's HTTP application in front of `service`.

    `api_keys` None: no key is asked for. `draw_seed`: the seed of a sampled request without one.
    """
    vocabulary = Vocabulary(service.tokenizer, service.model.stop_ids)
    intake = Intake(service.model, vocabulary, ChatTemplate(service.tokenizer))
    patience = patience or Patience()
    body_limit = BODY_BASE + BODY_PER_TOKEN * service.model.max_context
    app = FastAPI(title="pdd gateway", docs_url=None, redoc_url=None, openapi_url=None)
    if api_keys is not None:
        app.add_middleware(_KeyCheck, api_keys=api_keys)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _left)
    app.add_exception_handler(Exception, _unforeseen)

    async def answer(
        request: Request,
        prepare: Callable[[Any], Prepared],
        shape_of: type[ChatShape] | type[CompletionShape],
    ) -> Response:
        body = await _read_body(request, body_limit)
        if len(body) > INLINE_BODY:
            prepared = await asyncio.to_thread(lambda: prepare(_parse(body)))
        else:
            prepared = prepare(_parse(body))
        plan = intake.plan(
            prepared,
            request.headers,
            new_request_id=service.new_request_id,
            draw_seed=draw_seed,
        )
        reason = service.ready()
        if reason is not None:
            raise unavailable(reason)
        shape = shape_of(
            id=plan.arrivals[0].request,
            created=int(time.time()),
            model=service.model.name,
            include_usage=plan.include_usage,
            logprobs=plan.arrivals[0].sampling.logprobs is not None,
            vocabulary=vocabulary,
        )
        return Answer(
            plan,
            shape,
            service=service,
            vocabulary=vocabulary,
            metrics=metrics.requests,
            patience=patience,
        )

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await answer(request, intake.chat, ChatShape)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await answer(request, intake.completion, CompletionShape)

    @app.get("/v1/models")
    async def models() -> Response:
        return _json({"object": "list", "data": [_card(service.model)]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        if name != service.model.name:
            raise unknown_model(name)
        return _json(_card(service.model))

    @app.get("/health")
    async def health() -> Response:
        return _json({"status": "ok"})

    @app.get("/ready")
    async def ready() -> Response:
        reason = service.ready()
        if reason is None:
            return _json({"status": "ready"})
        return _json({"status": "not ready", "reason": scrub(reason)}, status=503)

    @app.get("/metrics")
    async def scrape() -> Response:
        return Response(metrics.render(), media_type=metrics.content_type)

    @app.get("/status")
    async def status() -> Response:
        return _json(service.status())

    return app


def _json(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")


def _card(model: ModelCard) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "pdd",
        "max_model_len": model.max_context,
    }


# ---------------------------------------------------------------- bodies


async def _read_body(request: Request, limit: int) -> bytes:
    """The raw body. Raises ApiError 413 and 408."""
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > limit:
                    raise _too_large(limit)
    except TimeoutError as error:
        raise ApiError(408, "the request body took too long", code="timed_out") from error
    return bytes(body)


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the request body is larger than {limit} bytes", code="request_too_large")


def _parse(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(
            400, f"the request body is not valid JSON: {error}", code="invalid_json"
        ) from error


# ---------------------------------------------------------------- keys


class _KeyCheck:
    """401 without a known `Authorization: Bearer <key>`."""

    def __init__(self, app: ASGIApp, api_keys: frozenset[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in sorted(api_keys)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            given = dict(scope["headers"]).get(b"authorization", b"")
            scheme, _, key = given.partition(b" ")
            # Every key is compared, each in constant time: the time tells nothing about any.
            known = sum(hmac.compare_digest(key.strip(), mine) for mine in self._keys)
            if scheme.lower() != b"bearer" or not known:
                what = "no API key was sent" if not key else "the API key is not known"
                error = ApiError(401, f"{what}; send it as a Bearer token", code="invalid_api_key")
                response = error.response()
                response.headers["www-authenticate"] = "Bearer"
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


# ---------------------------------------------------------------- errors


async def _api_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, ApiError):
        raise error
    return error.response()


async def _http_error(request: Request, error: Exception) -> Response:
    """What the router itself refuses: unknown paths and methods."""
    if not isinstance(error, HTTPException):
        raise error
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    message = HTTPStatus(error.status_code).phrase
    response = ApiError(
        error.status_code, f"{message}: {request.method} {request.url.path}", code=code
    ).response()
    response.headers.update(error.headers or {})
    return response


async def _left(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it; the client left while sending its body


async def _unforeseen(request: Request, error: Exception) -> Response:
    return internal().response()
