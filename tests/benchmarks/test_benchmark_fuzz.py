"""A short run of every fuzzer; `make fuzz` is the long one."""

import json
import random
from collections.abc import Callable

import pytest

from benchmarks.fuzz.campaign import Found, Outcome, Refusal, Target, run, run_round
from benchmarks.fuzz.targets import TARGETS
from orchestrator.cli.main import run as pdd

FEW = {"yaml": 400, "traces": 1500}  # of slower readers


@pytest.mark.parametrize("name", TARGETS)
def test_every_input_is_taken_or_refused_in_one_line(name: str) -> None:
    outcome = run(TARGETS[name], FEW.get(name, 3000), seed=1)
    assert outcome.outcomes["taken"] > outcome.inputs / 50, "hardly anything gets through"
    assert outcome.outcomes["taken"] < outcome.inputs * 0.95, "hardly anything is odd"


@pytest.mark.parametrize("name", TARGETS)
def test_the_same_seed_gives_the_same_inputs(name: str) -> None:
    def inputs(seed: int) -> list[bytes]:
        rng, reader = random.Random(seed), TARGETS[name].reader()
        return [reader.input(rng) for _ in range(50)]

    assert inputs(3) == inputs(3) != inputs(4)


class Odd:
    """Reads nothing; what comes of an input is said beforehand."""

    def __init__(self, feed: Callable[[], None]) -> None:
        self._feed = feed

    def input(self, rng: random.Random) -> bytes:
        return rng.randbytes(4)

    def feed(self, data: bytes) -> None:
        self._feed()


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("feed", "told"),
    [
        (lambda: _raise(KeyError("x")), "KeyError"),
        (lambda: _raise(RecursionError("too deep")), "RecursionError"),
        (lambda: _raise(Refusal("ApiError", "two\nlines")), "several lines"),
        (lambda: _raise(Refusal("ApiError", "x" * 10_000)), "10000 characters"),
        (lambda: _raise(Refusal("ApiError", "")), "says nothing"),
    ],
)
def test_anything_else_is_found_and_can_be_seen_again(feed: Callable[[], None], told: str) -> None:
    target = Target("odd", lambda: Odd(feed))
    with pytest.raises(Found, match=told) as found:
        run_round(target, 5, 7, Outcome(target="odd"))
    assert "pdd bench fuzz odd --seed 5 --round 7" in str(found.value)


def test_what_hangs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.fuzz.campaign.ROUND_S", 0.02)

    def hang() -> None:
        while True:
            pass

    with pytest.raises(Found, match=r"more than 0\.02 s"):
        run(Target("odd", lambda: Odd(hang)), 50, 0)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert pdd(["bench", "fuzz", "streams", "orders", "--inputs", "100", "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [target["inputs"] for target in told["targets"]] == [100, 100]
    assert told["found"] is None
    assert pdd(["bench", "fuzz", "streams", "--round", "3"]) == 0
    assert pdd(["bench", "fuzz", "stream"]) == 2
    assert "did you mean 'streams'?" in capsys.readouterr().err
