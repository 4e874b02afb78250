"""Mistakes in a file: where each one is, and what would be right."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from orchestrator.errors import UserError

Path = tuple[str | int, ...]  # keys and list positions from the root to a value


@dataclass(frozen=True, slots=True, order=True)
class Mistake:
    """One mistake. Lines and columns count from 1; `path` is empty for the file as a whole."""

    file: str
    line: int
    column: int
    path: str
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}: "
        return where + (f"{self.path}: {self.message}" if self.path else self.message)


class TopologyError(UserError):
    """A topology that cannot be used; `mistakes` are all that were found, in file order."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(sorted(set(mistakes)))
        super().__init__("\n".join(map(str, self.mistakes)))


def path_text(path: Path) -> str:
    """A path as people write it: links[0].bandwidth."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def unknown(noun: str, value: object, known: Sequence[str]) -> str:
    """Say that a name is not known, with the nearest that is, or all when none is near."""
    near = get_close_matches(str(value).lower(), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    return f"unknown {noun} {value!r}; {hint}"
