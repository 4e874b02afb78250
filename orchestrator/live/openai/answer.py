"""An answer on the wire: whole or as server-sent events."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from orchestrator.live.openai.choice import Choice, Piece
from orchestrator.live.openai.errors import ApiError, from_fail, internal
from orchestrator.live.openai.inbox import ClientLeft, Inbox, Item
from orchestrator.live.openai.intake import Plan
from orchestrator.live.openai.service import Service
from orchestrator.live.openai.shapes import DONE, KEEP_ALIVE, Shape, error_frame
from orchestrator.live.openai.vocabulary import Vocabulary
from orchestrator.metrics.requests import RequestMetrics
from orchestrator.state.actions import Emit, Fail

log = logging.getLogger(__name__)

STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long an idle stream stays silent, and how long a client may take no byte."""

    keep_alive_s: float = 15.0
    write_s: float = 60.0


class Answer(Response):
    """Submits the plan when it is sent, so that its life is exactly the response's.

    The headers wait for the first action: a request that fails before its first token has its
    real HTTP status (an ApiError, for the application's handler). After that a failure is an
    error frame and `[DONE]`. A client that leaves cancels everything, streaming or not.
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
        self._metrics = metrics
        self._patience = patience
        self._choices = [Choice(arrived, vocabulary) for arrived in plan.arrivals]
        self._arrived_at = time.perf_counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        inbox = Inbox(self._service, self._plan.arrivals, receive, self._metrics, self._arrived_at)
        try:
            async with inbox:
                first = await inbox.take()
                _raise_failure(first)
                if self._plan.stream:
                    await self._stream(first, inbox, send)
                else:
                    await self._whole(first, inbox, send)
        except ClientLeft:
            log.info("request %s: the client left", self._plan.arrivals[0].request)

    # ------------------------------------------------------------------ streaming

    async def _stream(self, first: list[Item], inbox: Inbox, send: Send) -> None:
        await send(_start(STREAM_HEADERS | self._id_header()))
        try:
            async for frames in self._frames(first, inbox):
                await self._write(send, frames, more=True)
        except ClientLeft:
            raise
        except ApiError as error:
            await self._write(send, error_frame(error) + DONE, more=True)
        except Exception:
            log.exception("request %s broke", self._plan.arrivals[0].request)
            await self._write(send, error_frame(internal()) + DONE, more=True)
        await self._write(send, b"", more=False)

    async def _frames(self, items: list[Item], inbox: Inbox) -> AsyncIterator[bytes]:
        """Frames, as many at once as there are actions waiting. Raises ApiError, ClientLeft."""
        shape = self._shape
        frames = [shape.opening(i) for i in range(len(self._choices))]
        while True:
            for item in items:
                if isinstance(item.action, Fail):
                    yield b"".join(frames)
                    raise from_fail(item.action)
                piece, reason = self._take(item)
                if piece is not None:
                    frames.append(shape.delta(item.choice, piece))
                if reason is not None:
                    frames.append(shape.final(item.choice, reason))
            if self._ended():
                if self._plan.include_usage:
                    frames.append(shape.usage(self._usage(), self._extension()))
                frames.append(DONE)
            if any(frames):
                yield b"".join(frames)
            if self._ended():
                return
            frames = []
            items = await inbox.take(self._patience.keep_alive_s)
            if not items:
                yield KEEP_ALIVE

    async def _write(self, send: Send, body: bytes, *, more: bool) -> None:
        """Raises ClientLeft when the client reads nothing for too long."""
        try:
            async with asyncio.timeout(self._patience.write_s):
                await send({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError as error:
            raise ClientLeft from error

    # ------------------------------------------------------------------ whole

    async def _whole(self, items: list[Item], inbox: Inbox, send: Send) -> None:
        pieces: list[list[Piece]] = [[] for _ in self._choices]
        reasons = [""] * len(self._choices)
        while True:
            _raise_failure(items)
            for item in items:
                piece, reason = self._take(item)
                if piece is not None:
                    pieces[item.choice].append(piece)
                if reason is not None:
                    reasons[item.choice] = reason
            if self._ended():
                break
            items = await inbox.take()
        told = [(_joined(parts), reason) for parts, reason in zip(pieces, reasons, strict=True)]
        body = self._shape.whole(told, self._usage(), self._extension())
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        await send(_start(headers | self._id_header()))
        await self._write(send, body, more=False)

    # ------------------------------------------------------------------ both

    def _take(self, item: Item) -> tuple[Piece | None, str | None]:
        """Advance a choice by one Emit or Finish: its new piece and why it ended."""
        choice = self._choices[item.choice]
        if isinstance(item.action, Emit):
            return choice.emit(item.action), None
        if isinstance(item.action, Fail):
            raise from_fail(item.action)
        return choice.end(item.action), item.action.reason

    def _ended(self) -> bool:
        return all(choice.finish is not None for choice in self._choices)

    def _usage(self) -> dict[str, int]:
        completion = sum(choice.completion_tokens for choice in self._choices)
        return {
            "prompt_tokens": self._plan.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self._plan.prompt_tokens + completion,
        }

    def _extension(self) -> dict[str, object] | None:
        if self._plan.extension is None:
            return None
        return self._choices[0].extension(self._plan.extension)

    def _id_header(self) -> dict[str, str]:
        return {"x-request-id": self._plan.arrivals[0].request}


def _raise_failure(items: Sequence[Item]) -> None:
    for item in items:
        if isinstance(item.action, Fail):
            raise from_fail(item.action)


def _joined(pieces: Sequence[Piece]) -> Piece:
    return Piece(
        text="".join(piece.text for piece in pieces),
        entries=tuple(entry for piece in pieces for entry in piece.entries),
    )


def _start(headers: dict[str, str]) -> dict[str, object]:
    raw = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in headers.items()]
    return {"type": "http.response.start", "status": 200, "headers": raw}
