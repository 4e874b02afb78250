"""One request of a workload, and what a workload is."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """When a request comes, how long it is, and what its prompt shares with others.

    `at`: seconds from the workload's start. `prompt`, `output`: tokens, at least 1. `blocks`: names
    of the prompt's leading whole blocks; an equal name is equal content from the prompt's start to
    that block's end. `session`: requests of one conversation.
    """

    at: float
    prompt: int
    output: int
    blocks: tuple[int, ...] = ()
    session: str | None = None


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line of a trace that is no request: its number, from 1, and why."""

    number: int
    why: str

    def __str__(self) -> str:
        return f"line {self.number}: {self.why}"


class Workload(Protocol):
    """Requests in the order of `at`. `block_tokens`: tokens that one block's name stands for."""

    @property
    def block_tokens(self) -> int: ...

    @property
    def bad(self) -> tuple[BadLine, ...]: ...

    def requests(self) -> Iterator[TraceRequest]:
        """From the first one on; the same each time."""


@dataclass(frozen=True, slots=True)
class Around:
    """A workload that is another one, changed."""

    inner: Workload

    @property
    def block_tokens(self) -> int:
        return self.inner.block_tokens

    @property
    def bad(self) -> tuple[BadLine, ...]:
        return self.inner.bad


class WorkloadError(ValueError):
    """A trace that cannot be read, or a generator that was asked for the impossible."""
