"""Every rule of PROTOCOL broken once on purpose: the tests must notice.

`make mutants` runs them all and prints which test caught each. A mutant is a replacement in the
source of one core module, made while Python imports it, so that no file is touched.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.mutants import mutant as mutants
from benchmarks.mutants.catalogue import GATEWAY

MUTANTS = {mutant.name: mutant for mutant in GATEWAY}
HERE = "tests/orchestrator/lifecycle"
STORIES = "tests/orchestrator/virtual/stories"
# In the order in which they are asked; the first failure ends a mutant's run.
TESTS = (
    f"{HERE}/test_request.py",
    f"{HERE}/test_cases_law.py",
    f"{HERE}/test_cases_states.py",
    f"{HERE}/test_cases_any_state.py",
    f"{HERE}/test_cases_deadlines.py",
    f"{HERE}/test_cases_queue.py",
    f"{HERE}/test_cases_roles.py",
    f"{HERE}/test_next_tokens.py",
    "tests/orchestrator/policy",
    f"{STORIES}/test_stories.py",
    f"{STORIES}/test_stories_faults.py",
    f"{STORIES}/test_handoff_gap.py",
    f"{HERE}/test_properties.py",
    "tests/orchestrator/virtual/faults/test_seeds.py",
)
VARIABLE = "PDD_MUTANT"
TIMEOUT_S = 20  # of one test: a mutant may also be caught by hanging


def install() -> None:
    """Break what the environment names, in this process. Called by the plugin."""
    name = os.environ.get(VARIABLE)
    if name is not None:
        mutants.install(MUTANTS[name])


@dataclass(frozen=True)
class Verdict:
    """Which test failed first; None: the mutant lives."""

    caught_by: str | None
    seconds: float


def run(name: str, tests: Sequence[str] = TESTS) -> Verdict:
    """Run the tests against one mutant, in a process of its own."""
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", f"--timeout={TIMEOUT_S}"]
    command += ["-p", "tests.orchestrator.lifecycle.mutant_plugin"]
    for unneeded in ("cacheprovider", "hypothesispytest", "asyncio", "anyio"):
        command += ["-p", f"no:{unneeded}"]
    done = subprocess.run(
        [*command, *tests],
        cwd=mutants.ROOT,
        env={**os.environ, VARIABLE: name, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - began
    if done.returncode == 0:
        return Verdict(None, seconds)
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    hung = re.search(r"::(test_\w+)", done.stdout + done.stderr)
    if found is None and "Timeout" not in done.stdout + done.stderr:
        raise RuntimeError(f"{name}: pytest failed by itself\n{done.stdout}\n{done.stderr}")
    caught_by = found[1] if found else f"(hangs) {hung[1] if hung else ''}"
    return Verdict(caught_by.removeprefix(f"{HERE}/"), seconds)


def main() -> int:
    wanted = sys.argv[1:] or list(MUTANTS)
    alive = []
    for name in wanted:
        verdict = run(name)
        mutant = MUTANTS[name]
        caught = verdict.caught_by or "NOT CAUGHT"
        print(f"rule {mutant.part:<8} {name:<48} {verdict.seconds:5.1f} s  {caught}", flush=True)
        if verdict.caught_by is None:
            alive.append(name)
    print(f"{len(wanted) - len(alive)} of {len(wanted)} mutants caught")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
