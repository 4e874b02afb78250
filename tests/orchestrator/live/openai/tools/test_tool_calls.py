"""Calls are told from text, whatever the pieces."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.live.openai.tools.calls import CallDelta, CallReader, merged


def call(name: str, arguments: dict, dump=json.dumps) -> str:
    return f"<tool_call>\n{dump({'name': name, 'arguments': arguments})}\n</tool_call>"


def backwards(value: dict) -> str:
    return json.dumps(dict(reversed(value.items())))


def read(pieces: list[str]) -> tuple[str, list[CallDelta]]:
    reader = CallReader("r")
    said = [*map(reader.push, pieces), reader.finish()]
    return "".join(s.text for s in said), [c for s in said for c in s.calls]


def told(pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    text, deltas = read(pieces)
    calls = [c["function"] for c in merged(deltas)]
    return text, [(c["name"], c["arguments"]) for c in calls]


WEATHER = {"city": 'P"ar{is}', "days": [1, {"a": "]"}], "quote": '\\\\"'}
CASES = {
    "plain text": ("a < b, <tool_calx>", "a < b, <tool_calx>", []),
    "a call": (call("f", WEATHER), "", [("f", json.dumps(WEATHER))]),
    "text before it": ("Let me see.\n\n" + call("f", {}), "Let me see.", [("f", "{}")]),
    "two": (
        call("f", {"a": 1}) + "\n" + call("g", {"b": {}}) + "\n",
        "",
        [("f", '{"a": 1}'), ("g", '{"b": {}}')],
    ),
    "text after it": (call("f", {}) + "\nDone.", "\nDone.", [("f", "{}")]),
    "arguments first": (call("f", WEATHER, backwards), "", [("f", json.dumps(WEATHER))]),
    "no line breaks": (
        '<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>',
        "",
        [("f", '{"a":1}')],
    ),
    "no arguments": ('<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    "no end": ('<tool_call>{"name": "f", "arguments": {"a": 1}}', "", [("f", '{"a": 1}')]),
    "cut off": ('<tool_call>{"name": "f", "arguments": {"a": "lon', "", [("f", '{"a": "lon')]),
    "cut before": ('<tool_call>{"name": "f", "arg', '<tool_call>{"name": "f", "arg', []),
    "no JSON": ("<tool_call>f(1)</tool_call>!", "<tool_call>f(1)</tool_call>!", []),
    "no name": ('<tool_call>{"a": 1}</tool_call>', '<tool_call>{"a": 1}</tool_call>', []),
    "begun": ("text <tool_", "text <tool_", []),
}


@pytest.mark.parametrize("case", CASES)
def test_calls_and_text(case: str) -> None:
    text, said, calls = CASES[case]
    assert told([text]) == (said, calls)
    assert told(list(text)) == (said, calls)


@settings(max_examples=300, deadline=None)
@given(case=st.sampled_from(sorted(CASES)), cuts=st.lists(st.integers(0, 120), max_size=12))
def test_the_pieces_do_not_matter(case: str, cuts: list[int]) -> None:
    text, said, calls = CASES[case]
    edges = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    assert told(pieces) == (said, calls)


def test_a_call_begins_with_its_id_and_name_and_goes_on_with_arguments() -> None:
    """Before the call has ended, and each call under an id of its own."""
    reader = CallReader("r7")
    assert reader.push('Hm. <tool_call>{"name": "f", ') == ("Hm.", ())
    (head,) = reader.push('"arguments": ').calls or reader.push("{").calls[:1]
    assert head == CallDelta(index=0, id="call_r7_0", name="f")
    assert [c.arguments for c in reader.push('"a": ').calls] == ['"a": ']
    assert [c.arguments for c in reader.push("1}}</tool_call>").calls] == ["1}"]
    more = reader.push('\n<tool_call>{"name": "g", "arguments": {}}').calls
    assert [(c.index, c.id, c.name) for c in more] == [(1, "call_r7_1", "g"), (1, None, None)]
    assert reader.count == 2


def test_text_is_not_held_back_without_need() -> None:
    reader = CallReader("r")
    assert reader.push("Hello") == ("Hello", ())
    assert reader.push(" world <") == (" world", ())
    assert reader.push("b>") == (" <b>", ())
