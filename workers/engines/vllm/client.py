"""Runs over HTTP: one streamed completion each, read in a thread of their own."""

import asyncio
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson

from workers.api.messages import TokenLogprobs
from workers.engines.vllm.asking import read_chunk

_REGULAR = ("length", "stop")
_CONNECT_S = 10.0


@dataclass(frozen=True, slots=True)
class Door:
    """Where a vLLM answers: at a url, or behind a `socket` that only its user can open."""

    url: str
    key: str | None = None
    socket: Path | None = None

    def __str__(self) -> str:
        return self.url if self.socket is None else f"unix:{self.socket}"

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.key is None else {"authorization": f"Bearer {self.key}"}

    @property
    def uds(self) -> str | None:
        return None if self.socket is None else str(self.socket)


@dataclass(frozen=True, slots=True)
class Told:
    """A run sampled tokens."""

    run: int
    tokens: list[tuple[int, TokenLogprobs | None]]


@dataclass(frozen=True, slots=True)
class Over:
    """A run has ended; `refusal`: vLLM did not want it, in vLLM's words."""

    run: int
    refusal: str | None = None


class RunsClient:
    """For any thread; `on_lost` hears from the client's own that vLLM cannot be talked to."""

    def __init__(self, door: Door, on_lost: Callable[[str], None]) -> None:
        self._door = door
        self._on_lost = on_lost
        self._news: queue.SimpleQueue[Told | Over] = queue.SimpleQueue()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._http: httpx.AsyncClient | None = None
        self._thread = threading.Thread(target=self._live, name="vllm-runs", daemon=True)
        self._thread.start()

    def submit(self, run: int, body: dict[str, Any]) -> None:
        raw = orjson.dumps(body)
        self._loop.call_soon_threadsafe(self._start, run, raw)

    def abort(self, run: int) -> None:
        """Leave: vLLM ends a request whose client is gone."""
        self._loop.call_soon_threadsafe(self._leave, run)

    def events(self, timeout_s: float) -> list[Told | Over]:
        """All that has come, the first of it waited for at most so long."""
        news: list[Told | Over] = []
        try:
            news.append(self._news.get(timeout=timeout_s))
            while True:
                news.append(self._news.get_nowait())
        except queue.Empty:
            return news

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join(timeout=5.0)

    # ------------------------------------------------------------ the thread

    def _live(self) -> None:
        # No limit on reading: a request may wait long for its turn.
        timeout = httpx.Timeout(None, connect=_CONNECT_S)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._http = httpx.AsyncClient(
            base_url=self._door.url,
            headers=self._door.headers,
            timeout=timeout,
            transport=httpx.AsyncHTTPTransport(uds=self._door.uds, limits=limits),
        )
        self._loop.run_forever()
        self._loop.run_until_complete(self._http.aclose())
        self._loop.close()

    def _end(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        # Those that were cancelled run once more before the loop stops.
        self._loop.call_soon(self._loop.call_soon, self._loop.stop)

    def _start(self, run: int, raw: bytes) -> None:
        task = self._loop.create_task(self._read(run, raw))
        self._tasks[run] = task
        task.add_done_callback(lambda ended: self._ended(run, ended))

    def _ended(self, run: int, task: asyncio.Task[None]) -> None:
        """What nobody foresaw must be heard too: a run without an end waits for ever."""
        self._tasks.pop(run, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_lost(f"a request to vLLM failed: {error!r}")

    def _leave(self, run: int) -> None:
        task = self._tasks.get(run)
        if task is not None:
            task.cancel()

    async def _read(self, run: int, raw: bytes) -> None:
        assert self._http is not None
        try:
            refusal = await self._stream(self._http, run, raw)
            self._news.put(Over(run, refusal))
        except httpx.HTTPError as error:
            self._on_lost(f"vLLM does not answer: {error!r}")
        except _Unusable as error:
            self._on_lost(str(error))

    async def _stream(self, http: httpx.AsyncClient, run: int, raw: bytes) -> str | None:
        headers = {"content-type": "application/json"}
        request = http.stream("POST", "/v1/completions", content=raw, headers=headers)
        async with request as response:
            if response.status_code != 200:
                text = (await response.aread()).decode(errors="replace")[:300]
                said = f"vLLM answers {response.status_code}: {text}"
                if response.status_code >= 500:
                    raise _Unusable(said)
                return said
            finish = None
            async for line in response.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                finish = self._told(run, line[6:]) or finish
        if finish not in _REGULAR:
            raise _Unusable(f"vLLM ended a request by itself: {finish}")
        return None

    def _told(self, run: int, data: str) -> str | None:
        try:
            tokens, finish = read_chunk(orjson.loads(data))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise _Unusable(f"vLLM says {data[:200]!r}: {error!r}") from error
        if tokens:
            self._news.put(Told(run, tokens))
        return finish


class _Unusable(Exception):
    """vLLM answers, but not as one that goes on."""
