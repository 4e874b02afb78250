"""One HTTP request beside its body: its ids, whose it is, and the line in the log it ends as."""

import logging
import re
import secrets
import time
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.live.openai.border.door import Tenant

log = logging.getLogger(__name__)

_ID = re.compile(rb"[\x21-\x7e]{1,128}")
# W3C Trace Context, level 1: version, trace id, parent id, flags. Ids of zeros and version ff are
# not valid; a later version may carry more fields.
_TRACE = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[^\s]{1,256})?"
)


@dataclass(slots=True, kw_only=True)
class Visit:
    """`given` is the client's x-request-id, `trace` its traceparent, `request` the core's name."""

    given: str | None
    trace: str | None
    tenant: Tenant | None = None
    request: str | None = None
    left: bool = False  # the client, before the end

    def charge(self, tokens: int) -> None:
        """Count tokens in and out for the tenant's rate."""
        if self.tenant is not None:
            self.tenant.charge(tokens, time.monotonic())


def visit_of(scope: Scope) -> Visit:
    """The visit that a request's scope belongs to."""
    visit: Visit = scope["state"]["visit"]
    return visit


class Visits:
    """Gives every request its `Visit`, every answer its x-request-id, every end its log line.

    What counts for a tenant's rates is answered with what is left of them.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        visit = Visit(
            given=_valid(_ID, headers.get(b"x-request-id")),
            trace=read_trace(headers.get(b"traceparent")),
        )
        scope.setdefault("state", {})["visit"] = visit
        began, status = time.perf_counter(), 499

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                name = visit.given or visit.request or f"req-{secrets.token_hex(12)}"
                more = [(b"x-request-id", name.encode())]
                if visit.tenant is not None and scope["method"] == "POST":
                    more += visit.tenant.headers(time.monotonic())
                message["headers"] = [*message["headers"], *more]
            await send(message)

        try:
            await self._app(scope, receive, answer)
        finally:
            if log.isEnabledFor(logging.INFO):
                seconds = round(time.perf_counter() - began, 6)
                log.info("request", extra=_line(scope, visit, status, seconds))


def read_trace(given: bytes | None) -> str | None:
    """A traceparent as it came; None if it is not valid, which starts no trace."""
    found = None if given is None else _TRACE.fullmatch(given)
    if found is None or (found[1] == b"00" and found[2] is not None):
        return None
    return found[0].decode()


def _valid(pattern: "re.Pattern[bytes]", given: bytes | None) -> str | None:
    return given.decode() if given is not None and pattern.fullmatch(given) else None


def _line(scope: Scope, visit: Visit, status: int, seconds: float) -> dict[str, object]:
    return {
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "seconds": seconds,
        "request_id": visit.given,
        "request": visit.request,
        "trace": visit.trace,
        "tenant": None if visit.tenant is None else visit.tenant.name,
        "left": visit.left,
    }
