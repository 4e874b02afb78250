"""`pdd drain` as people run it: what it asks of a gateway, and what it says of the answer."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from orchestrator.cli.main import run

SITE = {"site": "hami", "state": "draining", "workers": ["hami/p/0", "hami/p/1"]}


class Gateway(ThreadingHTTPServer):
    """Notes what it is asked, and answers as the test says."""

    def __init__(self, answer: Any, status: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer, self.status = answer, status
        self.asked: list[tuple[str, str | None, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Gateway

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert self.headers["content-type"] == "application/json"
        self.server.asked.append((self.path, self.headers["authorization"], body))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(json.dumps(self.server.answer).encode())

    def log_message(self, *arguments: object) -> None:
        """Says nothing."""


@contextlib.contextmanager
def serving(answer: Any, status: int = 200) -> Iterator[Gateway]:
    with Gateway(answer, status) as gateway:
        threading.Thread(target=gateway.serve_forever, daemon=True).start()
        yield gateway
        gateway.shutdown()


@pytest.mark.parametrize(
    ("arguments", "asked", "answer", "text"),
    [
        (["hami"], {"site": "hami", "undo": False}, SITE, "hami drains: hami/p/0, hami/p/1"),
        (["hami"], {"site": "hami", "undo": False}, SITE | {"workers": []}, "hami drains: it has"),
        (["hami", "--undo"], {"site": "hami", "undo": True}, SITE, "hami may have its workers"),
        (["hami/p/0"], {"worker": "hami/p/0"}, {"worker": "hami/p/0"}, "hami/p/0 drains; another"),
    ],
)
def test_what_is_asked_and_told(
    arguments: list[str],
    asked: dict[str, Any],
    answer: dict[str, Any],
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving(answer) as gateway:
        assert run(["drain", *arguments, "--url", f"{gateway.url}/v1", "--key", "op"]) == 0
        assert gateway.asked == [("/pdd/drain", "Bearer op", asked)]
        assert capsys.readouterr().out.startswith(text)
        assert run(["drain", *arguments, "--url", gateway.url, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == answer


@pytest.mark.parametrize(
    ("status", "answer", "line"),
    [
        (409, {"error": {"message": "without hami nobody serves"}}, "without hami nobody serves"),
        (404, {"detail": "nothing here"}, "/pdd/drain answered 404"),
        (200, ["what"], "/pdd/drain answered 200"),
    ],
)
def test_a_refusal_is_one_line(
    status: int, answer: Any, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(answer, status) as gateway:
        assert run(["drain", "hami", "--url", gateway.url]) == 2
    assert capsys.readouterr().err == f"{gateway.url}: {line}\n"


def test_keys_and_nonsense(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({}, 401) as gateway:
        assert run(["drain", "hami", "--url", gateway.url]) == 2
        assert "asks for an API key; give it with --key or PDD_API_KEY" in capsys.readouterr().err
        assert run(["drain", "hami/p/0", "--undo", "--url", gateway.url]) == 2
        assert capsys.readouterr().err.startswith("--undo: of a site")
        assert len(gateway.asked) == 1
