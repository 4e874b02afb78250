"""The file of a sweep's results: a line each, written as they come, so that nothing is lost.

The first line says what the results are of; each other one is {"cell": key, "policy", "at",
"figures"}. A line that was torn by a sudden end is cut off.
"""

import fcntl
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import orjson

from orchestrator.errors import UserError

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a file's results are of; `content` and `code` are digests, `name` is for people."""

    kind: str  # "replay", "plan"
    name: str
    content: str
    code: str
    format: int = FORMAT


class Store:
    """Results by their cells' keys. Only one process at a time has the file."""

    def __init__(self, path: Path, head: Head) -> None:
        """Open or begin it. Raises UserError for a file of something else, or in use."""
        self.path = path
        self.figures: dict[str, dict[str, float | None]] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = path.open("a+b")
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror}") from None
        try:
            self._begin(head)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(
        self, key: str, figures: Mapping[str, float | None], said: Mapping[str, object]
    ) -> None:
        """Keep a cell's figures. `said`: what else stands in its line, for people."""
        self._write({"cell": key, **said, "figures": dict(figures)})
        self.figures[key] = dict(figures)

    def _begin(self, head: Head) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{self.path}: another sweep is writing to it just now") from None
        self._file.seek(0)
        lines = self._file.read().splitlines(keepends=True)
        torn = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        if lines:
            self._check(self._read(1, lines[0]), head)
        elif not _line(asdict(head)).startswith(torn):
            raise self._not_ours()
        self._file.truncate(sum(map(len, lines)))
        if not lines:
            self._write(asdict(head))
        for number, line in enumerate(lines[1:], 2):
            found = self._read(number, line)
            try:
                self.figures[found["cell"]] = dict(found["figures"])
            except (KeyError, TypeError, ValueError):
                raise self._bad(number) from None

    def _read(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            found = orjson.loads(line)
        except orjson.JSONDecodeError:
            found = None
        if not isinstance(found, dict):
            raise self._bad(number)
        return found

    def _bad(self, number: int) -> UserError:
        return UserError(
            f"{self.path}:{number}: not a sweep's result; remove that line, or give another file"
        )

    def _not_ours(self) -> UserError:
        return UserError(f"{self.path}: not a file of results of a sweep; give another one")

    def _check(self, found: Mapping[str, Any], head: Head) -> None:
        if found.get("format") != head.format or "content" not in found:
            raise self._not_ours()
        way_out = "give another file, or remove this one to begin anew"
        if (found.get("kind"), found["content"]) != (head.kind, head.content):
            of = f"{found.get('kind')} {found.get('name')}"
            changed = of == f"{head.kind} {head.name}"
            what = f"{of} as it was before it was changed" if changed else of
            raise UserError(f"{self.path}: has the results of {what}; {way_out}")
        if found.get("code") != head.code:
            raise UserError(f"{self.path}: has the results of another version of pdd; {way_out}")

    def _write(self, record: Mapping[str, object]) -> None:
        """In one write, so that others see whole lines."""
        self._file.write(_line(record))
        self._file.flush()


def _line(record: Mapping[str, object]) -> bytes:
    return orjson.dumps(record) + b"\n"
