"""A journal of the core: every event it was told, when, and what it answered, as JSON lines.

The first line is the header: the format, the model and the core's configuration. It holds what
clients asked, as token ids, so only its owner may read the file.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson

from orchestrator.errors import UserError
from orchestrator.lifecycle.parity import Entry
from orchestrator.state.actions import Action
from orchestrator.state.config import CoreConfig
from orchestrator.state.events import Event
from orchestrator.state.wire import (
    decode_action,
    decode_config,
    decode_event,
    encode_action,
    encode_config,
    encode_event,
)
from workers.api.wire import WireError

T = TypeVar("T")

log = logging.getLogger(__name__)

FORMAT = 2
FLUSH_S = 1.0
BUFFER = 1 << 20
HEADER = {"journal", "model", "config"}
ENTRY = {"at", "event", "actions"}


class JournalError(UserError):
    """A file that is no journal, or a broken one; the text names the file and the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Whose journal it is. `model` is the topology's word for it, which finds its tokenizer."""

    model: str
    config: CoreConfig


class Journal:
    """Writes one gateway's journal; replaces a file that is there.

    What is recorded before `begin` waits in memory for the header. `later(delay_s, callback)` is
    the event loop's `call_later`. A file that can no longer be written ends the journal, not the
    service. Raises UserError when the file cannot be made.
    """

    def __init__(self, path: Path, later: Callable[[float, Callable[[], None]], object]) -> None:
        self._path = path
        self._later = later
        self._early: list[bytes] | None = []  # None: the header is written
        self._flush_is_due = False
        self._open = True
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UserError(f"{path}: cannot record there: {error.strerror}") from error
        self._file = open(descriptor, "wb", buffering=BUFFER)  # noqa: SIM115 - closed in `close`

    def begin(self, header: Header) -> None:
        """Write the header, and what came before it."""
        early, self._early = self._early or [], None
        config = encode_config(header.config)
        line = _line({"journal": FORMAT, "model": header.model, "config": config})
        self._write(line + b"".join(early))

    def record(self, at: float, event: Event, actions: Sequence[Action]) -> None:
        """What the machine was told at `at`, and what it answered."""
        if not self._open:
            return
        answered = [encode_action(action) for action in actions]
        try:
            line = _line({"at": at, "event": encode_event(event), "actions": answered})
        except orjson.JSONEncodeError as error:
            self._end(f"{type(event).__name__}: {error}")
            return
        if self._early is not None:
            self._early.append(line)
        else:
            self._write(line)

    def close(self) -> None:
        """Write out what is buffered."""
        if self._open:
            self._guarded(self._file.close)
            self._open = False

    def _write(self, line: bytes) -> None:
        self._guarded(lambda: self._file.write(line))
        if self._open and not self._flush_is_due:
            self._flush_is_due = True
            self._later(FLUSH_S, self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        self._guarded(self._file.flush)

    def _guarded(self, write: Callable[[], object]) -> None:
        if not self._open:
            return
        try:
            write()
        except OSError as error:
            self._end(error.strerror or str(error))

    def _end(self, reason: str) -> None:
        log.error("the journal ends here", extra={"path": str(self._path), "reason": reason})
        self._open = False
        with contextlib.suppress(OSError):  # closing tries to write what is buffered
            self._file.close()


def _line(body: dict[str, Any]) -> bytes:
    return orjson.dumps(body, option=orjson.OPT_APPEND_NEWLINE)


def read_journal(path: Path) -> tuple[Header, Iterator[Entry]]:
    """A journal's header and its entries, which are read as they are asked for.

    A last line without its end was being written when the gateway died: it is left out. Anything
    else that is wrong raises JournalError, in the iterator too.
    """
    lines = _lines(path)
    first = next(lines, None)
    if first is None:
        raise JournalError(f"{path}: no header: the gateway was not up while it was written")
    return _read(path, 1, first, _header), _entries(path, lines)


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield line
    except OSError as error:
        raise JournalError(f"{path}: cannot be read: {error.strerror}") from error


def _entries(path: Path, lines: Iterator[bytes]) -> Iterator[Entry]:
    for number, line in enumerate(lines, 2):
        yield _read(path, number, line, _entry)


def _read(path: Path, number: int, line: bytes, form: Callable[[Any], T]) -> T:
    """One line; `form` makes of its JSON what it holds. Raises JournalError."""
    try:
        return form(orjson.loads(line))
    except orjson.JSONDecodeError as error:
        raise JournalError(f"{path}: line {number}: not JSON: {error}") from None
    except WireError as error:
        raise JournalError(f"{path}: line {number}: {error}") from None


def _header(body: Any) -> Header:
    _check_names(body, HEADER)
    if body["journal"] != FORMAT:
        raise WireError(f"journal: format {FORMAT} can be read, got {body['journal']!r}")
    if type(body["model"]) is not str:
        raise WireError("model: must be a string")
    return Header(model=body["model"], config=decode_config(body["config"]))


def _entry(body: Any) -> Entry:
    _check_names(body, ENTRY)
    if type(body["at"]) is not float:
        raise WireError("at: must be a number of seconds")
    if type(body["actions"]) is not list:
        raise WireError("actions: must be a list")
    return Entry(
        at=body["at"],
        event=decode_event(body["event"]),
        actions=tuple(decode_action(action) for action in body["actions"]),
    )


def _check_names(body: Any, names: set[str]) -> None:
    if type(body) is not dict or body.keys() != names:
        raise WireError(f"must be an object of {', '.join(sorted(names))}")
