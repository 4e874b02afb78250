"""An answer on the wire: whole or as server-sent events."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from orchestrator.live.openai.answer.choice import Choice, Piece
from orchestrator.live.openai.answer.shapes import DONE, KEEP_ALIVE, Shape, error_frame
from orchestrator.live.openai.border.connection import Connection, connection_of
from orchestrator.live.openai.border.visit import visit_of
from orchestrator.live.openai.errors import ApiError, from_fail, internal
from orchestrator.live.openai.intake import Plan
from orchestrator.live.openai.service import Service
from orchestrator.live.openai.vocabulary import Vocabulary
from orchestrator.metrics.requests import RequestMeter, RequestMetrics
from orchestrator.state.actions import Emit, Fail, Finish

log = logging.getLogger(__name__)

STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long an idle stream stays silent, and how long a client may leave bytes untaken."""

    keep_alive_s: float = 15.0
    write_s: float = 60.0


class ClientLeft(Exception):
    """The client closed its connection, or reads nothing any more."""


class Answer(Response):
    """Submits the plan when it is sent, so that its life is exactly the response's.

    Actions are written where they are told, without a task in between. The headers wait for the
    first action: a request that fails before its first token has its real HTTP status (an
    ApiError, for the application's handler). After that a failure is an error frame and
    `[DONE]`. A client that leaves cancels everything, streaming or not.
    """

    def __init__(
        self,
        plan: Plan,
        shape: Shape,
        *,
        service: Service,
        vocabulary: Vocabulary,
        metrics: RequestMetrics,
        patience: Patience,
    ) -> None:
        super().__init__()
        self._plan = plan
        self._shape = shape
        self._service = service
        self._patience = patience
        self._choices = [
            Choice(arrived, vocabulary, reads_calls=plan.reads_calls, echo=echo)
            for arrived, echo in zip(plan.arrivals, plan.echoes or repeat(""), strict=False)
        ]
        now = time.perf_counter()
        self._meters = [
            metrics.arrived(len(a.prompt_ids), now, partial(service.route, a.request))
            for a in plan.arrivals
        ]
        self._pieces: list[list[Piece]] = [[] for _ in plan.arrivals]  # of an answer told whole
        self._open = len(plan.arrivals)  # choices that have not ended
        self._trace: str | None = None  # the client's traceparent
        self._begun: list[str] = []  # requests that were submitted
        self._forks: dict[int, range] = {}  # by the choice whose first token they wait for
        self._failure: ApiError | None = None
        self._left = False
        self._moved = asyncio.Event()  # it began, ended, failed, or the client left
        self._early: list[bytes] = []  # frames from before the headers
        self._connection: Connection | None = None  # None: the headers are not out
        self._direct: Connection | None = None  # the same, for frames that go as they are
        self._wrote = False  # since the keep-alive's timer was set

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection, visit = connection_of(scope), visit_of(scope)
        visit.request, self._trace = self._plan.arrivals[0].request, visit.trace
        try:
            with connection.followed(self, self._patience.write_s):
                self._submit()
                await self._next_move()
                if self._plan.stream:
                    await self._stream(connection, send)
                else:
                    await self._whole(send)
        except ClientLeft:
            visit.left = True
        finally:
            visit.charge(self._usage()["total_tokens"])
            for request in self._begun:
                self._service.leave(request)
            for meter in self._meters:
                meter.gone()

    # ------------------------------------------------------------------ what is told

    def lost(self) -> None:
        """The client is gone."""
        self._left = True
        self._moved.set()

    def _submit(self) -> None:
        """Begin each prompt's first choice; the others fork from it once it has a token.

        Then the prompt is computed, and its blocks are shared: they find them in the cache.
        """
        n = self._plan.n
        for first in range(0, len(self._plan.arrivals), n):
            if n > 1:
                self._forks[first] = range(first + 1, first + n)
            self._begin(first)

    def _begin(self, i: int) -> None:
        arrived = self._plan.arrivals[i]
        tell = self._tell if self._plan.stream else self._keep
        self._begun.append(arrived.request)
        told = partial(self._told, i, self._meters[i], tell)
        self._service.submit(arrived, told, self._trace)

    def _fork(self, choices: range) -> None:
        if self._left or self._failure is not None:
            return
        try:
            for i in choices:
                self._begin(i)
        except Exception:
            log.exception("request %s broke", self._plan.arrivals[choices[0]].request)
            self._fail(internal())

    def _told(
        self,
        i: int,
        meter: RequestMeter,
        tell: Callable[[int, Choice, Emit | Finish], None],
        action: Emit | Finish | Fail,
    ) -> None:
        if self._left or self._failure is not None:
            return
        meter.saw(action, time.perf_counter())
        if isinstance(action, Fail):
            self._fail(from_fail(action))
            return
        if self._forks and i in self._forks:
            # Not here: who tells must not be called.
            asyncio.get_running_loop().call_soon(self._fork, self._forks.pop(i))
        try:
            tell(i, self._choices[i], action)
        except Exception:
            # Whoever tells has other requests to tell of: this one ends here.
            log.exception("request %s broke", self._plan.arrivals[i].request)
            self._fail(internal())

    def _tell(self, i: int, choice: Choice, action: Emit | Finish) -> None:
        """Write what is new."""
        if isinstance(action, Emit):
            if choice.plain:
                text = choice.text(action)
                frame = self._shape.text(i, text) if text else b""
                if self._direct is None:
                    self._write(frame)
                elif frame:
                    self._direct.write(frame)
                    self._wrote = True
                return
            piece = choice.emit(action)
            self._write(b"" if piece is None else self._shape.delta(i, piece))
            return
        piece = choice.end(action)
        last = b"" if piece is None else self._shape.delta(i, piece)
        self._write(last + self._shape.final(i, choice.reason))
        self._ended()

    def _keep(self, i: int, choice: Choice, action: Emit | Finish) -> None:
        """Keep what is new until all is there."""
        piece = choice.emit(action) if isinstance(action, Emit) else choice.end(action)
        if piece is not None:
            self._pieces[i].append(piece)
        if isinstance(action, Finish):
            self._ended()

    def _write(self, frames: bytes) -> None:
        if self._plan.continuous_usage:
            frames = self._shape.counted(frames, self._usage())
        if self._connection is None:
            self._early.append(frames)
            self._moved.set()
        elif frames:
            self._connection.write(frames)
            self._wrote = True

    def _fail(self, error: ApiError) -> None:
        self._failure = error
        self._moved.set()

    def _ended(self) -> None:
        self._open -= 1
        if not self._open:
            self._moved.set()

    async def _next_move(self) -> None:
        """Wait until something has happened. Raises ApiError, ClientLeft."""
        await self._moved.wait()
        self._moved.clear()
        if self._left:
            raise ClientLeft
        if self._failure is not None:
            raise self._failure

    # ------------------------------------------------------------------ streaming

    async def _stream(self, connection: Connection, send: Send) -> None:
        await send(_start(STREAM_HEADERS))
        self._connection = connection
        self._direct = None if self._plan.continuous_usage else connection
        opening = b"".join(self._shape.opening(i) for i in range(len(self._choices)))
        if self._plan.continuous_usage:
            opening = self._shape.counted(opening, self._plan.usage(0))
        if early := opening + b"".join(self._early):
            connection.write(early)
        idle = _Idle(self._patience.keep_alive_s, self._keep_alive)
        try:
            while self._open:
                await self._next_move()
        except ApiError as error:
            connection.write(error_frame(error) + DONE)
        else:
            usage = b""
            if self._plan.include_usage:
                usage = self._shape.usage(self._account(), self._extension())
            connection.write(usage + DONE)
        finally:
            idle.cancel()
        connection.flush()
        # It waits until the client has taken what it is slow at; the connection gives it up.
        await send(_body(b""))

    def _keep_alive(self) -> None:
        if self._connection is not None and not self._wrote:
            self._connection.write(KEEP_ALIVE)
        self._wrote = False

    # ------------------------------------------------------------------ whole

    async def _whole(self, send: Send) -> None:
        while self._open:
            await self._next_move()
        told = [
            (_joined(pieces), choice.reason)
            for pieces, choice in zip(self._pieces, self._choices, strict=True)
        ]
        body = self._shape.whole(told, self._account(), self._extension())
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        await send(_start(headers))
        await send(_body(body))

    # ------------------------------------------------------------------ both

    def _usage(self) -> dict[str, int]:
        return self._plan.usage(sum(choice.completion_tokens for choice in self._choices))

    def _account(self) -> dict[str, Any]:
        """The usage of an answer that has ended."""
        firsts = self._choices[:: self._plan.n]  # a fork's prompt is counted with its first
        cached = sum(choice.cached_tokens for choice in firsts)
        return self._usage() | {"prompt_tokens_details": {"cached_tokens": cached}}

    def _extension(self) -> dict[str, object] | None:
        if self._plan.extension is None:
            return None
        return self._choices[0].extension(self._plan.extension)


class _Idle:
    """Calls again and again, until it is cancelled."""

    def __init__(self, every_s: float, call: Callable[[], None]) -> None:
        self._every_s, self._call = every_s, call
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(every_s, self._due)

    def _due(self) -> None:
        self._timer = self._loop.call_later(self._every_s, self._due)
        self._call()

    def cancel(self) -> None:
        self._timer.cancel()


def _joined(pieces: Sequence[Piece]) -> Piece:
    return Piece(
        text="".join(piece.text for piece in pieces),
        calls=tuple(call for piece in pieces for call in piece.calls),
        entries=tuple(entry for piece in pieces for entry in piece.entries),
    )


def _start(headers: dict[str, str]) -> dict[str, object]:
    raw = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in headers.items()]
    return {"type": "http.response.start", "status": 200, "headers": raw}


def _body(body: bytes) -> dict[str, object]:
    """The last part."""
    return {"type": "http.response.body", "body": body, "more_body": False}
