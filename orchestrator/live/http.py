"""HTTP clients between a deployment's processes: with its secret, and TLS where that is on."""

import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator

import httpx

from transport.tls import refusal, site_hostname
from workers.service.config import SECRET_ENV

WRONG_SECRET = f"refused: {SECRET_ENV} here is not the gateway's"
LIMITS = httpx.Limits(max_connections=None, keepalive_expiry=60)


def site_client(
    site: str, secret: str, tls: ssl.SSLContext | None, *, timeout_s: float
) -> httpx.AsyncClient:
    """A client for processes of one site. With `tls` they must prove that they are of it.

    No proxy of the environment stands between the processes of a deployment.
    """
    return httpx.AsyncClient(
        headers={"authorization": f"Bearer {secret}"},
        timeout=timeout_s,
        trust_env=False,
        limits=LIMITS,
        transport=None if tls is None else _SiteTransport(site, tls),
    )


def base_url(address: str, tls: object | None) -> str:
    """The URL of a "host:port" whose server has TLS on, or not."""
    return f"{'http' if tls is None else 'https'}://{address}"


def reason(error: httpx.HTTPError) -> str:
    """Why a request failed, in few words; a refusal of TLS in full."""
    refused = refusal(error)
    return type(error).__name__ if refused is None else str(refused)


def why_refused(error: Exception) -> str:
    """Why an agent's report was not taken, in one line for people."""
    if not isinstance(error, httpx.HTTPStatusError):
        return f"{type(error).__name__}: {error}"
    if error.response.status_code == httpx.codes.UNAUTHORIZED:
        return WRONG_SECRET
    return f"{error.response.status_code}: {error.response.text[:200]}"


class _SiteTransport(httpx.AsyncHTTPTransport):
    """Asks for the site's certificate, whatever address is dialled."""

    def __init__(self, site: str, tls: ssl.SSLContext) -> None:
        super().__init__(verify=tls, limits=LIMITS, trust_env=False)
        self._name = site_hostname(site)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.extensions = {**request.extensions, "sni_hostname": self._name}
        with _as_http_error(request):
            response = await super().handle_async_request(request)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Body(response.stream, request)
        return response


class _Body(httpx.AsyncByteStream):
    """A response's body whose reading raises httpx's errors only."""

    def __init__(self, body: httpx.AsyncByteStream, request: httpx.Request) -> None:
        self._body = body
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_http_error(self._request):
            async for part in self._body:
                yield part

    async def aclose(self) -> None:
        await self._body.aclose()


@contextlib.contextmanager
def _as_http_error(request: httpx.Request) -> Iterator[None]:
    """httpx lets TLS errors of an open connection through as they are."""
    try:
        yield
    except ssl.SSLError as error:
        raise httpx.ReadError(str(error), request=request) from error
