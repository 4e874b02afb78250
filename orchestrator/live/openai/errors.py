"""The one border where failures become OpenAI-shaped HTTP errors."""

import math
import re
from typing import NamedTuple

import orjson
from starlette.responses import Response

from orchestrator.state.actions import Fail, Failure

INVALID = "invalid_request_error"
SERVER = "server_error"


class ApiError(Exception):
    """An answer that is not what the client asked for, with its HTTP status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    def body(self) -> bytes:
        """`{"error": {...}}` as JSON."""
        error = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }
        return orjson.dumps({"error": error})

    def headers(self) -> dict[str, str]:
        """Retry-After in whole seconds, rounded up, where there is one; a 401's scheme."""
        headers = {"www-authenticate": "Bearer"} if self.status == 401 else {}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after_s)))
        return headers

    def response(self) -> Response:
        """The whole HTTP answer."""
        return Response(self.body(), self.status, self.headers(), media_type="application/json")


class _Border(NamedTuple):
    """What a failure is to a client. `param`: the field that it is about."""

    status: int
    kind: str
    code: str
    param: str | None = None


FAILURES: dict[Failure, _Border] = {
    Failure.OVERLOADED: _Border(503, SERVER, "overloaded"),
    Failure.UNAVAILABLE: _Border(503, SERVER, "unavailable"),
    Failure.TOO_LONG: _Border(400, INVALID, "context_length_exceeded"),
    Failure.GRAMMAR: _Border(400, INVALID, "grammar_refused", "response_format"),
    Failure.TIMED_OUT: _Border(504, SERVER, "timed_out"),
    Failure.INTERNAL: _Border(500, SERVER, "internal_error"),
}
DEFAULT_RETRY_AFTER_S = 1.0


def from_fail(fail: Fail) -> ApiError:
    """The core's Fail in HTTP's words; every 503 tells when to come again."""
    border = FAILURES[fail.failure]
    retry_after_s = fail.retry_after_s
    if border.status == 503 and retry_after_s is None:
        retry_after_s = DEFAULT_RETRY_AFTER_S
    message = scrub(fail.message)
    return ApiError(
        border.status,
        message if border.param is None else f"{border.param}: {message}",
        kind=border.kind,
        param=border.param,
        code=border.code,
        retry_after_s=retry_after_s,
    )


def internal() -> ApiError:
    """500, saying nothing about the inside."""
    return ApiError(500, "internal error", kind=SERVER, code="internal_error")


def unavailable(reason: str) -> ApiError:
    """503 while the service is not ready."""
    return ApiError(
        503,
        f"not ready: {scrub(reason)}",
        kind=SERVER,
        code="unavailable",
        retry_after_s=DEFAULT_RETRY_AFTER_S,
    )


def rate_limited(of: str, per_minute: int, wait_s: float) -> ApiError:
    """429 for a tenant that has used up its `of` (requests or tokens) of a minute."""
    return ApiError(
        429,
        f"Rate limit reached: {per_minute} {of} per minute. Please try again in {wait_s:.1f} s.",
        kind=of,
        code="rate_limit_exceeded",
        retry_after_s=wait_s,
    )


_ADDRESS = re.compile(
    r"\b[a-zA-Z][a-zA-Z0-9+.-]*://[^\s,;)\]}'\"]+"  # any URL
    r"|\[[0-9a-fA-F:]*:[0-9a-fA-F:.]*\](?::\d+)?"  # [IPv6]:port
    r"|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"  # IPv4:port
    r"|\blocalhost:\d+\b"
)
_PATH = re.compile(r"(?<![\w./<>-])(?:~|\.{1,2})?/(?:[\w.@+~-]+/)*[\w.@+~-]+")


def scrub(text: str) -> str:
    """`text` without addresses and file paths: clients need not know our machines."""
    return _PATH.sub("<path>", _ADDRESS.sub("<address>", text))
