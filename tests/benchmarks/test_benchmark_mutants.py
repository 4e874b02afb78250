"""`pdd bench mutants`: a broken rule is noticed by a seed, one that is not must be explained."""

import json
from pathlib import Path

import pytest

from benchmarks.mutants import run as bench
from benchmarks.mutants.catalogue import MUTANTS
from benchmarks.mutants.exceptions import EXCEPTIONS
from benchmarks.mutants.mutant import Mutant, broken, mutate
from orchestrator.cli.main import run

NOTICED = "every piece counts twice"
EXPLAINED = "an offer waits for ever"
SUBTLE = "a full pool ends the worker"  # it takes more than one seed
SEEDS = ["--seeds", "3", "--jobs", "1"]


def test_one_is_noticed_and_one_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "mutants.md"
    command = ["bench", "mutants", NOTICED, EXPLAINED, *SEEDS, "--markdown", str(page)]
    assert run([*command, "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["seeds"], told["not_caught"]) == (3, [])
    first, second = told["mutants"]
    assert first["name"] == NOTICED
    assert first["seed"] in range(3)
    assert first["breach"]
    assert (second["seed"], second["breach"]) == (None, None)
    above, below = page.read_text(encoding="utf-8").split("## Not noticed by seeds")
    assert f"| transport | {NOTICED} | `transport.stream.incoming` | {first['seed']} | " in above
    assert f"| transport | {EXPLAINED} | `transport.stream.sender` | {second['exempt']} |" in below


def test_one_that_is_neither_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert MUTANTS[SUBTLE].exempt is None
    assert run(["bench", "mutants", SUBTLE, "--seeds", "1", "--jobs", "1"]) == 1
    assert SUBTLE in capsys.readouterr().out


@pytest.mark.parametrize("name", MUTANTS)
def test_the_rule_it_breaks_is_still_there(name: str) -> None:
    compile(mutate(MUTANTS[name]), name, "exec")


def test_every_exception_is_a_mutants() -> None:
    assert EXCEPTIONS.keys() <= MUTANTS.keys()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["every piece counts thrice"], "did you mean 'every piece counts twice'?"),
        ([NOTICED, "--markdown", "nowhere/mutants.md"], "--markdown: there is no folder nowhere"),
    ],
)
def test_mistakes(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "mutants", *arguments]) == 2
    assert told in capsys.readouterr().err


@pytest.fixture
def stale(monkeypatch: pytest.MonkeyPatch) -> Mutant:
    """One that the process of its own does not know."""
    mutant = broken("worker", "not in the list", "workers.legs", ("a", "b"))
    monkeypatch.setitem(MUTANTS, mutant.name, mutant)
    return mutant


def test_one_that_cannot_be_tried_is_not_taken_for_caught(stale: Mutant) -> None:
    with pytest.raises(RuntimeError, match="not in the list: cannot be tried: KeyError"):
        bench.run([stale.name], seeds=1, jobs=1)
