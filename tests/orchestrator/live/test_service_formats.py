"""Formats, tools and shared prompts through the real service, its engines simulated."""

import json
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from benchmarks.service import Served, serving
from tests.orchestrator.live.live_service import SECRET
from workers.service.config import SECRET_ENV

pytestmark = pytest.mark.timeout(300)

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
ASKED = [{"role": "user", "content": "How warm is it? " * 2}]


@pytest.fixture(scope="module")
def simulated(root: Path) -> Iterator[Served]:
    topology = root / "configs" / "topologies" / "laptop-simulated.yaml"
    with serving(topology, environment={SECRET_ENV: SECRET}) as service:
        yield service


@pytest.fixture
def client(simulated: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=simulated.url, api_key="x", max_retries=0, timeout=90) as client:
        yield client


def test_a_schema_is_kept_to_and_the_route_does_not_matter(
    simulated: Served, client: openai.OpenAI
) -> None:
    """The relay begins the object; main may end it."""
    asked = {"name": "weather", "schema": WEATHER, "strict": True}
    answers, told = {}, {}
    for route in ("relay", "local", "direct"):  # first the one that nothing cached makes short
        answer = client.chat.completions.create(
            model=simulated.model,
            messages=ASKED,
            response_format={"type": "json_schema", "json_schema": asked},
            max_tokens=200,
            seed=3,
            extra_body={"pdd_route": route, "pdd_timings": True},
        )
        (choice,) = answer.choices
        assert choice.finish_reason == "stop"
        answers[route], told[route] = choice.message.content, answer.model_extra["pdd"]
    value = json.loads(answers["relay"])
    assert value.keys() == {"city", "unit"}
    assert value["unit"] in {"C", "F"}
    assert len(set(answers.values())) == 1
    assert told["relay"]["relay_tokens"] > 0


def test_a_required_call_is_streamed(simulated: Served, client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=simulated.model,
        messages=ASKED,
        tools=[{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=200,
    ) as stream:
        (choice,) = stream.get_final_completion().choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments).keys() == {"city", "unit"}


def test_the_second_time_a_prompt_is_cached(simulated: Served, client: openai.OpenAI) -> None:
    usages = [
        client.completions.create(
            model=simulated.model,
            prompt=list(range(100, 200)),
            max_tokens=4,
            n=n,
            extra_body={"pdd_route": "local"},
        ).usage
        for n in (2, 1)
    ]
    assert [u.prompt_tokens_details.cached_tokens for u in usages] == [0, 96]
