"""One engine over the engine room's own steps: many that are alike are one event."""

from collections.abc import Sequence

from benchmarks.validate.stepping import Ask
from benchmarks.validate.vllm import Limits, Scheduler, Timing, new_leg
from orchestrator.replay.leg import ModelLeg
from orchestrator.replay.setup import ModelSpec
from orchestrator.replay.steps import Steps
from orchestrator.virtual.schedule import Schedule
from workers.api.messages import Role
from workers.costs import Costs

FOR_EVER_S = 1e9


class _Engine:
    def __init__(self, costs: Costs, limits: Limits) -> None:
        spec = ModelSpec(
            name="site/engine/0",
            site="site",
            roles=frozenset(Role),
            costs=costs,
            slots=limits.slots,
            kv_tokens=0,
            kv_bytes_per_token=0,
            chunk_tokens=limits.budget,
            shared_budget=True,
        )
        self.schedule = Schedule()
        self._steps = Steps(spec, self.schedule, self._ended)
        self.scheduler = Scheduler(limits=limits, batch=self._steps.batch, queue=self._steps.queue)

    def arrive(self, leg: ModelLeg) -> None:
        self.scheduler.arrive(leg)
        if self._steps.running:
            self._steps.cut()
        else:
            self._ended([], [])

    def _ended(self, left: list[ModelLeg], computed: list[ModelLeg]) -> None:
        self.scheduler.ended(left, computed, self.schedule.now)
        if self._steps.batch.size or self._steps.queue:
            self._steps.begin(None, single=self.scheduler.changes)


def event_skipping(asks: Sequence[Ask], costs: Costs, limits: Limits) -> list[Timing]:
    """When each request's tokens come from one engine."""
    engine = _Engine(costs, limits)
    timings = [Timing(asked_at=ask.at, output=ask.output) for ask in asks]
    for number, ask in enumerate(asks):
        engine.scheduler.timings[str(number)] = timings[number]
        engine.schedule.at(ask.at, engine.arrive, new_leg(number, ask.prompt, ask.output))
    engine.schedule.run(FOR_EVER_S)
    return timings
