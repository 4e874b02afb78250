"""What an answer must be like, as a grammar that the workers' engines keep to."""

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from llguidance import LLMatcher

from orchestrator.live.openai.errors import ApiError
from orchestrator.live.openai.tools.calls import CLOSE, OPEN
from workers.engines.grammar import LIMITS

MAX_GRAMMAR = 256 << 10  # characters
# One space or one line break with its indent: enough for any layout, and no endless blank.
_WHITE_SPACE = r"( |\n[ ]{0,24})?"


class Function(NamedTuple):
    """A function that may be called. `schema` None: it takes no arguments."""

    where: str  # its place in the request
    name: str
    schema: dict[str, Any] | None
    strict: bool


def json_rule(schema: dict[str, Any], *, strict: bool, where: str) -> str:
    """Text that keeps to a JSON schema, as the right side of a rule.

    `strict`: what of the schema cannot be kept to is refused, else it is only hoped for. Raises
    ApiError 400 naming `where`.
    """
    options = {"whitespace_pattern": _WHITE_SPACE, "lenient": not strict}
    rule = f"%json {json.dumps(schema | {'x-guidance': options})}"
    check(f"start: {rule}\n", where)
    return rule


def calls_rules(functions: Sequence[Function], *, several: bool) -> tuple[str, str]:
    """Rules for calls, and the name of the one for all that follows the first OPEN.

    Raises ApiError 400 naming `tools`.
    """
    rules = []
    for i, function in enumerate(functions):
        schema = function.schema
        if schema is None:
            schema = {"type": "object", "properties": {}, "additionalProperties": False}
        where = f"{function.where}.function.parameters"
        head = json.dumps(f'\n{{"name": {json.dumps(function.name)}, "arguments": ')
        rules.append(f"arguments_{i}: {json_rule(schema, strict=function.strict, where=where)}")
        rules.append(f"call_{i}: {head} arguments_{i} {json.dumps('}' + chr(10) + CLOSE)}")
    rules.append("call: " + " | ".join(f"call_{i}" for i in range(len(functions))))
    again = f" ({json.dumps(chr(10) + OPEN)} call)*" if several else ""
    return "\n".join([*rules, f"calls: call{again}"]), "calls"


def answer_grammar(
    *,
    format_rule: str | None,
    calls: tuple[str, str] | None,
    must_call: bool,
) -> str:
    """The whole grammar: a format, calls, or either. `calls` alone: text, or text and calls."""
    lines = []
    ways = []
    if calls is not None:
        rules, name = calls
        lines.append(rules)
        if must_call or format_rule is not None:
            ways.append(f"{json.dumps(OPEN)} {name}")
        else:
            lines += ["TEXT: /(.|\\n)*/", f"opening[lazy]: TEXT {json.dumps(OPEN)}", "text: TEXT"]
            ways += ["text", f"opening {name}"]
    if format_rule is not None and not must_call:
        lines.append(f"format: {format_rule}")
        ways.append("format")
    grammar = "\n".join(["start: " + " | ".join(ways), *lines]) + "\n"
    check(grammar, "tools" if calls is not None else "response_format")
    return grammar


def check(grammar: str, where: str) -> None:
    """Raises ApiError 400 naming `where` unless engines can keep to the grammar."""
    if len(grammar) > MAX_GRAMMAR:
        raise ApiError(400, f"{where}: longer than {MAX_GRAMMAR} characters", param=where)
    problem = _problem(grammar)
    if problem is not None:
        raise ApiError(400, f"{where}: cannot be kept to: {problem}", param=where)


@lru_cache(maxsize=256)
def _problem(grammar: str) -> str | None:
    failed, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=LIMITS)
    if not failed:
        return None
    # The first line, without its place in the grammar: the rest repeats the grammar.
    return re.sub(r"^at \d+\(\d+\): ", "", messages[0]).split("\n")[0][:300]
