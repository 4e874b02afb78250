"""Tools over HTTP: what the model is told and held to, and how its calls come back."""

import json

import openai
import pytest

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris 🗼"}}\n</tool_call>'
ARGUMENTS = '{"city": "Paris 🗼"}'


def client(gateway) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="x", max_retries=0)


def chat(gateway, **fields):
    messages = [{"role": "user", "content": "Is it warm in Paris?"}]
    asked = {"messages": messages, "model": "smollm2-135m", "tools": [TOOL]} | fields
    return client(gateway).chat.completions.create(**asked)


def test_a_call_in_a_whole_answer(gateway):
    gateway.service.says(CALL)
    (choice,) = chat(gateway).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "weather"
    assert call.function.arguments == ARGUMENTS
    assert call.id == f"call_{gateway.service.arrived[0].request}_0"


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_calls_are_streamed_name_first_and_arguments_in_pieces(gateway, size):
    gateway.service.says(f"I look.\n{CALL}\n{CALL}", groups=(size,))
    text, calls, reasons = "", {}, []
    for chunk in chat(gateway, stream=True):
        (choice,) = chunk.choices
        text += choice.delta.content or ""
        reasons.append(choice.finish_reason)
        for call in choice.delta.tool_calls or ():
            if call.id is not None:
                assert call.type == "function"
                assert call.index not in calls
                assert call.function.arguments == ""
                calls[call.index] = [call.id, call.function.name]
            else:
                assert call.function.name is None
                calls[call.index].append(call.function.arguments)
    assert text == "I look."
    assert reasons[-1] == "tool_calls"
    assert set(reasons[:-1]) == {None}
    assert [name for _, name, *_ in calls.values()] == ["weather"] * 2
    assert ["".join(pieces) for _, _, *pieces in calls.values()] == [ARGUMENTS] * 2
    assert calls[0][0] != calls[1][0]
    if size == 1:
        assert len(calls[0]) > 5


def test_the_openai_package_puts_a_streamed_call_together(gateway):
    gateway.service.says(CALL)
    messages = [{"role": "user", "content": "Is it warm in Paris?"}]
    asked = {"model": "smollm2-135m", "messages": messages, "tools": [TOOL]}
    with client(gateway).chat.completions.stream(**asked) as stream:
        whole = stream.get_final_completion()
    (call,) = whole.choices[0].message.tool_calls
    assert call.function.arguments == ARGUMENTS


def test_an_answer_without_a_call_is_text(gateway):
    gateway.service.says("It is <warm>.")
    (choice,) = chat(gateway).choices
    assert choice.finish_reason == "stop"
    assert choice.message.content == "It is <warm>."
    assert choice.message.tool_calls is None


def test_a_call_that_the_limit_cuts_is_no_finished_one(gateway):
    gateway.service.says(CALL)
    (choice,) = chat(gateway, max_tokens=18).choices
    assert choice.finish_reason == "length"
    arguments = choice.message.tool_calls[0].function.arguments
    assert ARGUMENTS.startswith(arguments)
    assert arguments != ARGUMENTS


def test_logprobs_of_all_tokens_come_with_calls(gateway, sse):
    gateway.service.says(f"Hm. {CALL}")
    wanted = {"logprobs": True, "tools": [TOOL]}
    told = gateway.chat(**wanted).json()["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(t["bytes"]) for t in told).decode() == f"Hm. {CALL}"
    chunks = [json.loads(e) for e in sse(gateway.chat(**wanted, stream=True).text)[:-1]]
    parts = [c["choices"][0]["logprobs"] for c in chunks]
    assert [t for part in parts if part for t in part["content"]] == told


def test_every_choice_has_calls_of_its_own(gateway):
    gateway.service.says(CALL)
    choices = chat(gateway, n=2).choices
    assert len({choice.message.tool_calls[0].id for choice in choices}) == 2


def test_the_prompt_tells_of_tools_unless_none_may_be_called(gateway):
    chat(gateway)
    chat(gateway, tool_choice="none")
    told, silent = (gateway.service.tokenizer.decode(a.prompt_ids) for a in gateway.service.arrived)
    assert '"name": "weather"' in told
    assert "weather" not in silent


def test_where_none_may_be_called_a_call_is_text(gateway):
    gateway.service.says(CALL)
    (choice,) = chat(gateway, tool_choice="none").choices
    assert choice.message.content == CALL
    assert choice.finish_reason == "stop"


def test_history_with_calls_and_answers_goes_to_the_model(gateway):
    gateway.service.says("It is.")
    asked = {"role": "user", "content": "Is it warm in Paris?"}
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}
    chat(
        gateway,
        messages=[
            asked,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "25 degrees"},
        ],
    )
    prompt = gateway.service.tokenizer.decode(gateway.service.arrived[0].prompt_ids)
    assert CALL in prompt
    assert "25 degrees" in prompt


@pytest.mark.parametrize(
    ("fields", "held"),
    [
        ({}, False),
        ({"tool_choice": "auto"}, False),
        ({"tool_choice": "none"}, False),
        ({"tool_choice": "required"}, True),
        ({"tool_choice": {"type": "function", "function": {"name": "weather"}}}, True),
        ({"parallel_tool_calls": False}, True),
        ({"response_format": {"type": "json_object"}}, True),
        ({"response_format": {"type": "text"}}, False),
    ],
)
def test_when_the_answer_is_held_to_a_grammar(gateway, fields, held):
    chat(gateway, **fields)
    grammar = gateway.service.arrived[0].sampling.grammar
    assert (grammar is not None) == held


def test_a_format_without_tools(gateway):
    gateway.service.says('{"a": 1}')
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    asked = {"name": "s", "schema": schema, "strict": True}
    response = gateway.chat(response_format={"type": "json_schema", "json_schema": asked})
    assert json.loads(response.json()["choices"][0]["message"]["content"]) == {"a": 1}
    gateway.complete(response_format={"type": "json_object"})
    for arrived in gateway.service.arrived:
        assert "%json" in arrived.sampling.grammar
