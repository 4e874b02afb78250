"""What the gateway costs per token, and how it delays the first one (`pdd bench gateway`).

Real gateway, real worker process, simulated engine that makes a token for every stream each 20 ms.
The client is raw sockets in a process of its own: it counts bytes and reads nothing but the usage
chunk. Added TTFT is beside the very worker, asked for the same prompts over its own protocol.
CPU is the gateway's process alone, from the connections' coming to the last stop it sends.
`loop_ns` is one addition in a Python loop: the machine's speed at the time.
"""

import asyncio
import re
import secrets
import selectors
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson
import psutil

from benchmarks.driver import LOOP_ADDITIONS, loop_s
from benchmarks.machine import machine
from benchmarks.service import Served, serving
from compiled.finder import is_compiled
from workers.api.messages import PREFILL, DownMessage, Start, Stop
from workers.api.wire import encode
from workers.service.config import SECRET_ENV

CELLS = ((64, 200), (256, 100))  # streams at once, tokens of each
ROUNDS = 3  # medians are reported
WAIT_S = 60.0
SETTLE_S = 0.2  # after the last answer the gateway still stops legs and counts
PROMPT = tuple(range(100, 132))
TOPOLOGY = """\
model: smollm2-135m
sites:
  here:
    launch: local
    pools:
      all: {chip: cpu, roles: [prefill, main], engine: simulated, slots: 1024, kv_tokens: 262144,
            chunk_tokens: 8192, simulate: {prefill_tokens_per_s: 1000000.0, step: 20ms}}
gateway: {site: here}
policy: {queue_limit: 1024}
"""
USAGE = re.compile(rb'"completion_tokens":(\d+)')


class BenchFailed(Exception):
    """A stream did not come to its end; the text is the last that it said."""


@dataclass(slots=True)
class Stream:
    """One client's connection. `head` and `tail` are the first and last bytes of the answer."""

    sock: socket.socket
    first_at: float | None = None
    head: bytes = b""
    tail: bytes = b""
    done: bool = False

    def read(self, now: float) -> None:
        got = self.sock.recv(1 << 18)
        if self.first_at is None:
            self.first_at, self.head = now, got[:64]
        self.tail = (self.tail + got)[-600:]
        self.done = not got or self.tail.endswith(b"\r\n0\r\n\r\n")

    @property
    def tokens(self) -> int:
        """What its usage chunk says. Raises BenchFailed."""
        found = USAGE.search(self.tail)
        if not self.head.startswith(b"HTTP/1.1 200") or found is None:
            raise BenchFailed((self.head + b" ... " + self.tail).decode(errors="replace"))
        return int(found[1])


@dataclass(kw_only=True)
class Round:
    """One time all streams of a cell."""

    tokens: int
    seconds: float
    cpu_s: float
    ttfts_s: list[float] = field(default_factory=list)


def run(*, tell: Callable[[str], None]) -> dict[str, Any]:
    """Start the service and measure every cell, medians of three rounds each."""
    measured_on = machine()
    secret = secrets.token_hex(16)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "gateway.yaml")
        file.write_text(TOPOLOGY)
        with serving(file, tell=tell, environment={SECRET_ENV: secret}) as served:
            tell("warming up")
            _round(served, 32, 50)
            cells = []
            for streams, tokens in CELLS:
                tell(f"{streams} streams of {tokens} tokens")
                cells.append(_cell(served, secret, streams, tokens))
    return {
        "model": served.model,
        "machine": measured_on,
        "compiled": is_compiled(),
        "loop_ns": 1e9 * loop_s() / LOOP_ADDITIONS,
        "cells": cells,
        "peak_tokens_per_s": max(cell["tokens_per_s"] for cell in cells),
    }


def _cell(served: Served, secret: str, streams: int, tokens: int) -> dict[str, Any]:
    rounds = [_round(served, streams, tokens) for _ in range(ROUNDS)]
    alone = [asyncio.run(_alone(served, secret, streams)) for _ in range(ROUNDS)]
    through = statistics.median(ttft for one in rounds for ttft in one.ttfts_s)
    worker = statistics.median(ttft for ttfts in alone for ttft in ttfts)
    return {
        "streams": streams,
        "tokens": tokens,
        "tokens_per_s": statistics.median(one.tokens / one.seconds for one in rounds),
        "ttft_ms": 1e3 * through,
        "worker_ttft_ms": 1e3 * worker,
        "added_ttft_ms": 1e3 * (through - worker),
        "cpu_us_per_token": statistics.median(1e6 * one.cpu_s / one.tokens for one in rounds),
    }


def _round(served: Served, streams: int, tokens: int) -> Round:
    """All streams at once, to their ends. Raises BenchFailed."""
    host, port = served.base.removeprefix("http://").split(":")
    body = orjson.dumps(
        {
            "model": served.model,
            "messages": [{"role": "user", "content": "Count the sheep that jump over the fence."}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
    )
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    process = psutil.Process(served.process.pid)
    selector = selectors.DefaultSelector()
    cpu = process.cpu_times()
    opened = [Stream(socket.create_connection((host, int(port)))) for _ in range(streams)]
    try:
        for stream in opened:
            selector.register(stream.sock, selectors.EVENT_READ, stream)
        began = time.perf_counter()
        for stream in opened:
            stream.sock.sendall(head.encode() + body)
        left = streams
        while left:
            ready = selector.select(WAIT_S)
            if not ready:
                raise BenchFailed(f"{left} of {streams} streams hang")
            for key, _ in ready:
                stream = key.data
                stream.read(time.perf_counter())
                if stream.done:
                    selector.unregister(stream.sock)
                    left -= 1
        seconds = time.perf_counter() - began
        time.sleep(SETTLE_S)
        spent = process.cpu_times()
    finally:
        selector.close()
        for stream in opened:
            stream.sock.close()
    return Round(
        tokens=sum(stream.tokens for stream in opened),
        seconds=seconds,
        cpu_s=spent.user + spent.system - cpu.user - cpu.system,
        ttfts_s=[stream.first_at - began for stream in opened if stream.first_at is not None],
    )


# ------------------------------------------------------------ the worker without a gateway


async def _alone(served: Served, secret: str, streams: int) -> list[float]:
    """Seconds to each first token when the worker is asked for as many prompts at once."""
    control = served.status()["workers"][0]["control"]
    name = f"bench-{secrets.token_hex(4)}"
    asked = [f"{name}-{i}" for i in range(streams)]
    async with httpx.AsyncClient(
        headers={"authorization": f"Bearer {secret}"}, timeout=WAIT_S, trust_env=False
    ) as http:

        async def post(messages: Sequence[DownMessage]) -> None:
            content = orjson.dumps({"messages": [encode(message) for message in messages]})
            answer = await http.post(f"{control}/control?gateway={name}", content=content)
            answer.raise_for_status()

        async with http.stream("GET", f"{control}/tokens", params={"gateway": name}) as tokens:
            lines = tokens.aiter_lines()
            await anext(lines)  # the hello
            began = time.perf_counter()
            await post([_start(request, name) for request in asked])
            first: dict[str, float] = {}
            try:
                async with asyncio.timeout(WAIT_S):
                    while len(first) < streams:
                        line = await anext(lines)
                        now = time.perf_counter()
                        for request in _told(orjson.loads(line)["messages"]):
                            first.setdefault(request, now - began)
            except TimeoutError:
                raise BenchFailed(f"{streams - len(first)} of {streams} prompts hang") from None
            await post([Stop(request=request, epoch=1) for request in asked])
    return list(first.values())


def _told(messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The requests of which a worker tells tokens: a run of one's, or the next ones of many."""
    for message in messages:
        if message["kind"] == "tok" and message["ids"]:
            yield message["request"]
        elif message["kind"] == "step":
            yield from message["requests"]


def _start(request: str, gateway: str) -> Start:
    return Start(
        request=request,
        epoch=1,
        gateway=gateway,
        role=PREFILL,
        prompt_ids=PROMPT,
        limit=1,
        reserve=len(PROMPT) + 1,
    )
