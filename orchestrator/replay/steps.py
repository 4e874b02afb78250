"""A modelled worker's steps: prefill chunks and the decode batch, many steps to one event."""

from collections import deque
from collections.abc import Callable

from orchestrator.replay.batch import NO_CHUNK, Batch, ChunkCost
from orchestrator.replay.leg import ModelLeg
from orchestrator.replay.setup import ModelSpec
from orchestrator.virtual.schedule import Schedule


class Steps:
    """What runs is one step, or several alike in a row of which nobody wants to know more.

    `ended(left, computed)` is told when they are over: legs that have reached their goal, and legs
    of the queue that have computed all they had to.
    """

    def __init__(
        self,
        spec: ModelSpec,
        schedule: Schedule,
        ended: Callable[[list[ModelLeg], list[ModelLeg]], None],
    ) -> None:
        self.batch = Batch(spec.costs, spec.keeps)
        self.queue: deque[ModelLeg] = deque()  # legs with something to compute, as they came
        self.running = False
        self.chunk = NO_CHUNK  # what is prefilled in each step that runs
        self._spec = spec
        self._schedule = schedule
        self._ended = ended
        self._idle_s = spec.costs.step_s((), 1, 0)
        self._began_at = 0.0
        self._steps = 0
        self._chunks: list[tuple[ModelLeg, int]] = []
        self._plan = 0  # only the newest plan of the end counts

    def computes(self, leg: ModelLeg) -> bool:
        """Whether the step that runs is about this leg."""
        if not self.running or leg.leaves_at is not None:
            return self.running
        return bool(leg.todo) and any(leg is other for other, _ in self._chunks)

    def step_s(self) -> float:
        """Seconds of the decode step that runs, or of the fastest there is."""
        batch = self.batch
        if not batch.size:
            return self._idle_s
        done = 0
        if self.running and self._steps > 1:
            done = batch.steps_until(self._schedule.now - self._began_at, self.chunk) - 1
        return batch.step_s(0.0, done)

    def begin(self, due: float | None, *, single: bool) -> None:
        """Begin the next step; there is something to compute.

        Others like it follow in the same go, unless it is to be a `single` one, until a leg
        reaches its goal, the chunks change, or `due` is over.
        """
        batch, now = self.batch, self._schedule.now
        steps: int | None = None
        self.chunk = chunk = NO_CHUNK
        if self.queue:
            chunk, steps = self._choose_chunks()
            self.chunk = chunk
        if single:
            steps = 1
        elif steps != 1 and batch.size:
            leaving = batch.next_leaving()
            assert leaving is not None
            if steps is None or leaving < steps:
                steps = leaving
            if steps > 1 and due is not None:
                steps = min(steps, batch.steps_until(due - now, chunk))
        assert steps is not None
        self.running = True
        self._began_at = now
        self._steps = steps
        self._plan += 1
        self._schedule.at(now + batch.elapsed_s(steps, chunk), self._end, self._plan)

    def stop(self) -> None:
        """What runs is never over; the steps of it that were are."""
        if self.running and self._steps > 1:
            passed_s = self._schedule.now - self._began_at
            self.batch.advance(self.batch.steps_until(passed_s, self.chunk) - 1)
        self.running = True
        self._plan += 1

    def cut(self) -> None:
        """Something waits for the end of the step that really runs."""
        if self.running and self._steps > 1:
            steps = self.batch.steps_until(self._schedule.now - self._began_at, self.chunk)
            if steps < self._steps:
                self._steps = steps
                self._plan += 1
                end = self._began_at + self.batch.elapsed_s(steps, self.chunk)
                self._schedule.at(end, self._end, self._plan)

    def _choose_chunks(self) -> tuple[ChunkCost, int]:
        """What the chunks of the next step take, and for how many steps they stay as many."""
        spec = self._spec
        room = spec.chunk_tokens
        if spec.shared_budget:
            room = max(room - self.batch.size, 1)
        seconds = 0.0
        for leg in self.queue:
            if leg.began_at is None:
                leg.began_at = self._schedule.now
            tokens = min(leg.todo, room)
            seconds += spec.costs.chunk_s(tokens, leg.prompt + leg.own - leg.todo - leg.gone)
            self._chunks.append((leg, tokens))
            room -= tokens
            if not room:
                break
        if len(self._chunks) > 1 or room:
            return ChunkCost(seconds, tokens=sum(tokens for _, tokens in self._chunks)), 1
        leg, tokens = self._chunks[0]
        done = leg.prompt + leg.own - leg.todo - leg.gone
        growth_s = spec.costs.chunk_s(tokens, done + tokens) - seconds
        return ChunkCost(seconds, growth_s, tokens), max(1, (leg.todo - 1) // tokens)

    def _end(self, plan: int) -> None:
        if plan != self._plan:
            return
        self.running = False
        computed = []
        if self._chunks:
            ends = self._chunk_ends()
            for leg, tokens in self._chunks:
                leg.todo -= tokens * self._steps
                leg.chunks.extend((end, tokens) for end in ends)
                if not leg.todo:
                    self.queue.remove(leg)
                    computed.append(leg)
            self._chunks.clear()
        left = self.batch.advance(self._steps) if self.batch.size else []
        self._ended(left, computed)

    def _chunk_ends(self) -> list[float]:
        """When each of the steps that are over now ended."""
        batch, chunk = self.batch, self.chunk
        ends = [self._began_at + batch.elapsed_s(n, chunk) for n in range(1, self._steps)]
        ends.append(self._schedule.now)
        return ends
