"""A worker's HTTP front: control, feeds, the token stream, and what people ask."""

import hmac
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, Protocol

import orjson
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from workers.api.messages import DownMessage
from workers.api.wire import CONTROL, TOKENS, WireError, decode
from workers.service.token_streams import TokenStream

MAX_BODY_BYTES = 64 << 20
MAX_GATEWAY_NAME = 200


class Service(Protocol):
    """What the front asks of the worker behind it."""

    def take(self, messages: Sequence[DownMessage], gateway: str | None) -> None: ...
    def open_stream(self, gateway: str) -> TokenStream: ...
    def stream_ended(self, stream: TokenStream) -> None: ...
    def describe(self) -> dict[str, Any]: ...
    def health(self) -> tuple[bool, dict[str, Any]]: ...
    async def blocks(self) -> dict[str, Any]: ...
    def drain(self) -> None: ...


class BearerOnly:
    """Lets through what carries the deployment's secret; answers 401 to everything else."""

    def __init__(self, app: ASGIApp, secret: str) -> None:
        self._app = app
        self._expected = b"Bearer " + secret.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"authorization", b"")
        if hmac.compare_digest(given, self._expected):
            await self._app(scope, receive, send)
            return
        headers = {"www-authenticate": "Bearer"}
        refusal = answer({"error": "the bearer key is missing or wrong"}, 401, headers)
        await refusal(scope, receive, send)


def answer(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(
        orjson.dumps(body), status_code=status, headers=headers, media_type="application/json"
    )


def build_app(service: Service, secret: str) -> Starlette:
    """Routes over `service`, all behind the secret."""

    def accept(kinds: tuple[type, ...]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            try:
                messages = read_messages(await read_body(request), kinds)
            except WireError as error:
                return answer({"error": str(error)}, 400)
            asked, here = request.query_params.get("to"), service.describe()["incarnation"]
            if asked not in (None, here):
                # A leg that was started and stopped in another life would be started again in this.
                return answer({"error": f"to: this is {here}, not {asked}"}, HTTPStatus.GONE)
            service.take(messages, request.query_params.get("gateway"))
            return answer({"queued": len(messages)})

        return endpoint

    async def tokens(request: Request) -> ASGIApp:
        gateway = request.query_params.get("gateway", "")
        if not 0 < len(gateway) <= MAX_GATEWAY_NAME:
            return answer({"error": "gateway: must name the gateway that reads"}, 400)
        return _Streaming(service, service.open_stream(gateway))

    async def info(request: Request) -> Response:
        return answer(service.describe())

    async def health(request: Request) -> Response:
        good, body = service.health()
        return answer(body, 200 if good else 503)

    async def blocks(request: Request) -> Response:
        return answer(await service.blocks())

    async def drain(request: Request) -> Response:
        service.drain()
        return answer({"draining": True})

    return Starlette(
        routes=[
            Route("/control", accept(CONTROL), methods=["POST"]),
            Route("/feed", accept(TOKENS), methods=["POST"]),
            Route("/tokens", tokens, methods=["GET"]),
            Route("/info", info, methods=["GET"]),
            Route("/health", health, methods=["GET"]),
            Route("/blocks", blocks, methods=["GET"]),
            Route("/drain", drain, methods=["POST"]),
        ],
        middleware=[Middleware(BearerOnly, secret=secret)],
    )


class _Streaming:
    """A token stream as a response: it ends when the gateway or the stream does."""

    def __init__(self, service: Service, stream: TokenStream) -> None:
        self._service = service
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._stream(scope, receive, send)
        finally:
            self._service.stream_ended(self._stream)


async def read_body(request: Request) -> Any:
    """The JSON a request carries. Raises WireError when it is none, or far too long."""
    return parse(await read_bytes(request))


async def read_bytes(request: Request) -> bytearray:
    """What a request carries. Raises WireError when it is cut off, or far too long."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise WireError(f"the body is longer than {MAX_BODY_BYTES} bytes")
    except ClientDisconnect:
        raise WireError("the body is cut off") from None
    return body


def parse(body: bytes | bytearray) -> Any:
    """JSON. Raises WireError."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise WireError(f"not JSON: {error}") from None


def read_messages(body: Any, kinds: tuple[type, ...]) -> list[DownMessage]:
    """What a gateway posts, all of these kinds. Raises WireError."""
    messages = body.get("messages") if type(body) is dict else None
    if type(messages) is not list:
        raise WireError('must be {"messages": [...]}')
    return [decode(message, kinds) for message in messages]
