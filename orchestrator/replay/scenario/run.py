"""One policy of a scenario, from its first request to its last."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from orchestrator.replay.driver import Replay
from orchestrator.replay.outcome import Outcome, Use
from orchestrator.replay.scenario.build import WARMING, build
from orchestrator.replay.scenario.prices import Bill, bill
from orchestrator.replay.scenario.schema import Compared, Scenario
from orchestrator.replay.workload.request import Workload
from orchestrator.state.events import Arrived

TOLD_EVERY = 50  # requests

Tell = Callable[[int], None]  # how many requests have come so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came of a policy."""

    policy: str
    outcomes: list[Outcome]
    uses: dict[str, Use]
    ended_at: float
    bill: Bill


def play(
    scenario: Scenario,
    policy: Compared,
    *,
    workload: Workload | None = None,
    tell: Tell = lambda count: None,
) -> Played:
    """Replay a policy. None: the scenario's own workload."""
    setup, asks = build(scenario, policy, workload)
    replay = Replay(setup)
    replay.run(_counted(asks, tell))
    return Played(
        policy=policy.name,
        outcomes=[o for o in replay.outcomes.values() if not o.name.startswith(WARMING)],
        uses=replay.uses,
        ended_at=replay.ended_at,
        bill=bill(scenario, policy),
    )


def _counted(asks: Iterator[tuple[float, Arrived]], tell: Tell) -> Iterator[tuple[float, Arrived]]:
    count = 0
    for count, ask in enumerate(asks, 1):
        if not count % TOLD_EVERY:
            tell(count)
        yield ask
    tell(count)
