"""One policy of a scenario, from its first request to its last."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from orchestrator.replay.driver import Replay
from orchestrator.replay.outcome import Outcome
from orchestrator.replay.report.metrics import Run
from orchestrator.replay.scenario.build import WARMING, build
from orchestrator.replay.scenario.prices import bill
from orchestrator.replay.scenario.roles import replanning
from orchestrator.replay.scenario.schema import Compared, Scenario
from orchestrator.replay.workload.request import Workload
from orchestrator.state.events import Arrived

TOLD_EVERY = 50  # requests

Tell = Callable[[int], None]  # how many requests have come so far


def play(
    scenario: Scenario,
    policy: Compared,
    *,
    workload: Workload | None = None,
    tell: Tell = lambda count: None,
) -> Run:
    """Replay a policy. None: the scenario's own workload."""
    setup, asks = build(scenario, policy, workload)
    topology = scenario.topology(policy)
    settings = policy.replan or topology.replan
    if settings is not None:
        file = scenario.file.model_copy(update={"topology": topology})
        setup = replace(setup, replanning=replanning(scenario.with_file(file), settings))
    replay = Replay(setup)
    replay.run(_counted(asks, tell))
    outcomes = [o for o in replay.outcomes.values() if not o.name.startswith(WARMING)]
    seconds = lasted_s(outcomes)
    decided = [] if replay.replanner is None else replay.replanner.decided
    return Run(
        policy=policy.name,
        outcomes=outcomes,
        uses=replay.uses,
        seconds=seconds,
        cost=bill(scenario, policy).cost(seconds, replay.sent_bytes),
        roles=tuple(f"at {found.at:.0f} s {found.decision.text}" for found in decided),
    )


def lasted_s(outcomes: Sequence[Outcome]) -> float:
    """From the first request to the last token."""
    ends = [outcome.last_at or outcome.asked_at for outcome in outcomes]
    return max(ends) - outcomes[0].asked_at if outcomes else 0.0


def _counted(asks: Iterator[tuple[float, Arrived]], tell: Tell) -> Iterator[tuple[float, Arrived]]:
    count = 0
    for count, ask in enumerate(asks, 1):
        if not count % TOLD_EVERY:
            tell(count)
        yield ask
    tell(count)
