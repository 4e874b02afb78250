"""A replay's faults: carried out when they are due, and lines that were weak are reported on."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from orchestrator.replay.faults import Fault, LineFault
from orchestrator.replay.lines.line import Line, Transfer
from orchestrator.replay.lines.reports import link_loads
from orchestrator.replay.worker import ModelWorker
from orchestrator.state.views import World
from orchestrator.virtual.schedule import Schedule
from workers.api.messages import UpMessage


class Troubles:
    """`lose` and `restore` are told of a worker's name, `say` of what a worker has to tell."""

    def __init__(
        self,
        schedule: Schedule,
        lines: Mapping[tuple[str, str], Line],
        workers: Mapping[str, ModelWorker],
        *,
        lose: Callable[[str], None],
        restore: Callable[[str], None],
        say: Callable[[ModelWorker, list[UpMessage]], None],
    ) -> None:
        self._schedule = schedule
        self._lines = lines
        self._workers = workers
        self._lose = lose
        self._restore = restore
        self._say = say
        self._weakened: set[tuple[str, str]] = set()  # lines that were not as told, both ways

    def plan(self, faults: Iterable[Fault]) -> None:
        """Raises ValueError for a fault of something that is not there."""
        for fault in faults:
            if isinstance(fault, LineFault):
                if fault.between not in self._lines:
                    raise ValueError(f"there is no line between {' and '.join(fault.between)}")
                self._schedule.at(fault.at, self._weaken, fault.between, fault.factor)
                self._schedule.at(fault.until, self._weaken, fault.between, 1.0)
                continue
            lost = [name for name in self._workers if fault.hits(name)]
            if not lost:
                raise ValueError(f"there is no worker, pool or site {fault.name}")
            for name in lost:
                self._schedule.at(fault.at, self._lose, name)
                if fault.until is not None:
                    self._schedule.at(fault.until, self._restore, name)

    def report(self, world: World, moving: Collection[list[Transfer]]) -> None:
        """The senders of each line that was weak tell what they see of it, as live ones would.

        `moving`: the transfers of each request.
        """
        for pair in sorted(self._weakened):
            line = self._lines[pair]
            near = [w for w in self._workers.values() if w.spec.site == pair[0] and not w.dead]
            on_it = [transfer for sent in moving for transfer in sent if transfer.line is line]
            view = world.links[pair]
            loads = link_loads(line, view, on_it, to_site=pair[1], senders=len(near))
            for worker, load in zip(near, loads, strict=True):
                self._say(worker, [replace(worker.load(), links=(load,))])

    def _weaken(self, between: tuple[str, str], factor: float) -> None:
        for pair in (between, between[::-1]):
            self._weakened.add(pair)
            line = self._lines[pair]
            if not factor:
                line.cut()
                continue
            line.set_rate(factor)
            if not line.up:
                line.restore()
