"""Which answers the grammars of formats and tools let through."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from orchestrator.live.openai.errors import ApiError
from orchestrator.live.openai.tools.schemas import NamedTool, ResponseFormat, Tool
from orchestrator.live.openai.tools.wanted import wanted_grammar
from workers.engines.grammar import Grammars
from workers.engines.models import DEFAULT_MODEL, resolve_model

END = 2


def tool(name: str, parameters: dict[str, Any] | None = None, strict: bool = False) -> Tool:
    function = {"name": name, "strict": strict} | ({"parameters": parameters} if parameters else {})
    return Tool.model_validate({"type": "function", "function": function})


def schema(schema: dict[str, Any], strict: bool = False) -> ResponseFormat:
    asked = {"name": "s", "schema": schema, "strict": strict}
    return ResponseFormat.model_validate({"type": "json_schema", "json_schema": asked})


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


# As pydantic writes them: with definitions of its own, to which it refers from its root.
WEATHER = tool(
    "weather",
    {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/City"}},
        "required": ["city"],
        "$defs": {"City": {"type": "string"}},
    },
)
NOW = tool("now")
PERSON = schema(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    strict=True,
)
JSON = ResponseFormat(type="json_object")


@pytest.fixture(scope="module")
def fits(tokenizer: PreTrainedTokenizerFast) -> Callable[[str | None, str], bool]:
    """Whether an engine that keeps to the grammar can say the text and then end."""
    path = resolve_model(DEFAULT_MODEL) / "tokenizer.json"
    grammars = Grammars(path, len(tokenizer), (END,))

    def whether(grammar: str | None, text: str) -> bool:
        assert grammar is not None
        constraint = grammars.constraint(grammar)
        ids = [*tokenizer.encode(text, add_special_tokens=False), END]
        return all(constraint.allowed(ids[:n], 0)[id] for n, id in enumerate(ids))

    return whether


def test_a_schema(fits) -> None:
    grammar = wanted_grammar(PERSON)
    for text in (
        '{"name": "A", "age": 3}',
        '{"name":"A","age":3}',
        '{\n  "name": "A",\n  "age": 3\n}',
    ):
        assert fits(grammar, text)
    for text in (
        '{"name": "A"}',
        '{"name": "A", "age": 3, "x": 1}',
        "A",
        '{"name": "A", "age": "3"}',
    ):
        assert not fits(grammar, text)
    assert not fits(grammar, '{"name":' + " " * 40 + '"A", "age": 3}')  # no endless blank


def test_a_json_object(fits) -> None:
    grammar = wanted_grammar(JSON)
    assert fits(grammar, '{"any": [1, {"thing": null}]}')
    assert not fits(grammar, "[1]")


def test_text_asks_for_nothing() -> None:
    assert wanted_grammar(ResponseFormat(type="text")) is None
    assert wanted_grammar(None, [WEATHER, NOW], "auto") is None


def test_a_required_call(fits) -> None:
    grammar = wanted_grammar(None, [WEATHER, NOW], "required")
    assert fits(grammar, call("weather", city="Paris"))
    assert fits(grammar, call("now") + "\n" + call("weather", city="Rome"))
    for text in (
        "hello",
        call("other"),
        call("weather"),
        call("now", zone="x"),
        call("weather", city=3),
    ):
        assert not fits(grammar, text)


def test_a_named_call(fits) -> None:
    named = NamedTool.model_validate({"type": "function", "function": {"name": "now"}})
    grammar = wanted_grammar(None, [WEATHER, NOW], named)
    assert fits(grammar, call("now"))
    assert not fits(grammar, call("weather", city="Paris"))
    assert not fits(grammar, call("now") + "\n" + call("now"))


def test_one_call_at_most(fits) -> None:
    grammar = wanted_grammar(None, [WEATHER, NOW], "auto", several=False)
    assert fits(grammar, "no call, a < b")
    assert fits(grammar, "I look.\n" + call("weather", city="Paris"))
    assert not fits(grammar, call("now") + "\n" + call("now"))


def test_a_strict_tool_is_kept_to_though_it_need_not_be_called(fits) -> None:
    grammar = wanted_grammar(None, [WEATHER, tool("now", strict=True)])
    assert fits(grammar, "It is late.")
    assert fits(grammar, call("now") + "\n" + call("now"))
    assert not fits(grammar, "So: " + call("now", zone="x"))


def test_a_format_or_calls(fits) -> None:
    grammar = wanted_grammar(PERSON, [NOW])
    assert fits(grammar, '{"name": "A", "age": 3}')
    assert fits(grammar, call("now"))
    assert not fits(grammar, "hello")
    must = wanted_grammar(PERSON, [NOW], "required")
    assert fits(must, call("now"))
    assert not fits(must, '{"name": "A", "age": 3}')


@pytest.mark.parametrize("unkept", [{"not": {}}, {"type": "array", "uniqueItems": True}])
def test_what_cannot_be_kept_to_is_refused_where_it_is_strict(unkept: dict[str, Any]) -> None:
    assert wanted_grammar(schema(unkept)) is not None
    with pytest.raises(
        ApiError, match=r"schema: cannot be kept to: .*Unimplemented keys"
    ) as refused:
        wanted_grammar(schema(unkept, strict=True))
    assert refused.value.param == "response_format.json_schema.schema"
    with pytest.raises(ApiError) as refused:
        wanted_grammar(None, [NOW, tool("f", unkept, strict=True)], "required")
    assert refused.value.param == "tools[1].function.parameters"


def test_options_for_the_grammar_are_not_the_clients() -> None:
    own = schema({"not": {}, "x-guidance": {"lenient": True}}, strict=True)
    with pytest.raises(ApiError):
        wanted_grammar(own)
