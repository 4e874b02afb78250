"""The command `pdd`: finds the command's file, and turns what goes wrong into one line.

Exit codes: 0 good, 2 for a user's mistake, 1 otherwise. PDD_DEBUG=1 shows tracebacks.
"""

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.metadata import version
from typing import Any

from orchestrator.errors import UserError

# A command `x-y` is the Typer `app` of orchestrator.cli.x_y, imported only when it is called, so
# that help and mistakes come at once. To add a command, add its line here.
COMMANDS = {
    "init": "Write a topology to start from, and certificates for its sites.",
    "validate": "Check a topology file and name every mistake in it.",
    "schema": "Print what a topology or scenario file may say, as JSON Schema.",
    "plan": "Find out which pool should play which role, and why.",
    "replay": "Find out in virtual time what a deployment gives and costs.",
    "bench": "Measure a claim.",
    "calibrate": "Read plain text once, for pools that prune by triattention.",
    "status": "Show what a running service is doing.",
    "drain": "Take a site out of a running service, or renew a worker, without losing a request.",
    "doctor": "Look what is well and what is not: machine, TCP, topology, running service.",
    "serve": "Start a topology on this machine and serve it.",
    "site": "Start one site of a topology on this machine, for a gateway elsewhere.",
    "lab": "A long line on this machine, packet by packet, to try things on (needs root).",
    "collect-env": "Print what a report of a fault should say of this machine.",
    "completion": "Print a script that lets a shell complete commands and options.",
}

GOOD, FAILED, MISTAKEN = 0, 1, 2
INTERRUPTED = 128 + signal.SIGINT

USAGE = "usage: pdd COMMAND [ARGUMENTS]"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    try:
        return _dispatch(arguments)
    except UserError as error:
        return _complain(error, str(error), MISTAKEN)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has left; nothing can be told to it any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if hasattr(error, "format_message"):  # Typer's own: a bad option or argument
            problem = error.format_message().replace("Value error, ", "")
            message = f"{problem} (pdd {arguments[0]} --help shows what it takes)"
            return _complain(error, message, getattr(error, "exit_code", MISTAKEN))
        text = " ".join(str(error).split()) or "no details"
        return _complain(error, f"{type(error).__name__}: {text}", FAILED)


def _dispatch(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        return GOOD if arguments else MISTAKEN
    if arguments[0] == "--version":
        print(f"pdd {version('pdd-orchestrator')}")
        return GOOD
    name, *rest = arguments
    if name not in COMMANDS:
        near = get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "pdd --help lists them"
        raise UserError(f"unknown command {name!r}; {hint}")
    app = load(name)
    # Without standalone mode Typer returns the code of `raise typer.Exit(code)`, else None.
    code = app(rest, prog_name=f"pdd {name}", standalone_mode=False)
    sys.stdout.flush()
    return code if isinstance(code, int) else GOOD


def load(name: str) -> Any:
    """The Typer app of a command. Raises KeyError for a name that is none."""
    if name not in COMMANDS:
        raise KeyError(name)
    return importlib.import_module(f"orchestrator.cli.{name.replace('-', '_')}").app


def _help() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
    return (
        f"{USAGE}\n\nServe one model across clusters that are far apart.\n\n{commands}\n\n"
        "pdd COMMAND --help shows a command's options; pdd --version the version."
    )


def _complain(error: Exception, message: str, code: int) -> int:
    if os.environ.get("PDD_DEBUG") == "1":
        raise error
    print(message, file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
