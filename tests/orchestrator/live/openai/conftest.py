"""A real server around the real application; behind it a scripted but whole `Service`."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
import pytest
import uvloop
from prometheus_client import CollectorRegistry
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from orchestrator.live.gateway import take_port
from orchestrator.live.openai.app import create_app
from orchestrator.live.openai.border.connection import Connection, Outgoing
from orchestrator.live.openai.service import ModelCard, Told
from orchestrator.live.openai.text import StopWatch
from orchestrator.live.openai.vocabulary import Vocabulary
from orchestrator.metrics.exposition import Metrics
from orchestrator.state.actions import Emit, Fail, Finish, FinishReason, Summary
from orchestrator.state.events import Arrived, HandoffMode, Route
from workers.api.messages import TokenLogprobs
from workers.engines.models import DEFAULT_MODEL, resolve_model
from workers.service.front import Front

CREATED = 1_700_000_000
CONTEXT = 1024


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """The default model's own tokenizer."""
    return AutoTokenizer.from_pretrained(resolve_model(DEFAULT_MODEL))


class Gate:
    """Awaited in the server's thread, opened from the test's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = False
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def open(self) -> None:
        with self._lock:
            self._open = True
            for loop, event in self._waiting:
                loop.call_soon_threadsafe(event.set)
            self._waiting.clear()

    async def wait(self) -> None:
        event = asyncio.Event()
        with self._lock:
            if self._open:
                return
            self._waiting.append((asyncio.get_running_loop(), event))
        await event.wait()


@dataclass
class Script:
    """What the service answers: tokens in groups, then the end.

    `groups` are the sizes of successive Emits (the last one repeats). `fail` comes after
    `fail_after` tokens. `hold_after`: from that token on nothing comes until `release` is opened.
    `at_once`: so many Emits come in one turn of the loop.
    """

    ids: tuple[int, ...] = ()
    groups: tuple[int, ...] = (1,)
    fail: Callable[[str], Fail] | None = None
    fail_after: int = 0
    hold_after: int | None = None
    at_once: int = 1
    release: Gate = field(default_factory=Gate)


class ScriptedService:
    """Obeys limit, stop ids and stop strings as the core does, and counts what is open."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.model = ModelCard(
            name="smollm2-135m",
            max_context=CONTEXT,
            vocab_size=len(tokenizer),
            created=CREATED,
            stop_ids=(tokenizer.eos_token_id,),
        )
        self.script = Script()
        self.not_ready: str | None = None
        self.arrived: list[Arrived] = []
        self.open: set[str] = set()
        self.cancelled: list[str] = []
        self._running: dict[str, asyncio.Future[None]] = {}
        self.changed = threading.Condition()
        self._vocabulary = Vocabulary(tokenizer, self.model.stop_ids)
        self._numbers = itertools.count()

    def text(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def says(self, text: str, **script: Any) -> None:
        """The next answers are `text` and then end-of-text."""
        self.script = Script(ids=(*self.text(text), *self.model.stop_ids), **script)

    def ready(self) -> str | None:
        return self.not_ready

    def new_request_id(self) -> str:
        return f"r{next(self._numbers)}"

    def status(self) -> dict[str, Any]:
        return {"model": self.model.name, "open": len(self.open)}

    def live(self) -> dict[str, Any]:
        return {"model": self.model.name, "requests": {"open": len(self.open)}}

    async def order(self, body: Any) -> dict[str, Any]:
        return {"ordered": body}

    def wait_until(self, true: Callable[[], bool], timeout_s: float = 5.0) -> bool:
        with self.changed:
            return self.changed.wait_for(true, timeout_s)

    def submit(self, arrived: Arrived, told: Told, trace: str | None = None) -> None:
        self._running[arrived.request] = asyncio.ensure_future(self._play(arrived, told))

    def route(self, request: str) -> str:
        return Route.RELAY

    def leave(self, request: str) -> None:
        self._running[request].cancel()

    async def _play(self, arrived: Arrived, told: Told) -> None:
        ended = False
        with self.changed:
            self.arrived.append(arrived)
            self.open.add(arrived.request)
            self.changed.notify_all()
        try:
            number = 0
            async for action in self.actions(arrived):
                ended = ended or not isinstance(action, Emit)
                told(action)
                number += 1
                if number % self.script.at_once == 0:
                    await asyncio.sleep(0)  # as a worker's next step: in another turn of the loop
        finally:
            with self.changed:
                self.open.discard(arrived.request)
                if not ended:
                    self.cancelled.append(arrived.request)
                self.changed.notify_all()

    async def actions(self, arrived: Arrived) -> AsyncIterator[Emit | Finish | Fail]:
        script = self.script
        ids, reason, stop = self._law(arrived, script.ids)
        at = 0
        for size in itertools.chain(script.groups, itertools.repeat(script.groups[-1])):
            if at > 0 and at == script.fail_after:
                await asyncio.sleep(0.02)  # the tokens so far are on the wire
            if script.fail is not None and at >= script.fail_after:
                yield script.fail(arrived.request)
                return
            if script.hold_after is not None and at >= script.hold_after:
                await script.release.wait()
            if at >= len(ids):
                break
            run = ids[at : at + size]
            yield Emit(
                request=arrived.request,
                start=at,
                ids=run,
                logprobs=self._logprobs(arrived, run),
                margins=tuple(i / 4 for i in run) if arrived.sampling.margins else None,
            )
            at += len(run)
        yield Finish(
            request=arrived.request,
            reason=reason,
            stop=stop,
            summary=summary(len(arrived.prompt_ids), len(ids)),
        )

    def _law(
        self, arrived: Arrived, ids: Sequence[int]
    ) -> tuple[tuple[int, ...], FinishReason, str | None]:
        watch = StopWatch(self._vocabulary, arrived.stop_strings)
        for count, id in enumerate(ids, start=1):
            if id in arrived.stop_ids:
                return tuple(ids[:count]), FinishReason.STOP, None
            if watch.push((id,)) is not None:
                return tuple(ids[:count]), FinishReason.STOP, watch.matched
            if count == arrived.limit:
                break
        return tuple(ids[: arrived.limit]), FinishReason.LENGTH, None

    def _logprobs(self, arrived: Arrived, run: Sequence[int]) -> tuple[TokenLogprobs, ...] | None:
        wanted = arrived.sampling.logprobs
        if wanted is None:
            return None
        return tuple(
            TokenLogprobs(
                logprob=-id / 1000,
                top=tuple(((id + k) % 49_000, -id / 1000 - k) for k in range(wanted)),
            )
            for id in run
        )


def summary(prompt: int, completion: int) -> Summary:
    return Summary(
        route=Route.RELAY,
        handoff=HandoffMode.CATCH_UP,
        handoff_index=3,
        relay_tokens=2,
        prompt_tokens=prompt,
        cached_tokens=prompt // 2,
        completion_tokens=completion,
        queue_s=0.25,
        prefill_s=0.5,
        kv_transfer_s=2.5,
        relay_s=2.0,
        handoff_gap_s=0.0,
        kv_bytes_raw=23_040,
        kv_bytes_wire=16_000,
        recoveries=1,
        sites={"prefill": "p0", "relay": "r0", "main": "m0"},
    )


@dataclass(frozen=True)
class Gateway:
    """A running gateway and the service behind it."""

    service: ScriptedService
    metrics: Metrics
    http: httpx.Client

    @property
    def url(self) -> str:
        return str(self.http.base_url).rstrip("/")

    def get(self, path: str, headers: Any = None) -> httpx.Response:
        return self.http.get(path, headers=headers)

    def chat(self, headers: Any = None, **fields: Any) -> httpx.Response:
        body = chat_body(**fields)
        return self.http.post("/v1/chat/completions", json=body, headers=headers)

    def complete(self, headers: Any = None, **fields: Any) -> httpx.Response:
        body = {"model": self.service.model.name, "prompt": "Once upon a time", **fields}
        return self.http.post("/v1/completions", json=body, headers=headers)


def chat_body(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    return {"model": "smollm2-135m", "messages": messages, **fields}


@contextmanager
def serving(service: ScriptedService, **options: Any) -> Iterator[Gateway]:
    """The application on a real uvicorn server in a thread of its own."""
    metrics = Metrics(CollectorRegistry(), service.model.name)
    app = create_app(service, metrics=metrics, live=service.live, order=service.order, **options)
    listener = take_port("127.0.0.1", 0)
    made: list[Front] = []
    started = threading.Event()

    async def run() -> None:
        made.append(Front(app, http=partial(Connection, Outgoing())))
        started.set()
        await made[0].serve(sockets=[listener])

    thread = threading.Thread(target=uvloop.run, args=(run(),))
    thread.start()
    assert started.wait(10)
    try:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with httpx.Client(base_url=url, timeout=10) as http:
            http.get("/health").raise_for_status()
            yield Gateway(service, metrics, http)
    finally:
        service.script.release.open()
        made[0].should_exit = True
        thread.join(10)
        listener.close()
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def shared_gateway(tokenizer: PreTrainedTokenizerFast) -> Iterator[Gateway]:
    with serving(ScriptedService(tokenizer), draw_seed=itertools.count(1000).__next__) as gateway:
        yield gateway


@pytest.fixture
def gateway(shared_gateway: Gateway) -> Gateway:
    """One gateway per module, its service fresh for every test; nothing may be left open."""
    service = shared_gateway.service
    assert service.wait_until(lambda: not service.open), service.open
    service.arrived.clear()
    service.cancelled.clear()
    service.not_ready = None
    service.says("Paris.")
    return shared_gateway


@pytest.fixture
def serve() -> Callable[..., Any]:
    """For gateways with other options: `with serve(service, door=...) as gateway`."""
    return serving


@pytest.fixture
def scripted(tokenizer: PreTrainedTokenizerFast) -> ScriptedService:
    return ScriptedService(tokenizer)


def events(raw: str) -> list[str]:
    """The data of a stream's events, comments left out."""
    return [e.removeprefix("data: ") for e in raw.split("\n\n") if e.startswith("data: ")]


@pytest.fixture
def sse() -> Callable[[str], list[str]]:
    return events


@pytest.fixture
def script() -> type[Script]:
    return Script
