"""Which broken rules the seeds of trouble notice, and how soon (`pdd bench mutants`).

Each mutant lives in a process of its own: `python -m benchmarks.mutants.run NAME SEEDS`.
"""

import importlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from benchmarks.mutants.catalogue import MUTANTS
from benchmarks.mutants.mutant import ROOT, Mutant, install

STUCK_S = 120.0  # a mutant that says nothing for so long hangs, and is caught by that
TELL_EVERY = 10  # seeds


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one mutant.

    `seed` is the one that noticed; of a mutant that hangs or raises, the last before that. None: no
    seed up to the last one noticed it, or the very first seeds did not end.
    """

    mutant: Mutant
    seed: int | None
    breach: str | None

    @property
    def caught(self) -> bool:
        return self.breach is not None


def run(
    names: Sequence[str],
    *,
    seeds: int,
    jobs: int,
    tell: Callable[[Verdict], None] = lambda verdict: None,
) -> list[Verdict]:
    """Try every mutant on the seeds from 0 on, several at a time.

    Raises RuntimeError when one cannot be tried: that would be no verdict.
    """

    def one(name: str) -> Verdict:
        verdict = _watch(MUTANTS[name], seeds)
        tell(verdict)
        return verdict

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, names))


def table(verdicts: Sequence[Verdict], seeds: int) -> str:
    """The verdicts as a page of Markdown."""
    caught = [v for v in verdicts if v.caught]
    alive = [v for v in verdicts if not v.caught]
    lines = [
        "# Broken rules, and the seed that noticed",
        "",
        f"`pdd bench mutants --seeds {seeds}`: {len(verdicts)} rules broken one at a time, each "
        f"tried on the seeds of `pdd bench faults` from 0 on. {len(caught)} were noticed; the "
        "others are named below with the reason.",
        "",
        "| part | rule broken | module | seed | what was seen |",
        "|---|---|---|---|---|",
        *(_row(v) for v in caught),
    ]
    if alive:
        lines += [
            "",
            "## Not noticed by seeds",
            "",
            "| part | rule broken | module | why |",
            "|---|---|---|---|",
            *(
                f"| {v.mutant.part} | {v.mutant.name} | `{v.mutant.module}` | "
                f"{v.mutant.exempt or 'NOT EXPLAINED'} |"
                for v in alive
            ),
        ]
    return "\n".join(lines) + "\n"


def _row(verdict: Verdict) -> str:
    mutant = verdict.mutant
    seen = (verdict.breach or "").replace("|", "/")
    return f"| {mutant.part} | {mutant.name} | `{mutant.module}` | {verdict.seed} | {seen} |"


def _watch(mutant: Mutant, seeds: int) -> Verdict:
    """Run one mutant's process. Raises RuntimeError when it ends before it has begun."""
    command = [sys.executable, "-m", "benchmarks.mutants.run", mutant.name, str(seeds)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    told: dict[str, Any] | None = None
    stuck = threading.Event()
    with process:
        for line in _until_stuck(process, process.stdout, stuck):
            told = json.loads(line)
        errors = process.stderr.read().strip().splitlines()
    last = errors[-1] if errors else f"exit code {process.returncode}"
    if told is None:
        raise RuntimeError(f"{mutant.name}: cannot be tried: {last}")
    if stuck.is_set():
        return Verdict(mutant=mutant, seed=told["seed"], breach="hangs")
    if process.returncode != 0:
        return Verdict(mutant=mutant, seed=told["seed"], breach=f"raises: {last[:120]}")
    breach = told["breach"]
    return Verdict(mutant=mutant, seed=told["seed"] if breach else None, breach=breach)


def _until_stuck(
    process: "subprocess.Popen[str]", lines: Iterable[str], stuck: threading.Event
) -> Iterator[str]:
    """What a process says; it is ended when it says nothing for `STUCK_S`."""

    def give_up() -> None:
        stuck.set()
        process.kill()

    timer = threading.Timer(STUCK_S, give_up)
    timer.start()
    for line in lines:
        timer.cancel()
        timer = threading.Timer(STUCK_S, give_up)
        timer.start()
        yield line
    timer.cancel()


def _live(mutant: Mutant, seeds: int) -> None:
    """In the mutant's own process: say after some seeds how far it is, and stop when caught."""
    install(mutant)
    # After the rule was broken: what they import must be broken too.
    faults = importlib.import_module("benchmarks.faults")
    scenarios = importlib.import_module("orchestrator.virtual.faults.scenario")
    scenario = scenarios.load_scenario(faults.scenario_file(None))
    _say(None, None)  # it has begun
    for first in range(0, seeds, TELL_EVERY):
        tally = faults.live(scenario, range(first, min(first + TELL_EVERY, seeds)))
        for seed, breaches in sorted(tally.broken.items()):
            _say(seed, _promise(breaches[0]))
            return
        _say(first + TELL_EVERY - 1, None)


def _say(seed: int | None, breach: str | None) -> None:
    """One line for `_watch`."""
    print(json.dumps({"seed": seed, "breach": breach}), flush=True)


def _promise(breach: str) -> str:
    """The promise and what was seen, without time and name."""
    return breach.split("broken: ", 1)[1][:160]


if __name__ == "__main__":
    _live(MUTANTS[sys.argv[1]], int(sys.argv[2]))
