"""Asking a running gateway for its status."""

from typing import Annotated, Any

import httpx
import typer

from orchestrator.errors import UserError

KeyOption = Annotated[
    str | None, typer.Option(envvar="PDD_API_KEY", help="An API key, if the gateway asks.")
]
ANSWER_S = 5.0


def ask_status(url: str, key: str | None) -> tuple[dict[str, Any], httpx.Response]:
    """What `/status` says, and the answer it came in. Raises UserError."""
    base, answered = _ask("GET", "/status", url, key, None)
    told = _read(answered)
    if told is None:
        raise UserError(f"{base} is no pdd gateway: /status answered {answered.status_code}")
    return told, answered


def give_order(url: str, key: str | None, order: dict[str, Any]) -> dict[str, Any]:
    """What a gateway says to an operator's order. Raises UserError, also if it refuses."""
    base, answered = _ask("POST", "/pdd/drain", url, key, order)
    try:
        told = answered.json()
        if answered.status_code == 200 and isinstance(told, dict):
            return told
        reason = told["error"]["message"]
    except (ValueError, KeyError, TypeError):
        reason = f"/pdd/drain answered {answered.status_code}"
    raise UserError(f"{base}: {reason}")


def _ask(
    method: str, path: str, url: str, key: str | None, body: dict[str, Any] | None
) -> tuple[str, httpx.Response]:
    """The gateway's address and its answer. Raises UserError."""
    base = url.rstrip("/").removesuffix("/v1")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        answered = httpx.request(
            method, f"{base}{path}", headers=headers, json=body, timeout=ANSWER_S, trust_env=False
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error) or type(error).__name__
        raise UserError(
            f"no gateway at {base}: {reason}; start one with pdd serve or give its --url"
        ) from error
    if answered.status_code == 401:
        raise UserError(f"{base} asks for an API key; give it with --key or PDD_API_KEY")
    return base, answered


def _read(answered: httpx.Response) -> dict[str, Any] | None:
    """The status in a gateway's answer; None: it is not from a gateway."""
    try:
        told = answered.json() if answered.status_code == 200 else None
    except ValueError:
        return None
    return told if isinstance(told, dict) and "ready" in told and "workers" in told else None
