"""What every command's output has in common."""

import sys
from enum import StrEnum
from typing import Annotated

import orjson
import typer


class Format(StrEnum):
    """How a command writes its result to standard output."""

    TEXT = "text"
    JSON = "json"


FormatOption = Annotated[
    Format, typer.Option("-o", "--output", help="How the result is written to standard output.")
]


def print_json(value: object) -> None:
    """One JSON document, indented, to standard output; dataclasses and enums included."""
    print(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode())


def tell(line: str) -> None:
    """One line of what is going on, to standard error."""
    print(f"  {line}", file=sys.stderr, flush=True)
