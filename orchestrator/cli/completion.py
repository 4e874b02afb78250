"""`pdd completion SHELL`: a script that lets a shell complete commands and their options."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

import typer
import typer.main

from orchestrator.cli.main import COMMANDS, load
from orchestrator.cli.output import Format, FormatOption, print_json

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


class Shell(StrEnum):
    """The shells that are known."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command()
def completion(
    shell: Annotated[Shell, typer.Argument(help="Whose script.")],
    output: FormatOption = Format.TEXT,
) -> None:
    """Print a script for a shell's start-up file: source <(pdd completion bash), or as -o json
    the words it knows."""
    words = {line: choices for name in COMMANDS for line, choices in _words(name)}
    words = {"": [*COMMANDS, "--help", "--version"], **words}
    if output is Format.JSON:
        print_json(words)
    else:
        print(_fish(words) if shell is Shell.FISH else _bash(words, zsh=shell is Shell.ZSH))


def _words(name: str) -> Iterator[tuple[str, list[str]]]:
    """What can follow a command, and each of its subcommands."""
    new: list[tuple[str, Any]] = [(name, typer.main.get_command(load(name)))]
    while new:
        line, command = new.pop()
        below = getattr(command, "commands", {})
        options = [one for p in command.params for one in (*p.opts, *p.secondary_opts)]
        choices = [one for p in command.params for one in p.type_descriptor.choices or ()]
        flags = [option for option in options if option.startswith("-")]
        yield line, [*below, *(choice.value for choice in choices), *flags, "--help"]
        new += [(f"{line} {sub}", subcommand) for sub, subcommand in below.items()]


def _bash(words: dict[str, list[str]], *, zsh: bool) -> str:
    """What is no word of ours is completed as a file."""
    cases = "\n".join(
        f'    "{line}") words="{" ".join(known)}" ;;' for line, known in words.items()
    )
    head = "autoload -Uz bashcompinit && bashcompinit\n" if zsh else ""
    return f"""{head}_pdd() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" line="" words="" part
  for part in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$part" in -*|*[./]*) break ;; esac
    case "|{"|".join(filter(None, words))}|" in
      *"|${{line:+$line }}$part|"*) line="${{line:+$line }}$part" ;;
      *) break ;;
    esac
  done
  case "$line" in
{cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _pdd pdd"""


def _fish(words: dict[str, list[str]]) -> str:
    lines = []
    for line, known in words.items():
        parts = [f"__fish_seen_subcommand_from {part}" for part in line.split()]
        when = "; and ".join(parts) or "__fish_use_subcommand"
        lines.append(f"complete -c pdd -n '{when}' -a '{' '.join(known)}'")
    return "\n".join(lines)
