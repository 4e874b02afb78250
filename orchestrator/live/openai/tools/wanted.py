"""From a request's format, tools and choice to the grammar of its answer."""

from collections.abc import Sequence

from orchestrator.live.openai.errors import ApiError
from orchestrator.live.openai.tools.grammar import (
    Function,
    answer_grammar,
    calls_rules,
    json_rule,
)
from orchestrator.live.openai.tools.schemas import NamedTool, ResponseFormat, Tool


def wanted_grammar(
    wanted: ResponseFormat | None,
    tools: Sequence[Tool] = (),
    choice: str | NamedTool = "auto",
    *,
    several: bool = True,
) -> str | None:
    """What the answer must keep to; None: nothing. `several`: calls may follow one another.

    Raises ApiError 400 naming the field that cannot be honoured.
    """
    rule = None if wanted is None else _format_rule(wanted)
    if not tools:
        if choice not in ("none", "auto"):
            raise ApiError(400, "tool_choice: needs tools", param="tool_choice")
        if rule is None:
            return None
        return answer_grammar(format_rule=rule, calls=None, must_call=False)
    only = choice.function.name if isinstance(choice, NamedTool) else None
    functions = [
        Function(f"tools[{i}]", tool.function.name, tool.function.parameters, tool.function.strict)
        for i, tool in enumerate(tools)
        if only in (None, tool.function.name)
    ]
    if not functions:
        raise ApiError(400, f"tool_choice: no tool is called {only!r}", param="tool_choice")
    must_call = choice != "auto"
    strict = any(function.strict for function in functions)
    if not must_call and several and rule is None and not strict:
        return None  # the model writes what it likes, and calls are read from it
    calls = calls_rules(functions, several=several and only is None)
    return answer_grammar(format_rule=rule, calls=calls, must_call=must_call)


def _format_rule(wanted: ResponseFormat) -> str | None:
    if wanted.json_schema is not None:
        asked = wanted.json_schema
        where = "response_format.json_schema.schema"
        return json_rule(asked.schema_, strict=asked.strict, where=where)
    if wanted.type == "json_object":
        return json_rule({"type": "object"}, strict=True, where="response_format")
    return None
