"""A scenario's policies beside each other, on as many processes as there are cores for."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from multiprocessing.sharedctypes import SynchronizedArray

from orchestrator.children import end_with_parent
from orchestrator.replay.report.metrics import Run
from orchestrator.replay.scenario.run import play
from orchestrator.replay.scenario.schema import Compared, Scenario
from orchestrator.replay.workload.request import Workload

LOOK_S = 0.1  # between two looks at how far the processes are

TellAll = Callable[[Sequence[int]], None]  # requests that have come so far, per policy

# In a child, shared with its parent: of each policy the requests that have come; then whether the
# parent wants no more.
_counts: "SynchronizedArray[int]"


class Stopped(Exception):
    """The parent wants no answer any more."""


def compare(
    scenario: Scenario,
    policies: Sequence[Compared],
    workload: Workload,
    *,
    jobs: int | None = None,
    tell: TellAll = lambda counts: None,
) -> list[Run]:
    """Replay each policy with the same requests. `jobs` None: as many as cores.

    Each policy's outcomes are the same whatever runs beside it.
    """
    jobs = min(jobs or os.cpu_count() or 1, len(policies))
    if jobs > 1:
        return _beside(scenario, policies, workload, jobs, tell)
    counts = [0] * len(policies)
    played = []
    for place, policy in enumerate(policies):

        def come(count: int, place: int = place) -> None:
            counts[place] = count
            tell(counts)

        played.append(play(scenario, policy, workload=workload, tell=come))
    return played


def _beside(
    scenario: Scenario,
    policies: Sequence[Compared],
    workload: Workload,
    jobs: int,
    tell: TellAll,
) -> list[Run]:
    context = get_context()
    counts = context.Array("q", len(policies) + 1)
    pool = ProcessPoolExecutor(jobs, context, _join, (counts,))
    try:
        futures = [
            pool.submit(_play, scenario, policy, workload, place)
            for place, policy in enumerate(policies)
        ]
        for _ in _until_done(futures):
            tell(counts[:-1])
        return [future.result() for future in futures]
    finally:
        counts[-1] = 1
        pool.shutdown(cancel_futures=True)


def _until_done(futures: Sequence[Future[Run]]) -> Iterator[None]:
    left = set(futures)
    while left:
        done, left = wait(left, LOOK_S, FIRST_COMPLETED)
        for future in done:
            future.result()  # what went wrong is raised at once
        yield


# ------------------------------------------------------------------------- in another process


def _join(counts: "SynchronizedArray[int]") -> None:
    """Ctrl-C is the parent's to handle; it tells through `counts`."""
    global _counts
    _counts = counts
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def _play(scenario: Scenario, policy: Compared, workload: Workload, place: int) -> Run:
    def come(count: int) -> None:
        if _counts[-1]:
            raise Stopped
        _counts[place] = count

    return play(scenario, policy, workload=workload, tell=come)
