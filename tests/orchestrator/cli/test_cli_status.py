"""`pdd status` as people run it, against a gateway's answers over HTTP."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

LOAD = {
    "running": 2,
    "kv_held_tokens": 304,
    "kv_free_tokens": 16032,
    "step_s": 0.0213,
    "prefill_tokens_per_s": None,
}
STATUS = {
    "model": "smollm2-135m",
    "gateway": {"name": "gw-1", "site": "shenzhen"},
    "ready": True,
    "why_not": None,
    "requests": {"open": 3, "queued": 1},
    "sites": [{"name": "hami", "state": "lost"}, {"name": "shenzhen", "state": "up"}],
    "workers": [
        {"name": "hami/compute-and-more/0", "roles": ["prefill"], "state": "down"}
        | {"pid": None, "load": None},
        {"name": "shenzhen/memory/0", "roles": ["main"], "state": "up", "pid": 7, "load": LOAD},
    ],
    "links": [
        {"between": ["hami", "shenzhen"], "rtt_s": 0.05, "goodput_bytes_per_s": 1.125e6}
        | {"bandwidth_bytes_per_s": 1.25e6, "measured_s_ago": 3.2, "loss": 0.00012}
        | {"queue_bytes": 7, "emulator": "127.0.0.1:40123"},
        {"between": ["shenzhen", "kashgar"], "rtt_s": 0.08, "goodput_bytes_per_s": 2.5e9}
        | {"bandwidth_bytes_per_s": 2.5e9, "measured_s_ago": None, "loss": None}
        | {"queue_bytes": 0, "emulator": None},
    ],
    "counts": {"main_lost": 1},
}


class Gateway(ThreadingHTTPServer):
    """Answers `/status`, to those who show the key if it has one."""

    def __init__(self, body: Any, status: int = 200, key: str | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.status, self.key = status, key

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Gateway

    def do_GET(self) -> None:
        gateway = self.server
        allowed = gateway.key in (None, (self.headers["authorization"] or "")[len("Bearer ") :])
        status = gateway.status if self.path == "/status" else 404
        self.send_response(status if allowed else 401)
        self.end_headers()
        self.wfile.write(gateway.body)

    def log_message(self, *arguments: object) -> None:
        """Says nothing."""


@contextlib.contextmanager
def serving(body: Any, **options: Any) -> Iterator[Gateway]:
    with Gateway(body, **options) as gateway:
        threading.Thread(target=gateway.serve_forever, daemon=True).start()
        yield gateway
        gateway.shutdown()


@pytest.fixture
def pdd(root: Path) -> Any:
    def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "orchestrator.cli.main", "status", *arguments],
            cwd=root,
            env=os.environ | {"COLUMNS": "80"} | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def test_a_ready_service(pdd: Any) -> None:
    with serving(STATUS) as gateway:
        done = pdd("--url", f"{gateway.url}/v1/")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "smollm2-135m at shenzhen: ready; 3 requests open, 1 queued"
    assert "hami/compute-and-more/0" in done.stdout, "names are not cut"
    for cell in ("304", "16032", "21 ms", "prefill ", "down"):
        assert cell in done.stdout
    assert "control port 127.0.0.1:40123" in done.stdout
    assert lines[1] == "site hami: lost"
    shown = " ".join(done.stdout.split())
    hami = "hami > shenzhen: 9 Mbps of 10 Mbps, measured 3 s ago; rtt 50.0 ms, loss 0.012 %"
    assert hami in shown
    assert ", 7 bytes of KV to send emulated" in shown
    assert "shenzhen > kashgar: 20 Gbps of 20 Gbps; rtt 80.0 ms, 0 bytes of KV to send" in shown


def test_as_json_it_is_what_the_gateway_says(pdd: Any) -> None:
    with serving(STATUS) as gateway:
        done = pdd("--url", gateway.url, "-o", "json")
    assert done.returncode == 0
    assert json.loads(done.stdout) == STATUS


def test_not_ready_is_exit_code_1(pdd: Any) -> None:
    with serving(STATUS | {"ready": False, "why_not": "no worker is up"}) as gateway:
        done = pdd("--url", gateway.url)
    assert done.returncode == 1
    assert "not ready: no worker is up" in done.stdout


def test_the_key(pdd: Any) -> None:
    with serving(STATUS, key="k1") as gateway:
        assert pdd("--url", gateway.url, "--key", "k1").returncode == 0
        assert pdd("--url", gateway.url, PDD_API_KEY="k1").returncode == 0
        refused = pdd("--url", gateway.url, "--key", "wrong")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        f"{gateway.url} asks for an API key; give it with --key or PDD_API_KEY\n"
    )


def test_nobody_there(pdd: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        done = pdd("--url", url)
    assert done.returncode == 2
    assert done.stderr.startswith(f"no gateway at {url}: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("body", "status"), [({}, 200), ([], 200), (b"<html>", 200), (STATUS, 500), (STATUS, 404)]
)
def test_another_server(pdd: Any, body: Any, status: int) -> None:
    with serving(body, status=status) as gateway:
        done = pdd("--url", gateway.url)
    assert done.returncode == 2
    assert done.stderr == f"{gateway.url} is no pdd gateway: /status answered {status}\n"


def test_a_proxy_of_the_environment_is_not_asked(pdd: Any) -> None:
    with serving(STATUS) as gateway:
        proxies = dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY"), "http://127.0.0.1:1")
        done = pdd("--url", gateway.url, **proxies)
    assert done.returncode == 0


@pytest.mark.parametrize("output", ["text", "json"])
def test_whoever_watches_sees_each_change_as_it_comes(root: Path, output: str) -> None:
    def next_change() -> tuple[str, Any, Any]:
        line = watching.stdout.readline()
        if output == "text":
            name, _, what = line.split("  ", 1)[1].strip().partition(": ")
            return name, None, what
        told = json.loads(line)
        datetime.fromisoformat(told["at"])
        return told["name"], told["before"], told["after"]

    def expect(name: str, before: Any, after: Any, text: str) -> None:
        assert next_change() == ((name, None, text) if output == "text" else (name, before, after))

    with serving(STATUS) as gateway:
        watching = subprocess.Popen(
            [
                *(sys.executable, "-m", "orchestrator.cli.main", "status", "--watch"),
                *("-o", output, "--url", gateway.url),
            ],
            cwd=root,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            expect("gateway", None, {"state": "ready", "name": "gw-1"}, "ready, name gw-1")
            expect("site hami", None, {"state": "lost"}, "lost")
            for _ in ("shenzhen", "a worker of each"):
                next_change()
            next_change()
            sites = [{"name": "hami", "state": "draining"}, STATUS["sites"][1]]
            gateway.body = json.dumps(STATUS | {"sites": sites}).encode()
            state = {"state": "lost"}, {"state": "draining"}
            expect("site hami", *state, "state lost > draining")
            watching.send_signal(signal.SIGINT)
            assert watching.wait(20) == 130
        finally:
            watching.kill()
            watching.wait()
            watching.stdout.close()
