"""How the benchmark of plans measures: the highest rate is that of the replay, not of the plan."""

import pytest

from benchmarks.plan import CLOSE, FEW, Case, Runs, highest
from benchmarks.plan_cases import small
from orchestrator.plan.assignment import Assignment
from orchestrator.plan.search import plan
from orchestrator.replay.scenario.problem import problem_of


@pytest.mark.parametrize("guess", [0.5, 7.0, 9.9, 10.1, 11.0, 90.0])
@pytest.mark.parametrize("most", [10.0, 9.31])
def test_the_highest_rate_is_found_from_any_guess(guess: float, most: float) -> None:
    assert highest(lambda rate: rate <= most, guess) == pytest.approx(most, rel=CLOSE)


def test_nothing_is_good() -> None:
    assert highest(lambda rate: False, 10.0) < 0.1


def test_a_plan_is_measured_by_replay() -> None:
    case = next(case for case in small() if case.name == "one site")
    runs, planned = Runs(case.scenario), planned_best(case)
    assert runs.kept(planned[0], 0.8 * planned[1], FEW) == 1.0
    assert runs.kept(planned[0], 1.3 * planned[1], FEW) < 0.9


def planned_best(case: Case) -> tuple[Assignment, float]:
    best = plan(case.narrowed(problem_of(case.scenario, keep_roles=True)), case.objective).best
    return best.assignment, best.rate
