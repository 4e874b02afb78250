"""The command line's surface, frozen: whoever changes it changes this table and knows why."""

import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from orchestrator.cli.main import COMMANDS, load, run

ROOT = Path(__file__).parents[3]

# command -> its options and arguments, as one types them
SURFACE = {
    "bench chaos": ["--fault", "--phase", "--seed", "-o/--output"],
    "bench codec": ["-o/--output"],
    "bench driver": ["--requests", "--seed", "-o/--output"],
    "bench faults": [
        *("--calm", "--jobs", "--request", "--scenario", "--seed", "--seeds", "--shrink"),
        "--story",
        "-o/--output",
    ],
    "bench fuzz": ["--inputs", "--round", "--seed", "-o/--output", "names"],
    "bench gateway": ["-o/--output"],
    "bench handoff": [
        *("--engine", "--gateway-site", "--logs", "--replay", "--requests", "--topology"),
        "-o/--output",
    ],
    "bench hooks": ["--python", "-o/--output"],
    "bench link": [
        "--accidents/--no-accidents",
        "--codec",
        "--gbps",
        "--large-buffers/--kernel-buffers",
        "--loss",
        "--repeats",
        "--rivals/--no-rivals",
        "--size",
        "-o/--output",
    ],
    "bench mutants": ["--jobs", "--markdown", "--seeds", "-o/--output", "names"],
    "bench paper": ["--jobs", "--requests", "-o/--output"],
    "bench overload": ["--seconds", "--seed", "-o/--output"],
    "bench parity": ["-o/--output", "file"],
    "bench plan": ["--jobs", "--only", "-o/--output"],
    "bench pool": ["--folder", "--longest", "-o/--output"],
    "bench replay": ["--requests", "-o/--output"],
    "bench schedule": ["--seeds", "-o/--output"],
    "bench soak": ["--minutes", "--seed", "-o/--output"],
    "bench triattention": ["--short", "-o/--output"],
    "bench turns": ["--route", "--topology", "-o/--output"],
    "bench validate": ["--data", "-o/--output"],
    "bench vtoken": ["--short", "-o/--output"],
    "calibrate": ["--text", "--tokens", "-o/--output", "model"],
    "collect-env": ["-o/--output", "file"],
    "completion": ["-o/--output", "shell"],
    "doctor": ["--key", "--url", "-o/--output", "file"],
    "drain": ["--key", "--undo", "--url", "-o/--output", "target"],
    "init": ["--certs", "--sites", "-o/--output", "file"],
    "lab": [
        *("--buffer", "--delay", "--far", "--jitter", "--link", "--loss", "--mtu", "--near"),
        *("--rate", "--seed", "--sysctl", "-o/--output", "file"),
    ],
    "plan": [
        *("--explain", "--html", "--jobs", "--keep-roles", "--most", "--objective", "--rate"),
        *("--resume", "--sweep", "-o/--output", "file"),
    ],
    "replay": [
        *("--html", "--jobs", "--plan", "--policy", "--rate", "--requests", "--resume", "--seed"),
        *("--sweep", "--trace", "-o/--output"),
        "file",
    ],
    "schema": ["-o/--output", "kind"],
    "serve": [
        *("--dry-run", "--gateway-site", "--logs", "--port", "--record", "-o/--output", "file"),
    ],
    "site": ["--logs", "--ray", "-o/--output", "file", "name"],
    "status": ["--key", "--url", "--watch", "-o/--output"],
    "validate": ["-o/--output", "file"],
}


def surface(name: str) -> dict[str, list[str]]:
    """A command's parameters, and those of its subcommands by their full names."""
    app = load(name)
    found = {}
    new = [(name, typer.main.get_command(app))]
    while new:
        full_name, command = new.pop()
        below = getattr(command, "commands", {})
        if below:
            new += [(f"{full_name} {sub}", subcommand) for sub, subcommand in below.items()]
        else:
            found[full_name] = sorted("/".join(p.opts + p.secondary_opts) for p in command.params)
    return found


def test_the_surface() -> None:
    found = {}
    for name in COMMANDS:
        found |= surface(name)
    assert found == SURFACE


@pytest.mark.parametrize("command", SURFACE)
def test_every_command_can_write_json(command: str) -> None:
    assert "-o/--output" in SURFACE[command]


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    for name, line in COMMANDS.items():
        assert f"  {name} " in text
        assert line in text


def test_without_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    assert "usage: pdd COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    assert f"pdd {name}" in capsys.readouterr().out


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from orchestrator.cli.main import run\n"
        "run(['--help'])\n"
        "heavy = {'torch', 'ray', 'transformers', 'pydantic', 'typer'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
