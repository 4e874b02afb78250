"""The application: routes, body limits, and errors in OpenAI's shape."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, TypeVar

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from orchestrator.live.openai.answer.answer import Answer, Patience
from orchestrator.live.openai.answer.shapes import ChatShape, CompletionShape
from orchestrator.live.openai.border.door import DEFAULT_TENANT, RATE_HEADERS, Door
from orchestrator.live.openai.border.guard import Guard
from orchestrator.live.openai.border.visit import Visits, visit_of
from orchestrator.live.openai.errors import ApiError, internal, scrub, unavailable
from orchestrator.live.openai.intake import Intake, Prepared, unknown_model
from orchestrator.live.openai.openapi import document
from orchestrator.live.openai.service import ModelCard, Service
from orchestrator.live.openai.template import ChatTemplate
from orchestrator.live.openai.vocabulary import Vocabulary
from orchestrator.live.page.page import live_page
from orchestrator.metrics.exposition import Metrics

T = TypeVar("T")

VERSION = version("pdd-orchestrator")
BODY_BASE = 1 << 20
BODY_PER_TOKEN = 32  # bytes of JSON that a token of context may take
BODY_SECONDS = 30.0
CORS: dict[str, Any] = {
    "allow_methods": ["GET", "POST"],
    "allow_headers": ["*"],
    "expose_headers": ["x-request-id", "retry-after", *RATE_HEADERS],
}
MOST_DEPTH = 200  # of JSON; templates, schemas and printers bear less than its parser
ORDER_BYTES = 4096  # of an operator's order
INLINE_BODY = 32 << 10  # a larger prompt is tokenised in a thread, so that streams go on
SLOW_WORDS = (b'"tools"', b'"json_schema"')  # so is what becomes a grammar


def create_app(
    service: Service,
    *,
    metrics: Metrics,
    live: Callable[[], dict[str, Any]],
    order: Callable[[Any], Awaitable[dict[str, Any]]],
    door: Door | None = None,
    cors: Sequence[str] = (),
    patience: Patience | None = None,
    draw_seed: Callable[[], int] = lambda: secrets.randbits(63),
) -> ASGIApp:
    """The gateway's HTTP application in front of `service`, to be served over `Connection`.

    `live`: what the page at / shows, as JSON values. `order`: carries out what an operator asks;
    may raise ApiError. `door` None: everybody may come in, and operate. `cors`: the origins whose
    pages may ask, `*` for any. `draw_seed`: the seed of a sampled request without one.
    """
    vocabulary = Vocabulary(service.tokenizer, service.model.stop_ids)
    intake = Intake(service.model, vocabulary, ChatTemplate(service.tokenizer))
    patience = patience or Patience()
    body_limit = BODY_BASE + BODY_PER_TOKEN * service.model.max_context

    async def answer(
        request: Request,
        prepare: Callable[[Any], Prepared],
        shape_of: type[ChatShape] | type[CompletionShape],
    ) -> Response:
        prepared = await _prepared(await _read_body(request, body_limit), prepare)
        visit = visit_of(request.scope)
        plan = intake.plan(
            prepared,
            request.headers,
            tenant=DEFAULT_TENANT if visit.tenant is None else visit.tenant.name,
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
            choices=len(plan.arrivals),
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

    async def chat_completions(request: Request) -> Response:
        return await answer(request, intake.chat, ChatShape)

    async def completions(request: Request) -> Response:
        return await answer(request, intake.completion, CompletionShape)

    async def tokenize(request: Request) -> Response:
        return _json(await _prepared(await _read_body(request, body_limit), intake.tokenize))

    async def detokenize(request: Request) -> Response:
        return _json(await _prepared(await _read_body(request, body_limit), intake.detokenize))

    async def models(request: Request) -> Response:
        return _json({"object": "list", "data": [_card(service.model)]})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name != service.model.name:
            raise unknown_model(name)
        return _json(_card(service.model))

    async def health(request: Request) -> Response:
        return _json({"status": "ok"})

    async def ready(request: Request) -> Response:
        reason = service.ready()
        if reason is None:
            return _json({"status": "ready"})
        response = _json({"status": "not ready", "reason": scrub(reason)}, status=503)
        response.headers.update(unavailable(reason).headers())
        return response

    async def told_version(request: Request) -> Response:
        return _json({"version": VERSION})

    described = document(version=VERSION, model=service.model.name)

    async def openapi(request: Request) -> Response:
        return _json(described)

    async def scrape(request: Request) -> Response:
        return Response(metrics.render(), media_type=metrics.content_type)

    async def status(request: Request) -> Response:
        return _json(service.status())

    async def drain(request: Request) -> Response:
        # A page of another origin can only send forms without asking first.
        if not request.headers.get("content-type", "").startswith("application/json"):
            raise ApiError(415, "the body must be application/json", code="invalid_content_type")
        return _json(await order(parse_body(await _read_body(request, ORDER_BYTES))))

    page = live_page()

    async def front(request: Request) -> Response:
        return Response(page.html, headers=page.headers, media_type="text/html")

    async def state(request: Request) -> Response:
        return _json(live())

    app: ASGIApp = Starlette(
        routes=[
            Route("/v1/chat/completions", chat_completions, methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/detokenize", detokenize, methods=["POST"]),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
            Route("/health", health),
            Route("/ready", ready),
            Route("/version", told_version),
            Route("/openapi.json", openapi),
            Route("/metrics", scrape),
            Route("/status", status),
            Route("/", front),
            Route("/pdd/state", state),
            Route("/pdd/drain", drain, methods=["POST"]),
        ],
        exception_handlers={
            ApiError: _api_error,
            HTTPException: _http_error,
            ClientDisconnect: _left,
            Exception: _unforeseen,
        },
    )
    app = Visits(Guard(app, door or Door()))
    # Outside the guard: a browser asks beforehand, without a key, whether it may send one.
    return CORSMiddleware(app, allow_origins=cors, **CORS) if cors else app


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


async def _prepared(body: bytes, prepare: Callable[[Any], T]) -> T:
    """What `prepare` makes of the body; in a thread where it may take long. Raises ApiError."""
    if len(body) > INLINE_BODY or any(word in body for word in SLOW_WORDS):
        return await asyncio.to_thread(lambda: prepare(parse_body(body)))
    return prepare(parse_body(body))


def parse_body(body: bytes) -> Any:
    """JSON, no deeper than `MOST_DEPTH`. Raises ApiError 400."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(
            400, f"the request body is not valid JSON: {error}", code="invalid_json"
        ) from error
    # Most bodies have too few brackets to be deep.
    if body.count(b"[") + body.count(b"{") > MOST_DEPTH and _deeper(value, MOST_DEPTH):
        raise ApiError(
            400, f"the request body is nested deeper than {MOST_DEPTH}", code="invalid_json"
        )
    return value


def _deeper(value: Any, depth: int) -> bool:
    """Whether lists and objects lie in one another deeper than that."""
    level = [value]
    for _ in range(depth + 1):
        inner: list[Any] = []
        for held in level:
            if isinstance(held, dict):
                inner += held.values()
            elif isinstance(held, list):
                inner += held
        level = [held for held in inner if isinstance(held, dict | list)]
        if not level:
            return False
    return True


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
