"""The `openai` Python package: everything it offers for a text model, sync and async."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import openai
from checks import LONG, MESSAGES, TOOL, WEATHER, Service, is_weather, refused, run, until

SCHEMA = {"name": "weather", "schema": WEATHER, "strict": True}


@contextmanager
def client(service: Service, **options) -> Iterator[openai.OpenAI]:
    options = {"api_key": service.key, "max_retries": 0, "timeout": 60} | options
    with openai.OpenAI(base_url=service.url, **options) as made:
        yield made


def chat(service: Service, **fields):
    fields = {"messages": MESSAGES, "max_tokens": 24, "temperature": 0} | fields
    with client(service) as made:
        answer = made.chat.completions.create(model=service.model, **fields)
        return list(answer) if fields.get("stream") else answer


def complete(service: Service, **fields):
    fields = {"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0} | fields
    with client(service) as made:
        answer = made.completions.create(model=service.model, **fields)
        return list(answer) if fields.get("stream") else answer


def told(chunks, index: int = 0) -> str:
    return "".join(
        choice.delta.content or ""
        for chunk in chunks
        for choice in chunk.choices
        if choice.index == index
    )


def models(service: Service) -> str:
    with client(service) as made:
        names = [model.id for model in made.models.list()]
        assert names == [service.model], names
        card = made.models.retrieve(service.model)
    assert (card.object, card.id) == ("model", service.model)
    return ", ".join(names)


def chat_at_once(service: Service) -> str:
    answer = chat(service)
    (choice,) = answer.choices
    assert (choice.message.role, choice.finish_reason) == ("assistant", "length")
    assert choice.message.content.strip()
    assert choice.message.tool_calls is None
    usage = answer.usage
    assert usage.completion_tokens == 24
    assert usage.total_tokens == usage.prompt_tokens + 24
    assert 0 <= usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens
    assert answer._request_id
    return f"{usage.prompt_tokens} + {usage.completion_tokens} tokens"


def chat_streamed(service: Service) -> str:
    chunks = chat(service, stream=True, stream_options={"include_usage": True})
    first, *_, last = chunks
    assert first.choices[0].delta.role == "assistant"
    assert last.choices == []
    assert last.usage.completion_tokens == 24
    assert all(chunk.usage is None for chunk in chunks[:-1])
    reasons = [chunk.choices[0].finish_reason for chunk in chunks[:-1]]
    assert reasons == [None] * (len(reasons) - 1) + ["length"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert told(chunks) == chat(service).choices[0].message.content, "streaming says otherwise"
    return f"{len(chunks)} chunks, the same text as at once"


def several_choices(service: Service) -> str:
    fields = {"n": 2, "seed": 7, "temperature": 1.0}
    chunks = chat(service, stream=True, stream_options={"include_usage": True}, **fields)
    texts = [told(chunks, index) for index in range(2)]
    at_once = chat(service, **fields)
    assert [choice.message.content for choice in at_once.choices] == texts
    assert texts[0] != texts[1]
    assert chunks[-1].usage.completion_tokens == at_once.usage.completion_tokens == 48
    assert chunks[-1].usage.prompt_tokens == at_once.usage.prompt_tokens
    return "two texts, usage 48 for both, streamed as at once"


def stop_strings(service: Service) -> str:
    whole = chat(service).choices[0].message.content
    stop = whole[len(whole) // 3 :][:9]
    cut = whole[: whole.index(stop)]
    for stops in (stop, [stop, stop[:-1] + "\0", "\1", "\2"]):
        chunks = chat(service, stream=True, stop=stops)
        assert told(chunks) == cut, (told(chunks), stop)
        assert chunks[-1].choices[0].finish_reason == "stop"
    return f"cut before {stop!r}"


def completions(service: Service) -> str:
    text = complete(service).choices[0].text
    chunks = complete(service, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == text
    echoed = complete(service, echo=True).choices[0].text
    assert echoed == "Once upon a time" + text
    several = complete(service, prompt=["Once upon a time", "Twice upon a time"], n=2)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert several.choices[0].text == text
    ids = complete(service, prompt=[[100, 101, 102], [103, 104]])
    assert len(ids.choices) == 2
    assert ids.usage.prompt_tokens == 5
    return "one prompt, two, token ids, echo, streamed"


def log_probabilities(service: Service) -> str:
    (choice,) = chat(service, logprobs=True, top_logprobs=3).choices
    entries = choice.logprobs.content
    spelt = bytes(byte for entry in entries for byte in entry.bytes)
    assert spelt.decode(errors="replace") == choice.message.content
    for entry in entries:
        assert entry.logprob <= 0
        values = [top.logprob for top in entry.top_logprobs]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
    chunks = chat(service, logprobs=True, top_logprobs=3, stream=True)
    streamed = [
        entry
        for chunk in chunks
        for part in chunk.choices
        if part.logprobs
        for entry in part.logprobs.content
    ]
    assert [entry.token for entry in streamed] == [entry.token for entry in entries]
    old = complete(service, logprobs=2).choices[0].logprobs
    assert len(old.tokens) == len(old.token_logprobs) == len(old.text_offset) == 16
    assert {len(top) for top in old.top_logprobs} <= {1, 2}, "two tokens may be spelt alike"
    return f"{len(entries)} tokens with three alternatives, streamed alike"


def tools(service: Service) -> str:
    asked = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    (choice,) = chat(service, max_tokens=200, **asked).choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "weather")
    value = is_weather(call.function.arguments)
    history = [
        *MESSAGES,
        choice.message,
        {"role": "tool", "tool_call_id": call.id, "content": "21 C"},
    ]
    after = chat(service, messages=history, tools=[TOOL], tool_choice="none")
    assert after.choices[0].message.content
    assert after.usage.prompt_tokens > chat(service).usage.prompt_tokens
    return f"{call.function.name}({value}), its result taken on"


def tools_streamed(service: Service) -> str:
    with (
        client(service) as made,
        made.chat.completions.stream(
            model=service.model,
            messages=MESSAGES,
            tools=[TOOL],
            tool_choice={"type": "function", "function": {"name": "weather"}},
            parallel_tool_calls=False,
            max_tokens=200,
        ) as stream,
    ):
        kinds = [event.type for event in stream]
        (choice,) = stream.get_final_completion().choices
    assert choice.finish_reason == "tool_calls"
    is_weather(choice.message.tool_calls[0].function.arguments)
    deltas = kinds.count("tool_calls.function.arguments.delta")
    assert deltas > 1, kinds
    assert "tool_calls.function.arguments.done" in kinds
    assert chat(service, tools=[]).choices[0].message.content == (
        chat(service).choices[0].message.content
    ), "no tools are no tools"
    return f"arguments in {deltas} pieces"


def formats(service: Service) -> str:
    schema = {"type": "json_schema", "json_schema": SCHEMA}
    (choice,) = chat(service, response_format=schema, max_tokens=200).choices
    assert choice.finish_reason == "stop"
    value = is_weather(choice.message.content)
    assert told(chat(service, response_format=schema, max_tokens=200, stream=True)) == (
        choice.message.content
    )
    return f"{value}, streamed alike"


def errors(service: Service) -> str:
    bad, unknown = openai.BadRequestError, openai.NotFoundError
    long = [{"role": "user", "content": "word " * 9000}]
    with client(service) as made, client(service, api_key="wrong") as stranger:
        wanted = [
            (openai.AuthenticationError, "invalid_api_key", None, stranger.models.list),
            (unknown, "model_not_found", "model", lambda: made.models.retrieve("gpt-4")),
            (
                unknown,
                "model_not_found",
                "model",
                lambda: made.chat.completions.create(model="gpt-4", messages=MESSAGES),
            ),
            (bad, None, "temperature", lambda: chat(service, temperature=9)),
            (bad, None, "temperature", lambda: chat(service, temperature=9, stream=True)),
            (bad, None, "stop", lambda: chat(service, stop=["a"] * 5)),
            (bad, None, "stop", lambda: complete(service, stop=["a"] * 5, stream=True)),
            (bad, "context_length_exceeded", "messages", lambda: chat(service, messages=long)),
            (bad, "unsupported_parameter", "suffix", lambda: complete(service, suffix="end")),
            (
                bad,
                "unknown_parameter",
                "colour",
                lambda: chat(service, extra_body={"colour": "red"}),
            ),
        ]
        errors = []
        for kind, code, param, ask in wanted:
            error = refused(kind, ask)
            assert (error.code, error.param) == (code, param), error
            assert error.request_id
            errors.append(f"{error.status_code} {kind.__name__}")
    return f"{len(errors)} refusals: " + ", ".join(sorted(set(errors)))


def leaving_a_stream(service: Service) -> str:
    with client(service) as made:
        stream = made.chat.completions.create(
            model=service.model,
            messages=MESSAGES,
            max_tokens=LONG,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(iter(stream))
        assert service.open_requests() == 1
        stream.close()
        return service.left()


def a_clients_own_timeout(service: Service) -> str:
    with client(service, timeout=2.0) as made:
        refused(
            openai.APITimeoutError,
            lambda: made.chat.completions.create(
                model=service.model,
                messages=MESSAGES,
                max_tokens=LONG,
                extra_body={"ignore_eos": True},
            ),
        )
    return service.left()


def eight_at_once(service: Service) -> str:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=service.url, api_key=service.key) as made:

            async def one(seed: int) -> str:
                stream = await made.chat.completions.create(
                    model=service.model, messages=MESSAGES, max_tokens=24, seed=seed, stream=True
                )
                return "".join([c.choices[0].delta.content or "" async for c in stream])

            return await asyncio.gather(*map(one, range(8)))

    texts = asyncio.run(ask())
    assert len(set(texts)) == 8
    for seed in (0, 7):
        alone = chat(service, seed=seed, temperature=1.0).choices[0].message.content
        assert texts[seed] == alone, "company changes an answer"
    until(lambda: service.open_requests() == 0, "no request is open")
    return "eight streams, each as it is alone"


if __name__ == "__main__":
    run(
        openai.__version__,
        [
            models,
            chat_at_once,
            chat_streamed,
            several_choices,
            stop_strings,
            completions,
            log_probabilities,
            tools,
            tools_streamed,
            formats,
            errors,
            leaving_a_stream,
            a_clients_own_timeout,
            eight_at_once,
        ],
    )
