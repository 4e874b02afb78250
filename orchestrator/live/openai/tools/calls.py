"""Tool calls in a model's text, read while it streams.

The format is the one Hermes, Qwen and many others are trained on: `<tool_call>`, a JSON object
with `name` and `arguments`, `</tool_call>`; several may follow one another.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)', re.DOTALL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDelta:
    """A part of call number `index`; the first one has its id and name, others more arguments."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class Said(NamedTuple):
    """What a piece of text turned out to be."""

    text: str = ""
    calls: tuple[CallDelta, ...] = ()


class _Place(StrEnum):
    TEXT = "text"
    HEAD = "head"  # after OPEN, before the arguments
    ARGUMENTS = "arguments"
    TAIL = "tail"  # after the arguments, before CLOSE


class CallReader:
    """Tells calls from text; the same however the text was cut into pieces.

    What looks like a call and is none (no JSON, no name) is given as the text that it is. White
    space around calls is no text.
    """

    def __init__(self, answer: str) -> None:
        self._answer = answer  # ids begin with it
        self._place = _Place.TEXT
        self._buffer = ""
        self._depth = 0
        self._quoted = self._escaped = False
        self.count = 0  # calls begun

    def push(self, text: str) -> Said:
        """What is certain now."""
        self._buffer += text
        said: list[Said] = []
        while (more := self._step()) is not None:
            said.append(more)
        return _together(said)

    def finish(self) -> Said:
        """What was held back: the text has ended."""
        rest, self._buffer = self._buffer, ""
        if self._place is _Place.HEAD:
            return self._whole(rest, OPEN + rest)
        if self._place is not _Place.TEXT or (self.count and not rest.strip()):
            return Said()
        return Said(rest)

    def _step(self) -> Said | None:
        """Take something off the buffer; None: more must come first."""
        return _STEPS[self._place](self)

    def _text(self) -> Said | None:
        before, found, after = self._buffer.partition(OPEN)
        if found:
            self._place, self._buffer = _Place.HEAD, after
            return Said(before.rstrip())
        certain = self._buffer[: len(self._buffer) - _begun(self._buffer)].rstrip()
        if not certain:
            return None
        self._buffer = self._buffer[len(certain) :]
        return Said(certain)

    def _head(self) -> Said | None:
        head = _HEAD.match(self._buffer)
        if head is not None and (name := _loaded(head[1])) is not None:
            self._place, self._buffer = _Place.ARGUMENTS, self._buffer[head.end() :]
            return Said(calls=(self._begin(str(name), ""),))
        body, found, after = self._buffer.partition(CLOSE)
        if not found:
            return None
        self._place, self._buffer = _Place.TEXT, after
        return self._whole(body, OPEN + body + CLOSE)

    def _arguments(self) -> Said | None:
        if not self._buffer:
            return None
        length = self._object_end(self._buffer)
        piece, self._buffer = self._buffer[:length], self._buffer[length:]
        if self._depth == 0:
            self._place = _Place.TAIL
        return Said(calls=(CallDelta(index=self.count - 1, arguments=piece),))

    def _tail(self) -> Said | None:
        _, found, after = self._buffer.partition(CLOSE)
        if not found:
            return None
        self._place, self._buffer = _Place.TEXT, after
        return Said()

    def _object_end(self, text: str) -> int:
        """Characters up to the end of the object that is open, at most all."""
        for at, char in enumerate(text, start=1):
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped = char == "\\"
                self._quoted = char != '"'
            elif char == '"':
                self._quoted = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return at
        return len(text)

    def _whole(self, body: str, text: str) -> Said:
        """A call whose parts come in another order, all at once; or `text` after all."""
        value = _loaded(body)
        if isinstance(value, dict) and isinstance(value.get("name"), str):
            arguments = value.get("arguments", {})
            if isinstance(arguments, dict):
                return Said(calls=(self._begin(value["name"], json.dumps(arguments)),))
        return Said(text)

    def _begin(self, name: str, arguments: str) -> CallDelta:
        index, self.count = self.count, self.count + 1
        return CallDelta(
            index=index, id=f"call_{self._answer}_{index}", name=name, arguments=arguments
        )


_STEPS = {
    _Place.TEXT: CallReader._text,
    _Place.HEAD: CallReader._head,
    _Place.ARGUMENTS: CallReader._arguments,
    _Place.TAIL: CallReader._tail,
}


def _begun(text: str) -> int:
    """Length of the longest end of `text` with which a call may begin."""
    return next((n for n in range(len(OPEN) - 1, 0, -1) if text.endswith(OPEN[:n])), 0)


def _loaded(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _together(said: Sequence[Said]) -> Said:
    return Said(
        "".join(part.text for part in said),
        tuple(call for part in said for call in part.calls),
    )


def merged(deltas: Sequence[CallDelta]) -> list[dict[str, object]]:
    """Whole calls, as a message that is not streamed holds them."""
    arguments: dict[int, str] = {}
    for delta in deltas:
        arguments[delta.index] = arguments.get(delta.index, "") + delta.arguments
    return [
        {
            "id": delta.id,
            "type": "function",
            "function": {"name": delta.name, "arguments": arguments[delta.index]},
        }
        for delta in deltas
        if delta.id is not None
    ]
