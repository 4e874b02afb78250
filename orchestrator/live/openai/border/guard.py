"""Lets in who may come in: 401 without a known key, 403 where it may not go, 429 beyond rates."""

import time

from starlette.types import ASGIApp, Receive, Scope, Send

from orchestrator.live.openai.border.door import Door
from orchestrator.live.openai.border.visit import visit_of
from orchestrator.live.openai.errors import ApiError, rate_limited

# No key, no rate: for probes, and the page, which says nothing before it was given a key.
OPERATORS_PATHS = frozenset({"/pdd/drain"})  # what is asked there changes the deployment
OPEN_PATHS = frozenset({"/health", "/ready", "/version", "/"})


class Guard:
    """Stands before the application. Rates count what makes work: POST requests."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app = app
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            error = self._refusal(scope)
            if error is not None:
                await error.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        given = dict(scope["headers"]).get(b"authorization", b"")
        if scope["path"] in OPERATORS_PATHS:
            return None if self._door.operates(given) else _not_an_operator(given)
        tenant = self._door.tenant(given)
        if tenant is None:
            what = "the API key is not known" if given else "no API key was sent"
            return ApiError(401, f"{what}; send it as a Bearer token", code="invalid_api_key")
        visit_of(scope).tenant = tenant
        refused = tenant.admit(time.monotonic()) if scope["method"] == "POST" else None
        return None if refused is None else rate_limited(*refused)


def _not_an_operator(given: bytes) -> ApiError:
    if not given:
        what = "no operator's key was sent; send it as a Bearer token"
        return ApiError(401, what, code="invalid_api_key")
    return ApiError(
        403,
        "this key may not change the deployment; security.operator_keys_env names those that may",
        code="not_an_operator",
    )
