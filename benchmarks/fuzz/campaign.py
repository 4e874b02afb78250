"""Inputs in rounds, each by its own seed; what may come of one, and what may not.

An input is taken, or refused in one line by the error of the place that reads it. Anything else,
a round that computes for longer than `ROUND_S` and memory that grows are found, with how to see
them again.
"""

import collections
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Protocol

PER_ROUND = 50
ROUND_S = 20.0  # of CPU: a round takes milliseconds; one that takes so long hangs
MOST_TEXT = 4000  # characters of a refusal: clients, logs and people read it
GROWN_MB = 256.0  # of the process, beyond what the first rounds took
TAKEN = "taken"
WARM_ROUNDS = 200


class Refusal(Exception):
    """The place's own error, by name: the text is what it said."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


class Reader(Protocol):
    """One round's reader of inputs: what it has taken it remembers till the round's end."""

    def input(self, rng: random.Random) -> bytes:
        """The next input."""

    def feed(self, data: bytes) -> None:
        """Read it as the service would. Raises Refusal."""


@dataclass(frozen=True, slots=True)
class Target:
    """A place that reads what others write. `reader` makes one for a round."""

    name: str
    reader: Callable[[], Reader]


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came of a target's inputs. `grown_mb`: of the process's largest size, after warm-up."""

    target: str
    inputs: int = 0
    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    seconds: float = 0.0
    cpu_s: float = 0.0
    slowest_ms: float = 0.0
    grown_mb: float = 0.0


class Found(Exception):
    """What all this is for; the text says which input, and how to see it again."""


def run_round(target: Target, seed: int, number: int, outcome: Outcome) -> None:
    """Try `PER_ROUND` inputs. Raises Found."""
    rng = random.Random(f"{seed}/{target.name}/{number}")
    reader = target.reader()
    for _ in range(PER_ROUND):
        data = reader.input(rng)
        began = time.thread_time()
        try:
            reader.feed(data)
            outcome.outcomes[TAKEN] += 1
        except Refusal as refusal:
            wrong = _unreadable(str(refusal))
            if wrong is not None:
                raise Found(_told(target, seed, number, data, wrong)) from refusal
            outcome.outcomes[refusal.name] += 1
        except Exception as error:
            what = f"{type(error).__name__}: {str(error)[:200]}"
            raise Found(_told(target, seed, number, data, what)) from error
        outcome.slowest_ms = max(outcome.slowest_ms, (time.thread_time() - began) * 1e3)
        outcome.inputs += 1


def run(
    target: Target, inputs: int, seed: int, tell: Callable[[Outcome], None] = lambda outcome: None
) -> Outcome:
    """Try so many inputs, from round 0 on. `tell` hears every 100,000. Raises Found."""
    outcome = Outcome(target=target.name)
    began, cpu, warm = time.monotonic(), time.process_time(), 0.0
    with _watched(target, seed) as now_at:
        for number in range(-(-inputs // PER_ROUND)):
            now_at(number)
            run_round(target, seed, number, outcome)
            if number == WARM_ROUNDS:
                warm = _largest_mb()
            outcome.seconds = time.monotonic() - began
            outcome.cpu_s = time.process_time() - cpu
            outcome.grown_mb = _largest_mb() - warm if number > WARM_ROUNDS else 0.0
            if outcome.grown_mb > GROWN_MB:
                grown = f"the process grew by {outcome.grown_mb:.0f} MB"
                raise Found(_told(target, seed, number, b"", grown))
            if outcome.inputs % 100_000 == 0:
                tell(outcome)
    return outcome


def _unreadable(text: str) -> str | None:
    """Why a refusal is not one line for people."""
    if "\n" in text or "\r" in text:
        return f"its refusal has several lines: {text[:200]!r}"
    if len(text) > MOST_TEXT:
        return f"its refusal has {len(text)} characters: {text[:200]!r}"
    return None if text else "its refusal says nothing"


def _told(target: Target, seed: int, number: int, data: bytes, what: str) -> str:
    again = f"pdd bench fuzz {target.name} --seed {seed} --round {number}"
    return f"{target.name}: {what}\ninput ({len(data)} bytes): {data[:1000]!r}\n{again}"


def _largest_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@contextmanager
def _watched(target: Target, seed: int) -> Iterator[Callable[[int], None]]:
    """What is yielded is to be called as each round begins; one that hangs is found."""
    at = 0

    def hangs(signum: int, frame: FrameType | None) -> None:
        raise Found(_told(target, seed, at, b"", f"a round took more than {ROUND_S:g} s"))

    def begins(number: int) -> None:
        nonlocal at
        at = number
        signal.setitimer(signal.ITIMER_PROF, ROUND_S)

    before = signal.signal(signal.SIGPROF, hangs)
    try:
        yield begins
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)
