"""Engines step by step: the measure of the event-skipping one, and ranks that keep in step."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.validate.vllm import Limits, Scheduler, Timing, new_leg
from orchestrator.replay.batch import Batch
from orchestrator.replay.leg import ModelLeg
from workers.costs import Chunk, Costs


class Ask(NamedTuple):
    """A request of a run."""

    at: float
    prompt: int
    output: int


def step_by_step(asks: Sequence[Ask], costs: Costs, limits: Limits, ranks: int = 1) -> list[Timing]:
    """When each request's tokens come from `ranks` engines that begin and end each step together.

    They do where experts are spread over them: a step takes as long as that of the slowest.
    """
    engines = [_Engine(costs, limits) for _ in range(ranks)]
    timings = [Timing(asked_at=ask.at, output=ask.output) for ask in asks]
    coming = deque(enumerate(asks))
    now = 0.0
    while coming or any(engine.busy for engine in engines):
        if not any(engine.busy for engine in engines):
            now = max(now, coming[0][1].at)
        while coming and coming[0][1].at <= now:
            number, ask = coming.popleft()
            scheduler = min((engine.scheduler for engine in engines), key=lambda s: s.load)
            scheduler.timings[str(number)] = timings[number]
            scheduler.arrive(new_leg(number, ask.prompt, ask.output))
        for engine in engines:
            engine.settle(now)
        now += max(engine.begin() for engine in engines)
        for engine in engines:
            engine.end()
    return timings


class _Engine:
    def __init__(self, costs: Costs, limits: Limits) -> None:
        self._costs = costs
        self._limits = limits
        self._chunks: list[tuple[ModelLeg, int]] = []
        self._left: list[ModelLeg] = []
        self._computed: list[ModelLeg] = []
        self.scheduler = Scheduler(limits=limits, batch=Batch(costs), queue=deque())

    @property
    def busy(self) -> bool:
        scheduler = self.scheduler
        return bool(scheduler.running or scheduler.waiting)

    def settle(self, now: float) -> None:
        self.scheduler.ended(self._left, self._computed, now)

    def begin(self) -> float:
        """Choose what the next step computes; its seconds."""
        batch = self.scheduler.batch
        room = self._limits.budget - batch.size
        self._chunks = []
        for leg in self.scheduler.queue:
            tokens = min(leg.todo, room)
            if tokens:
                self._chunks.append((leg, tokens))
            room -= tokens
        chunks = [Chunk(tokens, leg.prompt + leg.own - leg.todo) for leg, tokens in self._chunks]
        return self._costs.step_s(chunks, batch.size, batch.context)

    def end(self) -> None:
        batch = self.scheduler.batch
        self._left = batch.advance(1) if batch.size else []
        self._computed = []
        for leg, tokens in self._chunks:
            leg.todo -= tokens
            if not leg.todo:
                self.scheduler.queue.remove(leg)
                self._computed.append(leg)
