"""A recorded log fed to a fresh machine: its answers must be the recorded ones, word for word."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from orchestrator.lifecycle.machine import Machine
from orchestrator.lifecycle.request import StopWatch
from orchestrator.state.actions import Action, Fail
from orchestrator.state.config import CoreConfig
from orchestrator.state.events import Arrived, Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a machine was told at `at` (seconds on its gateway's clock), and what it answered."""

    at: float
    event: Event
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first entry that was answered otherwise; `number` counts from 1.

    `defect` is what the fresh machine raised, if it did.
    """

    number: int
    entry: Entry
    answered: tuple[Action, ...]
    defect: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """What a log holds, and where a fresh machine first disagreed with it."""

    events: int
    actions: int
    requests: int  # that arrived
    failed: int  # of them, those that were told of a failure
    first_difference: Difference | None


def feed(
    config: CoreConfig,
    stop_watch: Callable[[tuple[str, ...]], StopWatch],
    entries: Iterable[Entry],
) -> Parity:
    """Tell a fresh machine every recorded event at its time and compare its answers.

    Nothing is fed after the first difference; the rest of the log is only counted.
    """
    machine = Machine(config, stop_watch)
    events = actions = requests = failed = 0
    difference = None
    for number, entry in enumerate(entries, 1):
        events += 1
        actions += len(entry.actions)
        requests += isinstance(entry.event, Arrived)
        failed += sum(isinstance(action, Fail) for action in entry.actions)
        if difference is None:
            answered, defect = _answer(machine, entry)
            if tuple(answered) != entry.actions:
                difference = Difference(
                    number=number, entry=entry, answered=tuple(answered), defect=defect
                )
    return Parity(
        events=events,
        actions=actions,
        requests=requests,
        failed=failed,
        first_difference=difference,
    )


def _answer(machine: Machine, entry: Entry) -> tuple[Sequence[Action], str | None]:
    """As a driver asks: a defect of the machine ends the request it was met in."""
    try:
        return machine.handle(entry.event, entry.at), None
    except Exception as error:
        return machine.abandon(), f"{type(error).__name__}: {error}"
