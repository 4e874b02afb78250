"""The list of mutants is up to date, and a few of them are caught. `make mutants` runs them all."""

import pytest

from benchmarks.mutants.catalogue import MUTANTS as ALL
from benchmarks.mutants.mutant import mutate
from tests.orchestrator.lifecycle.mutants import HERE, MUTANTS, run

# Rule 3 is the worker's alone.
GATEWAY_RULES = {str(rule) for rule in range(1, 14)} - {"3"}
SAMPLE = [
    ("history is not compared", "test_cases_law.py"),
    ("a paused relay never resumes", "test_cases_states.py"),
]


@pytest.mark.parametrize("name", ALL)
def test_a_mutant_fits_the_source(name: str) -> None:
    compile(mutate(ALL[name]), name, "exec")


def test_every_rule_is_broken() -> None:
    assert {mutant.part for mutant in MUTANTS.values()} >= GATEWAY_RULES


@pytest.mark.parametrize(("name", "file"), SAMPLE)
def test_a_mutant_is_caught(name: str, file: str) -> None:
    assert run(name, [f"{HERE}/{file}"]).caught_by is not None
