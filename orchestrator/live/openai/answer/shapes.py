"""The two endpoints' JSON: whole answers, and stream frames with prebuilt heads."""

from collections.abc import Sequence
from typing import Any, Protocol

import orjson

from orchestrator.live.openai.answer.choice import Piece, TokenEntry
from orchestrator.live.openai.errors import ApiError
from orchestrator.live.openai.tools.calls import CallDelta, merged
from orchestrator.live.openai.vocabulary import Vocabulary

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


def error_frame(error: ApiError) -> bytes:
    """What a stream that has begun says instead of a status; `DONE` still follows."""
    return b"data: " + error.body() + b"\n\n"


class Shape(Protocol):
    """How one endpoint writes an answer. `i` is the choice's index."""

    def opening(self, i: int) -> bytes:
        """The frame before any text; may be empty."""

    def delta(self, i: int, piece: Piece) -> bytes: ...

    def text(self, i: int, text: str) -> bytes:
        """As `delta`, of an answer without logprobs."""

    def final(self, i: int, finish_reason: str) -> bytes: ...
    def usage(self, usage: dict[str, Any], extension: dict[str, Any] | None) -> bytes: ...

    def counted(self, frames: bytes, usage: dict[str, int]) -> bytes:
        """The same frames, each with the usage so far; of a stream that includes usage."""

    def whole(
        self,
        choices: Sequence[tuple[Piece, str]],
        usage: dict[str, Any],
        extension: dict[str, Any] | None,
    ) -> bytes:
        """The body of an answer that is not streamed; per choice its piece and its reason."""


class _Frames:
    """`data: {<head>,"choices":[<choice>]<tail>`. `around` is what surrounds a choice's text."""

    def __init__(self, head: dict[str, Any], include_usage: bool) -> None:
        self._open = b"data: " + orjson.dumps(head)[:-1] + b',"choices":['
        self._close = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"

    def frame(self, choice: bytes) -> bytes:
        return self._open + choice + self._close

    def around(self, before: bytes, after: bytes) -> tuple[bytes, bytes]:
        """A whole frame but for the text in it."""
        return self._open + before, after + self._close

    def usage(self, usage: dict[str, Any], extension: dict[str, Any] | None) -> bytes:
        rest = {"usage": usage} | ({} if extension is None else {"pdd": extension})
        return self._open + b"]," + orjson.dumps(rest)[1:] + b"\n\n"

    def counted(self, frames: bytes, usage: dict[str, int]) -> bytes:
        # Its line breaks keep the end of a frame from being found in a text.
        return frames.replace(self._close, b'],"usage":' + orjson.dumps(usage) + b"}\n\n")


def _whole(
    head: dict[str, Any],
    choices: list[dict[str, Any]],
    usage: dict[str, Any],
    extension: dict[str, Any] | None,
) -> bytes:
    body = head | {"choices": choices, "usage": usage}
    if extension is not None:
        body["pdd"] = extension
    return orjson.dumps(body)


class ChatShape:
    """`chat.completion` and its chunks."""

    def __init__(
        self,
        *,
        id: str,
        created: int,
        model: str,
        choices: int,
        include_usage: bool,
        logprobs: bool,
        vocabulary: Vocabulary,
    ) -> None:
        head = {"id": f"chatcmpl-{id}", "created": created, "model": model}
        self._head = head | {"object": "chat.completion"}
        self._frames = _Frames(head | {"object": "chat.completion.chunk"}, include_usage)
        self._around = [
            self._frames.around(
                b'{"index":%d,"delta":{"content":' % i, b'},"logprobs":null,"finish_reason":null}'
            )
            for i in range(choices)
        ]
        self._with_logprobs = logprobs
        self._vocabulary = vocabulary

    def opening(self, i: int) -> bytes:
        return self._frames.frame(
            b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,'
            b'"finish_reason":null}' % i
        )

    def text(self, i: int, text: str) -> bytes:
        before, after = self._around[i]
        return before + orjson.dumps(text) + after

    def delta(self, i: int, piece: Piece) -> bytes:
        told: list[dict[str, Any]] = [{"content": piece.text}] if piece.text else []
        told += ({"tool_calls": [_call(call)]} for call in piece.calls)
        # Logprobs go with what comes first; of tokens that told nothing, alone.
        entries = [piece.entries, *[()] * len(told)]
        return b"".join(
            self._frames.frame(
                b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":null}'
                % (i, orjson.dumps(delta), orjson.dumps(self._logprobs(of)))
            )
            for delta, of in zip(told or [{"content": ""}], entries, strict=False)
        )

    def final(self, i: int, finish_reason: str) -> bytes:
        return self._frames.frame(
            b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":%b}'
            % (i, orjson.dumps(finish_reason))
        )

    def usage(self, usage: dict[str, Any], extension: dict[str, Any] | None) -> bytes:
        return self._frames.usage(usage, extension)

    def counted(self, frames: bytes, usage: dict[str, int]) -> bytes:
        return self._frames.counted(frames, usage)

    def whole(
        self,
        choices: Sequence[tuple[Piece, str]],
        usage: dict[str, Any],
        extension: dict[str, Any] | None,
    ) -> bytes:
        told = [
            {
                "index": i,
                "message": _message(piece),
                "logprobs": self._logprobs(piece.entries),
                "finish_reason": reason,
            }
            for i, (piece, reason) in enumerate(choices)
        ]
        return _whole(self._head, told, usage, extension)

    def _logprobs(self, entries: Sequence[TokenEntry]) -> dict[str, Any] | None:
        if not self._with_logprobs:
            return None
        content = [
            self._token(e.id, e.logprobs.logprob)
            | {"top_logprobs": [self._token(id, value) for id, value in e.logprobs.top]}
            for e in entries
        ]
        return {"content": content, "refusal": None}

    def _token(self, id: int, logprob: float) -> dict[str, Any]:
        name = self._vocabulary.name(id)
        return {"token": name.text, "logprob": logprob, "bytes": list(name.bytes)}


def _call(call: CallDelta) -> dict[str, Any]:
    function: dict[str, str | None] = {"arguments": call.arguments}
    if call.id is None:
        return {"index": call.index, "function": function}
    function = {"name": call.name, **function}
    return {"index": call.index, "id": call.id, "type": "function", "function": function}


def _message(piece: Piece) -> dict[str, Any]:
    message = {"role": "assistant", "content": piece.text, "refusal": None}
    if not piece.calls:
        return message
    return message | {"content": piece.text or None, "tool_calls": merged(piece.calls)}


class CompletionShape:
    """`text_completion`; its chunks are called the same."""

    def __init__(
        self,
        *,
        id: str,
        created: int,
        model: str,
        choices: int,
        include_usage: bool,
        logprobs: bool,
        vocabulary: Vocabulary,
    ) -> None:
        self._head = {
            "id": f"cmpl-{id}",
            "object": "text_completion",
            "created": created,
            "model": model,
        }
        self._frames = _Frames(self._head, include_usage)
        self._around = [
            self._frames.around(
                b'{"index":%d,"text":' % i, b',"logprobs":null,"finish_reason":null}'
            )
            for i in range(choices)
        ]
        self._with_logprobs = logprobs
        self._vocabulary = vocabulary

    def opening(self, i: int) -> bytes:
        return b""

    def text(self, i: int, text: str) -> bytes:
        before, after = self._around[i]
        return before + orjson.dumps(text) + after

    def delta(self, i: int, piece: Piece) -> bytes:
        return self._frames.frame(
            b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":null}'
            % (i, orjson.dumps(piece.text), orjson.dumps(self._logprobs(piece.entries)))
        )

    def final(self, i: int, finish_reason: str) -> bytes:
        return self._frames.frame(
            b'{"index":%d,"text":"","logprobs":null,"finish_reason":%b}'
            % (i, orjson.dumps(finish_reason))
        )

    def usage(self, usage: dict[str, Any], extension: dict[str, Any] | None) -> bytes:
        return self._frames.usage(usage, extension)

    def counted(self, frames: bytes, usage: dict[str, int]) -> bytes:
        return self._frames.counted(frames, usage)

    def whole(
        self,
        choices: Sequence[tuple[Piece, str]],
        usage: dict[str, Any],
        extension: dict[str, Any] | None,
    ) -> bytes:
        told = [
            {
                "index": i,
                "text": piece.text,
                "logprobs": self._logprobs(piece.entries),
                "finish_reason": reason,
            }
            for i, (piece, reason) in enumerate(choices)
        ]
        return _whole(self._head, told, usage, extension)

    def _logprobs(self, entries: Sequence[TokenEntry]) -> dict[str, Any] | None:
        if not self._with_logprobs:
            return None
        name = self._vocabulary.name
        return {
            "tokens": [name(e.id).text for e in entries],
            "token_logprobs": [e.logprobs.logprob for e in entries],
            "top_logprobs": [
                {name(id).text: value for id, value in reversed(e.logprobs.top)} for e in entries
            ],
            "text_offset": [e.offset for e in entries],
        }
