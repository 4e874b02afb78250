"""Bodies of clients' requests, from bytes to what the core would be told."""

import functools
import itertools
import random
from collections.abc import Callable
from typing import Any

import orjson

from benchmarks.fuzz.campaign import Refusal
from benchmarks.fuzz.mutate import json_like
from orchestrator.live.gateway import load_tokenizer, read_card
from orchestrator.live.openai.app import parse_body
from orchestrator.live.openai.errors import ApiError
from orchestrator.live.openai.intake import Intake, Prepared
from orchestrator.live.openai.template import ChatTemplate
from orchestrator.live.openai.vocabulary import Vocabulary
from workers.engines.models import DEFAULT_MODEL, resolve_model

USER = {"role": "user", "content": "Why is the sky blue?"}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "of a town",
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
            "required": ["town"],
        },
    },
}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "s",
        "schema": {"type": "object", "properties": {"a": {"type": "array", "items": {}}}},
    },
}
CORPUS: list[Any] = [
    {"model": DEFAULT_MODEL, "messages": [USER], "stream": True},
    {
        "model": DEFAULT_MODEL,
        "messages": [{"role": "system", "content": "Be brief."}, USER],
        "max_completion_tokens": 16,
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": 7,
        "stop": ["\n", "."],
        "n": 2,
        "logprobs": True,
        "top_logprobs": 3,
        "logit_bias": {"17": -5.5},
        "stream_options": {"include_usage": True},
        "presence_penalty": 0.1,
        "user": "u",
    },
    {
        "model": DEFAULT_MODEL,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        ],
        "tools": [TOOL],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    },
    {"model": DEFAULT_MODEL, "messages": [USER], "response_format": SCHEMA},
    {"model": DEFAULT_MODEL, "messages": [USER], "response_format": {"type": "json_object"}},
    {"model": DEFAULT_MODEL, "prompt": "Once upon a time", "max_tokens": 8, "echo": True},
    {
        "model": DEFAULT_MODEL,
        "prompt": [[1, 2, 3], [4, 5]],
        "logprobs": 2,
        "min_tokens": 1,
        "ignore_eos": True,
        "pdd_route": "relay",
        "pdd_handoff": "one-shot",
        "pdd_weight": 2.5,
        "cache_salt": "s",
        "priority": -1,
    },
    {"model": DEFAULT_MODEL, "prompt": "x", "pdd_timings": True, "pdd_margins": True},
    {"prompt": "a text", "return_token_strs": True},
    {"messages": [USER], "add_generation_prompt": False},
    {"model": DEFAULT_MODEL, "tokens": [1, 2, 3]},
]


@functools.cache
def _intake() -> Intake:
    """Of the default model: its own tokenizer and template."""
    directory = resolve_model(DEFAULT_MODEL)
    tokenizer = load_tokenizer(DEFAULT_MODEL, directory)
    card = read_card(DEFAULT_MODEL, directory)
    return Intake(card, Vocabulary(tokenizer, card.stop_ids), ChatTemplate(tokenizer))


class Bodies:
    """Each body goes to one of the endpoints, as its route would read it."""

    def __init__(self) -> None:
        intake = _intake()
        self._numbers = itertools.count()
        self._seed = 0
        self._ways: list[Callable[[Any], Any]] = [
            lambda body: self._planned(intake.chat(body)),
            lambda body: self._planned(intake.chat(body)),
            lambda body: self._planned(intake.completion(body)),
            intake.tokenize,
            intake.detokenize,
        ]
        self._way = self._ways[0]

    def input(self, rng: random.Random) -> bytes:
        self._way = rng.choice(self._ways)
        self._seed = rng.getrandbits(63)
        return json_like(rng, CORPUS)

    def feed(self, data: bytes) -> None:
        try:
            answer = self._way(parse_body(data))
        except ApiError as error:
            error.body()
            if error.status not in (400, 404):
                raise AssertionError(f"status {error.status}") from error
            raise Refusal(f"{error.status}", error.message) from error
        if isinstance(answer, dict):
            orjson.dumps(answer)

    def _planned(self, prepared: Prepared) -> None:
        plan = _intake().plan(
            prepared,
            {},
            tenant="default",
            new_request_id=lambda: f"req-{next(self._numbers)}",
            draw_seed=lambda: self._seed,
        )
        assert plan.arrivals
