"""Lets in who may come in: 401 without a known key, 429 beyond a tenant's rates."""

import time

from starlette.types import ASGIApp, Receive, Scope, Send

from orchestrator.live.openai.border.door import Door
from orchestrator.live.openai.border.visit import visit_of
from orchestrator.live.openai.errors import ApiError, rate_limited

# No key, no rate: for probes, and the page, which says nothing before it was given a key.
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
        tenant = self._door.tenant(given)
        if tenant is None:
            what = "the API key is not known" if given else "no API key was sent"
            return ApiError(401, f"{what}; send it as a Bearer token", code="invalid_api_key")
        visit_of(scope).tenant = tenant
        refused = tenant.admit(time.monotonic()) if scope["method"] == "POST" else None
        return None if refused is None else rate_limited(*refused)
