"""A failing case explains itself: the shrinker finds what it needs, the story tells what happened.

The breach is planted: once a certain worker was lost, the core hands out wrong tokens.
"""

import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest

from benchmarks.faults import explain
from orchestrator.lifecycle.machine import Machine
from orchestrator.state.actions import Action, Emit
from orchestrator.state.events import Event, WorkerLost
from orchestrator.virtual.faults.cases import Case, play
from orchestrator.virtual.faults.checks import check
from orchestrator.virtual.faults.fault import Kind
from orchestrator.virtual.faults.shrink import broken, shrink
from orchestrator.virtual.faults.story import tell
from orchestrator.virtual.promises import Promise
from tests.orchestrator.virtual.faults.troubled import case_of, everything, shipped
from tests.orchestrator.virtual.stories.story_world import M0

ONLY_AFTER = Kind.KILL_WORKER, M0


def spoil(monkeypatch: pytest.MonkeyPatch, worker: str | None) -> None:
    """Every token is wrong after the loss of this worker; None: of any."""
    handle = Machine.handle
    spoilt = set[Machine]()

    def spoiling(machine: Machine, event: Event, now: float) -> list[Action]:
        if isinstance(event, WorkerLost) and worker in (None, event.worker):
            spoilt.add(machine)
        actions = handle(machine, event, now)
        if machine not in spoilt:
            return actions
        return [
            replace(a, ids=tuple(token ^ 1 for token in a.ids)) if isinstance(a, Emit) else a
            for a in actions
        ]

    monkeypatch.setattr(Machine, "handle", spoiling)


@pytest.fixture
def case() -> Case:
    """Eight requests, and all faults but those of gateways and frozen agents."""
    whole = everything()
    wanted = {Kind.KILL_GATEWAY, Kind.FREEZE_GATEWAY, Kind.FREEZE_AGENT}
    faults = tuple(fault for fault in whole.faults if fault.kind not in wanted)
    return replace(whole, asks=whole.asks[:16:2], faults=faults)


@pytest.fixture
def spoilt(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, M0)


# ---------------------------------------------------------------- the shrinker


@pytest.mark.usefixtures("spoilt")
def test_what_is_left_is_the_fault_and_one_request(case: Case) -> None:
    assert len(case.faults) > 10
    assert Promise.RIGHT_TOKENS in broken(case)
    small = shrink(case)
    assert [(fault.kind, fault.target) for fault in small.faults] == [ONLY_AFTER]
    assert len(small.asks) == 1
    assert small.asks[0] in case.asks
    assert replace(small, asks=case.asks, faults=case.faults) == case, "nothing else has changed"
    assert Promise.RIGHT_TOKENS in broken(small)
    assert shrink(small) == small


@pytest.mark.usefixtures("spoilt")
def test_it_gives_up_after_so_many_runs_and_what_it_has_still_breaks(case: Case) -> None:
    assert shrink(case, tries=0) == case
    some = shrink(case, tries=4)
    assert len(some.faults) < len(case.faults)
    assert Promise.RIGHT_TOKENS in broken(some)


def test_what_breaks_nothing_is_not_shrunk(case: Case) -> None:
    assert broken(case) == set()
    assert shrink(case, tries=5) == case


# ---------------------------------------------------------------- the story


def story(case: Case, *requests: str) -> list[str]:
    world = play(case)
    return list(tell(case, world, check(world), list(requests)))


@pytest.mark.usefixtures("spoilt")
def test_the_story_has_the_faults_the_breach_and_the_requests_own_events(case: Case) -> None:
    kill = next(fault for fault in case.faults if (fault.kind, fault.target) == ONLY_AFTER)
    small = replace(case, asks=case.asks[1:2], faults=(kill,))
    name = small.asks[0].arrived.request
    lines = story(small, name)
    text = "\n".join(lines)
    assert f"seed {small.seed}: 1 requests, 1 faults" in text
    assert f"3.000 kill_worker {M0} for 1 s" in text
    assert f"{name}: broken: every token is right" in text
    for expected in (
        r"^ +\d+\.\d{4}  Arrived limit=60",
        r"^ +-> hami/prefill/\d: Start epoch=0 role=prefill",
        r"^ +-> \S+: SendKV for shenzhen/main/\d epoch=0 to_epoch=2 start=0",
        r"^ +\d+\.\d{4}  hami/prefill/\d: TokenRun epoch=0 index=0 ids=\[\d+\]x1",
        r"^ +\d+\.\d{4}  WorkerLost worker=" + M0,
        r"^ +-> client: tokens 0-0",
        r"^ +-> client: Finish reason=",
        r"^  the client saw \d+ tokens: \[",
    ):
        assert re.search(expected, text, re.MULTILINE), expected
    times = [float(line.split()[0]) for line in lines if re.match(r" +\d+\.\d{4}  ", line)]
    assert len(times) > 20
    assert all(a <= b for a, b in pairwise(times))


def test_a_story_is_of_its_request_alone(case: Case) -> None:
    mine, other = case.asks[0].arrived.request, case.asks[1].arrived.request
    text = "\n".join(story(case, mine))
    assert f"\n{mine}: " in text
    assert f"\n{other}: " not in text
    assert text.count("Arrived") == 1


def test_a_story_is_told_again_word_for_word(case: Case) -> None:
    names = [ask.arrived.request for ask in case.asks]
    assert story(case, *names) == story(case, *names)


# ---------------------------------------------------------------- a seed's


def test_a_seeds_story_is_of_its_broken_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = next(n for n in range(99) if _kills_one_of_one_gateway(case_of(n)))
    good, is_broken = explain(shipped(), seed, smallest=False)
    assert not is_broken
    assert "broken" not in good
    spoil(monkeypatch, None)
    lines, is_broken = explain(shipped(), seed, smallest=False)
    assert is_broken
    wrong = {line.split()[1].rstrip(":") for line in lines if ": broken: every token" in line}
    told = {line.split(":")[0] for line in lines if re.match(r"r\d+: ", line)}
    assert wrong
    assert told == wrong
    least, is_broken = explain(shipped(), seed, smallest=True)
    assert is_broken
    assert least[0] == f"seed {seed}: 1 requests, 1 faults"


def _kills_one_of_one_gateway(case: Case) -> bool:
    """Whether it does nothing but to kill one worker while requests come."""
    kills = [f for f in case.faults if f.kind is Kind.KILL_WORKER and 2.0 < f.at < 5.0]
    return len(kills) == 1 and case.setup.gateways == 1 and len(case.faults) < 4


def test_a_seeds_story_is_the_same_in_every_process() -> None:
    """Also where sets and dicts of text have another order."""
    command = [sys.executable, "-m", "orchestrator.cli.main", "bench", "faults", "--seed", "11"]
    told = []
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [*command, "--story"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        told.append(done.stdout)
    assert told[0] == told[1]
    assert "Arrived" in told[0]
