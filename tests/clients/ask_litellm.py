"""`litellm`: as an OpenAI-compatible and as a vLLM endpoint, and the errors it maps."""

import asyncio
from importlib.metadata import version

import litellm
from checks import LONG, MESSAGES, TOOL, WEATHER, Service, is_weather, refused, run

PROVIDERS = ("openai", "hosted_vllm")
litellm.suppress_debug_info = True  # or it tells of itself with every error
LONG_PROMPT = [{"role": "user", "content": "word " * 9000}]


def ask(service: Service, provider: str = "openai", **fields):
    usual = {"messages": MESSAGES, "max_tokens": 24, "temperature": 0, "api_key": service.key}
    model = f"{provider}/{fields.pop('model', service.model)}"
    return litellm.completion(
        model=model, api_base=service.url, num_retries=0, timeout=60, **usual | fields
    )


def chat_at_once(service: Service) -> str:
    told = []
    for provider in PROVIDERS:
        answer = ask(service, provider)
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 24
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + 24
        told.append(answer.choices[0].message.content)
    assert told[0] == told[1]
    return f"{answer.usage.total_tokens} tokens in all, by {' and '.join(PROVIDERS)}"


def chat_streamed(service: Service) -> str:
    for provider in PROVIDERS:
        chunks = list(ask(service, provider, stream=True, stream_options={"include_usage": True}))
        whole = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
        assert whole.choices[0].message.content == ask(service).choices[0].message.content
        assert whole.choices[0].finish_reason == "length"
        assert whole.usage.completion_tokens == 24
        assert whole.usage.prompt_tokens == ask(service).usage.prompt_tokens
    return f"{len(chunks)} chunks, the same text and usage as at once"


def completions(service: Service) -> str:
    fields = {"api_base": service.url, "api_key": service.key, "max_tokens": 16, "temperature": 0}
    model = f"text-completion-openai/{service.model}"
    text = litellm.text_completion(model=model, prompt="Once upon a time", **fields)
    told = text.choices[0].text
    parts = litellm.text_completion(model=model, prompt="Once upon a time", stream=True, **fields)
    assert "".join(part.choices[0].text or "" for part in parts) == told
    return "at once and streamed"


def tools(service: Service) -> str:
    asked = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 200}
    for provider in PROVIDERS:
        answer = ask(service, provider, **asked)
        assert answer.choices[0].finish_reason == "tool_calls"
        call = answer.choices[0].message.tool_calls[0]
        assert call.function.name == "weather"
        is_weather(call.function.arguments)
        chunks = list(ask(service, provider, stream=True, **asked))
        streamed = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls[0]
        assert streamed.function.arguments == call.function.arguments
    result = {"role": "tool", "tool_call_id": call.id, "content": "21 C"}
    history = [*MESSAGES, answer.choices[0].message, result]
    after = ask(service, messages=history, tools=[TOOL], tool_choice="none")
    assert after.choices[0].message.content
    return f"weather({call.function.arguments}), streamed alike, its result taken on"


def formats(service: Service) -> str:
    form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER}}
    for provider in PROVIDERS:
        answer = ask(service, provider, response_format=form, max_tokens=200)
        told = str(is_weather(answer.choices[0].message.content))
    return told


def logprobs(service: Service) -> str:
    answer = ask(service, logprobs=True, top_logprobs=2)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == 24
    assert all(len(entry.top_logprobs) == 2 for entry in entries)
    return f"{len(entries)} tokens"


def several_choices_and_stop(service: Service) -> str:
    two = ask(service, n=2, seed=7, temperature=1)
    assert len({choice.message.content for choice in two.choices}) == 2
    whole = ask(service).choices[0].message.content
    stop = whole[10:16]
    cut = ask(service, stop=[stop]).choices[0]
    assert (cut.message.content, cut.finish_reason) == (whole[: whole.index(stop)], "stop")
    return f"two texts; cut before {stop!r}"


def models(service: Service) -> str:
    names = litellm.get_valid_models(
        check_provider_endpoint=True,
        custom_llm_provider="openai",
        api_key=service.key,
        api_base=service.url,
    )
    assert f"openai/{service.model}" in names or service.model in names, names
    return ", ".join(names)


def errors(service: Service) -> str:
    wanted = [
        (litellm.AuthenticationError, {"api_key": "wrong"}),
        (litellm.NotFoundError, {"model": "gpt-4"}),
        (litellm.BadRequestError, {"temperature": 9}),
        (litellm.ContextWindowExceededError, {"messages": LONG_PROMPT}),
    ]
    for provider in PROVIDERS:
        for kind, fields in wanted:
            refused(kind, lambda p=provider, f=fields: ask(service, p, **f))
            refused(kind, lambda p=provider, f=fields: list(ask(service, p, stream=True, **f)))
    return ", ".join(kind.__name__ for kind, _ in wanted)


def four_at_once(service: Service) -> str:
    async def together() -> list[str]:
        answers = await asyncio.gather(
            *(
                litellm.acompletion(
                    model=f"openai/{service.model}",
                    api_base=service.url,
                    api_key=service.key,
                    messages=MESSAGES,
                    max_tokens=24,
                    seed=seed,
                )
                for seed in range(4)
            )
        )
        return [answer.choices[0].message.content for answer in answers]

    texts = asyncio.run(together())
    assert len(set(texts)) == 4
    alone = ask(service, seed=3, temperature=1).choices[0].message.content
    assert alone == texts[3]
    return "each as it is alone"


def leaving(service: Service) -> str:
    async def ask_and_leave() -> None:
        stream = await litellm.acompletion(
            model=f"openai/{service.model}",
            api_base=service.url,
            api_key=service.key,
            messages=MESSAGES,
            max_tokens=LONG,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        await anext(stream)
        assert service.open_requests() == 1
        await stream.aclose()

    asyncio.run(ask_and_leave())
    return service.left()


if __name__ == "__main__":
    run(
        version("litellm"),
        [
            models,
            chat_at_once,
            chat_streamed,
            completions,
            tools,
            formats,
            logprobs,
            several_choices_and_stop,
            errors,
            four_at_once,
            leaving,
        ],
    )
