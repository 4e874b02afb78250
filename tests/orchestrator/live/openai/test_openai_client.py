"""The official client against a real server."""

import asyncio

import openai
import pytest

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def client(gateway):
    with openai.OpenAI(base_url=gateway.url + "/v1", api_key="any", max_retries=0) as made:
        yield made


def test_chat(gateway, client):
    gateway.service.says("Paris, of course.")
    answer = client.chat.completions.create(model="smollm2-135m", messages=MESSAGES)
    assert answer.choices[0].message.content == "Paris, of course."
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    (arrived,) = gateway.service.arrived
    prompt = gateway.service.tokenizer.apply_chat_template(
        MESSAGES, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert list(arrived.prompt_ids) == prompt
    tokens = len(gateway.service.script.ids)
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.completion_tokens == tokens
    assert answer.usage.total_tokens == len(prompt) + tokens


def test_chat_streamed(gateway, client):
    gateway.service.says("Paris, of course.")
    stream = client.chat.completions.create(
        model="smollm2-135m",
        messages=MESSAGES,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({c.id for c in chunks}) == 1
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "Paris, of course."
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len(gateway.service.script.ids)


def test_completion(gateway, client):
    gateway.service.says(" there was a king.")
    answer = client.completions.create(model="smollm2-135m", prompt="Once upon a time")
    assert answer.choices[0].text == " there was a king."
    assert gateway.service.arrived[0].prompt_ids == gateway.service.text("Once upon a time")


def test_completion_streamed(gateway, client):
    gateway.service.says(" there was a king.")
    stream = client.completions.create(
        model="smollm2-135m", prompt="Once upon a time", stream=True, max_tokens=3
    )
    chunks = list(stream)
    assert "".join(c.choices[0].text for c in chunks) == " there was a"
    assert chunks[-1].choices[0].finish_reason == "length"


def test_models(client):
    assert [m.id for m in client.models.list()] == ["smollm2-135m"]
    assert client.models.retrieve("smollm2-135m").created == 1_700_000_000
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_sixteen_streams_at_once(gateway):
    text = "Paris is the capital, 巴黎是首都, and 👩‍🚀 agree."
    gateway.service.says(text, groups=(1, 3, 2))

    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="any") as client:

            async def one(stream: bool) -> str:
                made = await client.completions.create(
                    model="smollm2-135m", prompt="x", stream=stream
                )
                if not stream:
                    return made.choices[0].text
                return "".join([chunk.choices[0].text async for chunk in made])

            return await asyncio.gather(*(one(i % 4 > 0) for i in range(16)))

    assert asyncio.run(run()) == [text] * 16
    assert len({a.request for a in gateway.service.arrived}) == 16
