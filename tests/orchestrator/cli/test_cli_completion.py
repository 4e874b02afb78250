"""`pdd completion`: what a real shell offers after it has read the script."""

import shutil
import subprocess

import pytest

from orchestrator.cli.main import COMMANDS, run


def offered(capsys: pytest.CaptureFixture[str], *typed: str) -> set[str]:
    """What bash offers for the last of the words that were typed."""
    assert run(["completion", "bash"]) == 0
    words = " ".join(f"'{word}'" for word in ("pdd", *typed))
    script = (
        f"{capsys.readouterr().out}\nCOMP_WORDS=({words}); COMP_CWORD={len(typed)}; _pdd; "
        'echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    return set(done.stdout.split())


def test_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert offered(capsys, "") == {*COMMANDS, "--help", "--version"}
    assert offered(capsys, "se") == {"serve"}


def test_options_and_choices(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--gateway-site" in offered(capsys, "serve", "topology.yaml", "--")
    assert offered(capsys, "schema", "t") == {"topology", "text"}


def test_subcommands(capsys: pytest.CaptureFixture[str]) -> None:
    assert offered(capsys, "bench", "fa") == {"faults"}
    assert offered(capsys, "bench", "faults", "--st") == {"--story"}


def test_what_is_no_word_of_ours_is_left_to_the_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert offered(capsys, "serve", "conf") == set()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_take_it(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert "--gateway-site" in text
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not here to read it")
    subprocess.run([shell, "-n"], input=text, text=True, timeout=60, check=True)
