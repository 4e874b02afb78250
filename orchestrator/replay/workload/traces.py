"""Recorded traces: Mooncake's and ServeGen's JSONL, Azure's CSV, and a JSONL of our own.

Ours has an object a line: {"at": seconds, "prompt": tokens, "output": tokens} and, where they are
known, "blocks": names of the prompt's leading blocks of BLOCK_TOKENS (integers), "session": text.
Mooncake's: {"timestamp": ms, "input_length", "output_length", "hash_ids": blocks of 512 tokens, the
last of which may be partial}. Azure's columns: TIMESTAMP, ContextTokens, GeneratedTokens.
"""

import csv
import gzip
import io
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO

from orchestrator.replay.workload.request import BadLine, TraceRequest, WorkloadError

BLOCK_TOKENS = 16
MOONCAKE_BLOCK_TOKENS = 512
MAX_TOKENS = 1 << 24  # of a prompt or an output: more is a mistake
_GZIP = b"\x1f\x8b"


class Format(StrEnum):
    MOONCAKE = "mooncake"  # ServeGen writes the same
    AZURE = "azure"
    OURS = "pdd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A trace in memory, sorted by time, from 0 on. See `Workload`."""

    format: Format
    block_tokens: int
    rows: tuple[TraceRequest, ...]
    bad: tuple[BadLine, ...]

    def requests(self) -> Iterator[TraceRequest]:
        return iter(self.rows)


def read_trace(path: Path, format: Format | None = None) -> Trace:
    """Read a trace, gzipped or not; its format is told by its first line unless it is given.

    A line that is no request is in `bad`. Raises WorkloadError when none is, or nothing can be
    read.
    """
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == _GZIP
        with (
            gzip.open(path, "rb") if zipped else path.open("rb") as binary,
            io.TextIOWrapper(binary, encoding="utf-8-sig") as text,
        ):
            return _read(path, text, format)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise WorkloadError(f"{path}: cannot be read: {reason}") from None


def _read(path: Path, text: TextIO, format: Format | None) -> Trace:
    first = text.readline()
    if format is None:
        format = _told_by(first)
    if format is None:
        known = "Mooncake's or our JSONL, Azure's CSV"
        raise WorkloadError(f"{path}:1: not a trace that is known here: {known}")
    rows: list[TraceRequest] = []
    bad: list[BadLine] = []
    numbered = _numbered(first, text)
    if format is Format.AZURE:
        next(numbered, None)  # the header
    latest = -math.inf
    for number, line in numbered:
        if not line.strip():
            continue
        try:
            row = _READERS[format](line)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            bad.append(BadLine(number, _why(error)))
            continue
        if row.at < latest:
            bad.append(BadLine(number, "earlier than the line before: put where its time belongs"))
        latest = max(latest, row.at)
        rows.append(row)
    if not rows:
        why = f": {bad[0].why}" if bad else ", it is empty"
        number = bad[0].number if bad else 1
        raise WorkloadError(f"{path}:{number}: no line of it is a request of format {format}{why}")
    rows.sort(key=lambda row: row.at)
    start = rows[0].at
    return Trace(
        format=format,
        block_tokens=MOONCAKE_BLOCK_TOKENS if format is Format.MOONCAKE else BLOCK_TOKENS,
        rows=tuple(_moved(row, start) for row in rows) if start else tuple(rows),
        bad=tuple(bad),
    )


def _numbered(first: str, text: TextIO) -> Iterator[tuple[int, str]]:
    yield 1, first
    yield from enumerate(text, 2)


def _told_by(line: str) -> Format | None:
    if line.upper().startswith("TIMESTAMP,"):
        return Format.AZURE
    try:
        keys = json.loads(line).keys()
    except (ValueError, AttributeError):
        return None
    if "timestamp" in keys and "input_length" in keys:
        return Format.MOONCAKE
    return Format.OURS if "at" in keys and "prompt" in keys else None


def _moved(row: TraceRequest, start: float) -> TraceRequest:
    return TraceRequest(
        at=row.at - start,
        prompt=row.prompt,
        output=row.output,
        blocks=row.blocks,
        session=row.session,
    )


def _mooncake(line: str) -> TraceRequest:
    row = _object(line)
    prompt = _tokens(row, "input_length")
    blocks = _names(row.get("hash_ids", []), "hash_ids")
    return TraceRequest(
        at=_number(row, "timestamp") / 1000,
        prompt=prompt,
        output=_tokens(row, "output_length"),
        blocks=blocks[: prompt // MOONCAKE_BLOCK_TOKENS],
    )


def _ours(line: str) -> TraceRequest:
    row = _object(line)
    prompt = _tokens(row, "prompt")
    blocks = _names(row.get("blocks", []), "blocks")
    if len(blocks) * BLOCK_TOKENS > prompt:
        raise ValueError(f"blocks: {len(blocks)} of {BLOCK_TOKENS} tokens in a prompt of {prompt}")
    session = row.get("session")
    if session is not None and not isinstance(session, str):
        raise ValueError(f"session: must be text, got {session!r}")
    return TraceRequest(
        at=_number(row, "at"),
        prompt=prompt,
        output=_tokens(row, "output"),
        blocks=blocks,
        session=session,
    )


def _azure(line: str) -> TraceRequest:
    fields = next(csv.reader([line]))
    if len(fields) != 3:
        raise ValueError(f"{len(fields)} fields instead of 3")
    stamp, prompt, output = fields
    # Seven digits of a second, of which datetime takes six.
    whole, _, part = stamp.partition(".")
    at = datetime.fromisoformat(whole + "+00:00").timestamp()
    row = {"ContextTokens": _int(prompt), "GeneratedTokens": _int(output)}
    return TraceRequest(
        at=at + (float(f"0.{part}") if part else 0.0),
        prompt=_tokens(row, "ContextTokens"),
        output=_tokens(row, "GeneratedTokens"),
    )


_READERS: dict[Format, Callable[[str], TraceRequest]] = {
    Format.MOONCAKE: _mooncake,
    Format.AZURE: _azure,
    Format.OURS: _ours,
}


def _object(line: str) -> dict[str, Any]:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError("not an object")
    return row


def _number(row: dict[str, Any], key: str) -> float:
    value = row[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{key}: must be a number of at least 0, got {value!r}")
    return float(value)


def _tokens(row: dict[str, Any], key: str) -> int:
    value = row[key]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_TOKENS:
        raise ValueError(f"{key}: must be a whole number from 1 to {MAX_TOKENS}, got {value!r}")
    return value


def _names(values: object, key: str) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise ValueError(f"{key}: must be a list of whole numbers")
    return tuple(values)


def _int(text: str) -> int | str:
    return int(text) if text.strip().isdigit() else text


def _why(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg}"
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
