"""`--record` and `bench parity` given files that cannot be: one clear line, nothing started."""

import subprocess
import sys
from pathlib import Path

import pytest


def pdd(*arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_journal_in_a_folder_that_does_not_exist(root: Path, tmp_path: Path) -> None:
    topology = root / "configs" / "topologies" / "laptop-simulated.yaml"
    journal = tmp_path / "nowhere" / "journal"
    assert pdd("serve", str(topology), "--record", str(journal)) == (
        2,
        "",
        f"{journal}: cannot record there: No such file or directory\n",
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "cannot be read: No such file or directory"),
        ("model: smollm2-135m\n", "line 1: not JSON: "),
    ],
)
def test_a_file_that_is_no_journal(tmp_path: Path, text: str | None, problem: str) -> None:
    journal = tmp_path / "journal"
    if text is not None:
        journal.write_text(text)
    code, said, complaint = pdd("bench", "parity", str(journal))
    assert (code, said) == (2, "")
    assert complaint.startswith(f"{journal}: {problem}")
    assert complaint.count("\n") == 1
