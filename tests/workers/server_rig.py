"""A worker process, a client of it and a gateway's end of its token stream."""

import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import orjson

from workers.api.messages import DownMessage, TokenRun, UpMessage
from workers.api.wire import UP, decode, encode
from workers.service.config import SECRET_ENV
from workers.streams.packed import unpacked

ROOT = Path(__file__).parents[2]
SECRET = "a-secret-of-this-test"
PROMPT = tuple(range(50, 250))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(good: Callable[[], Any], timeout_s: float = 20.0) -> Any:
    """What `good` returns once that is true. Bounded."""
    pause = threading.Event()
    end = time.monotonic() + timeout_s
    while not (value := good()):
        assert time.monotonic() < end, "waited in vain"
        pause.wait(0.02)
    return value


def write_config(folder: Path, name: str, **changes: Any) -> Path:
    config = {
        "name": name,
        "site": "here",
        "pool": "test",
        "roles": ["prefill", "relay", "main"],
        "model": "simulated",
        "engine": "simulated",
        "simulated": {"prefill_tokens_per_s": 20000.0, "step_s": 0.01},
        "kv_tokens": 2048,
        "http_port": free_port(),
        "kv_port": free_port(),
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(config | changes))
    return path


class Server:
    """A worker process and a client of it."""

    def __init__(self, folder: Path, name: str, **changes: Any) -> None:
        path = write_config(folder, name, **changes)
        config = json.loads(path.read_text())
        self.http_port, self.kv_port = config["http_port"], config["kv_port"]
        self.errors = folder / f"{name}.log"
        with self.errors.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "workers.service.process", str(path)],
                cwd=ROOT,
                env=os.environ | {SECRET_ENV: SECRET, "OMP_NUM_THREADS": "1"},
                stderr=log,
            )
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{self.http_port}",
            headers={"authorization": f"Bearer {SECRET}"},
            timeout=20.0,
        )

    def up(self) -> "Server":
        wait_until(self.healthy)
        return self

    def healthy(self) -> bool:
        assert self.process.poll() is None, self.errors.read_text()
        try:
            return self.http.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    def post(self, path: str, *messages: DownMessage, gateway: str | None = None) -> None:
        body = orjson.dumps({"messages": [encode(m) for m in messages]})
        params = {} if gateway is None else {"gateway": gateway}
        assert self.http.post(path, content=body, params=params).status_code == 200

    def held_tokens(self) -> int:
        return self.http.get("/blocks").json()["held_tokens"]

    def kill(self) -> None:
        self.http.close()
        self.process.kill()
        self.process.wait(10)


class Reader:
    """A gateway's end of one token stream, read in a thread. Steps' columns are told as runs."""

    def __init__(self, server: Server, gateway: str) -> None:
        self.messages: list[UpMessage] = []
        self.lines: queue.Queue[dict[str, Any]] = queue.Queue()
        self.hello: dict[str, Any] | None = None
        self._client = httpx.Client(
            base_url=server.http.base_url, headers=server.http.headers, timeout=20.0
        )
        self._opened = threading.Event()
        self._params = {"gateway": gateway}
        self._response: httpx.Response | None = None
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()
        assert self._opened.wait(20.0)

    def _read(self) -> None:
        try:
            with self._client.stream("GET", "/tokens", params=self._params) as response:
                self._response = response
                for line in response.iter_lines():
                    body = orjson.loads(line)
                    self.hello = body.get("hello", self.hello)
                    for message in body.get("messages", []):
                        self.messages += unpacked(decode(message, UP))
                    self._opened.set()
        except (httpx.TransportError, httpx.StreamClosed, OSError, ValueError):
            return  # closed by the test or by the worker

    def of(self, kind: type, request: str | None = None) -> list[Any]:
        return [
            m
            for m in list(self.messages)
            if isinstance(m, kind) and request in (None, getattr(m, "request", None))
        ]

    def ids(self, request: str, epoch: int) -> list[int]:
        return [i for run in self.of(TokenRun, request) if run.epoch == epoch for i in run.ids]

    def close(self) -> None:
        network = self._response.extensions["network_stream"]
        network.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        self.thread.join(5.0)
        self._client.close()
