"""Recorded traces: Mooncake's and ServeGen's JSONL, Azure's CSV, and a JSONL of our own.

Ours has an object a line: {"at": seconds, "prompt": tokens, "output": tokens} and, where they are
known, "blocks": names of the prompt's leading blocks of BLOCK_TOKENS (integers from 0 on),
"session": text. Mooncake's: {"timestamp": ms, "input_length", "output_length", "hash_ids": blocks
of 512 tokens, the last of which may be partial}. Azure's columns: TIMESTAMP (UTC where it names no
zone), ContextTokens, GeneratedTokens.

A name that stands behind different ones is of different prompts, as KV depends on all that came
before: it gets another name there, below 0.
"""

import csv
import gzip
import json
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from io import BufferedIOBase
from itertools import chain, count
from pathlib import Path
from typing import Any

from orchestrator.replay.workload.request import BadLine, TraceRequest, WorkloadError
from workers.api.wire import shown

BLOCK_TOKENS = 16
MOONCAKE_BLOCK_TOKENS = 512
MAX_TOKENS = 1 << 24  # of a prompt or an output: more is a mistake
MAX_LINE_BYTES = 16 << 20  # names of the blocks of a prompt of MAX_TOKENS
MAX_LINES = 1 << 24
_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_LOOKED_AT = 100  # lines, for one that tells the format
_AZURE_HEADER = ["timestamp", "contexttokens", "generatedtokens"]
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)?", re.ASCII)


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
    """Read a trace, gzipped or not; the first line that tells its format does, unless it is given.

    A line that is no request is in `bad`. Raises WorkloadError when none is, or nothing can be
    read.
    """
    try:
        with path.open("rb") as raw:
            zipped = raw.read(len(_GZIP)) == _GZIP
        with gzip.open(path, "rb") if zipped else path.open("rb") as lines:
            return _read(path, _bounded(path, lines), format)
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise WorkloadError(f"{path}: cannot be read: {reason}") from None


def _bounded(path: Path, file: BufferedIOBase) -> Iterator[bytes]:
    """The lines, of which a small gzip file may hold any number and of any length."""
    for number in count(1):
        line = file.readline(MAX_LINE_BYTES + 1)
        if not line:
            return
        if len(line) > MAX_LINE_BYTES or number > MAX_LINES:
            what = f"line longer than {MAX_LINE_BYTES} bytes"
            if number > MAX_LINES:
                what = f"trace of more than {MAX_LINES} lines"
            raise WorkloadError(f"{path}:{number}: a {what}")
        yield line


def _read(path: Path, lines: Iterable[bytes], format: Format | None) -> Trace:
    numbered = enumerate(lines, 1)
    looked_at: list[tuple[int, bytes]] = []
    while format is None:
        number, line = next(numbered, (0, b""))
        if not number or number > _LOOKED_AT:
            raise WorkloadError(
                f"{path}:1: not a trace that is known here: Mooncake's JSONL, Azure's CSV with its "
                f"header, or our JSONL; if it is one, name its format ({', '.join(Format)})"
            )
        looked_at.append((number, line))
        format = _told_by(line)
    rows: list[TraceRequest] = []
    bad: list[BadLine] = []
    contents = _Contents()
    latest, headed = -math.inf, False
    for number, line in chain(looked_at, numbered):
        if not line.strip():
            continue
        if format is Format.AZURE and not headed and _is_azure_header(line):
            headed = True
            continue
        try:
            row = _READERS[format](line.removeprefix(_BOM).decode())
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError, csv.Error) as error:
            bad.append(BadLine(number, _why(error)))
            continue
        if row.at < latest:
            bad.append(BadLine(number, "earlier than the line before: put where its time belongs"))
        latest = max(latest, row.at)
        rows.append(contents.told_apart(row) if row.blocks else row)
    if not rows:
        why = f": {bad[0].why}" if bad else ", it has none"
        number = bad[0].number if bad else 1
        raise WorkloadError(
            f"{path}:{number}: no line of it is a request of format {format}{why}; "
            f"other formats are {', '.join(other for other in Format if other is not format)}"
        )
    rows.sort(key=lambda row: row.at)
    start = rows[0].at
    return Trace(
        format=format,
        block_tokens=MOONCAKE_BLOCK_TOKENS if format is Format.MOONCAKE else BLOCK_TOKENS,
        rows=tuple(replace(row, at=row.at - start) for row in rows) if start else tuple(rows),
        bad=tuple(bad),
    )


def _told_by(line: bytes) -> Format | None:
    if _is_azure_header(line):
        return Format.AZURE
    try:
        row = json.loads(line.removeprefix(_BOM).decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    if "timestamp" in row and "input_length" in row:
        return Format.MOONCAKE
    return Format.OURS if "at" in row and "prompt" in row else None


def _is_azure_header(line: bytes) -> bool:
    text = line.removeprefix(_BOM).decode(errors="replace")
    return [name.strip().lower() for name in text.split(",")] == _AZURE_HEADER


@dataclass(frozen=True, slots=True)
class _Contents:
    """One name for one content from a prompt's start on, whatever a trace names."""

    _after: dict[int, int | None] = field(default_factory=dict)  # name: the one before it
    _others: dict[tuple[int | None, int], int] = field(default_factory=dict)

    def told_apart(self, row: TraceRequest) -> TraceRequest:
        blocks: list[int] = []
        last: int | None = None
        for block in row.blocks:
            if self._after.setdefault(block, last) == last:
                last = block
            else:
                last = self._others.setdefault((last, block), -1 - len(self._others))
            blocks.append(last)
        told = tuple(blocks)
        return row if told == row.blocks else replace(row, blocks=told)


def _mooncake(line: str) -> TraceRequest:
    row = _object(line)
    prompt = _tokens(row, "input_length")
    blocks = _names(row.get("hash_ids", []), "hash_ids")
    if (len(blocks) - 1) * MOONCAKE_BLOCK_TOKENS >= prompt:
        raise ValueError(
            f"hash_ids: {len(blocks)} of {MOONCAKE_BLOCK_TOKENS} tokens in a prompt of {prompt}"
        )
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
        raise ValueError(f"session: must be text, got {shown(session)}")
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
    told = _STAMP.fullmatch(stamp.strip())
    if told is None:
        raise ValueError(f"TIMESTAMP: must be like 2023-11-16 18:15:46.68, got {stamp[:40]!r}")
    # Seven digits of a second, of which datetime takes six.
    whole, part, zone = told.groups()
    moment = datetime.fromisoformat(whole + (zone or ""))
    at = (moment if zone else moment.replace(tzinfo=UTC)).timestamp()
    row = {"ContextTokens": _int(prompt), "GeneratedTokens": _int(output)}
    return TraceRequest(
        at=at + float(part or 0),
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
        raise ValueError(f"{key}: must be a number of at least 0, got {shown(value)}")
    return float(value)


def _tokens(row: dict[str, Any], key: str) -> int:
    value = row[key]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_TOKENS:
        raise ValueError(
            f"{key}: must be a whole number from 1 to {MAX_TOKENS}, got {shown(value)}"
        )
    return value


def _names(values: object, key: str) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(type(v) is int and v >= 0 for v in values):
        raise ValueError(f"{key}: must be a list of whole numbers of at least 0")
    return tuple(values)


def _int(text: str) -> int | str:
    return int(text) if text.strip().isdigit() else text


def _why(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg}"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8: {error.reason}"
    if isinstance(error, RecursionError):
        return "not JSON that can be read: too deep"
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
