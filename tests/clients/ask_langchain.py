"""`langchain-openai`: its chat model, its completion model, agents' tools and structured output."""

import asyncio
from functools import partial
from importlib.metadata import version

import openai
from checks import LONG, MESSAGES, TOOL, WEATHER, Service, is_weather, refused, run
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI

ASKED = [HumanMessage(MESSAGES[0]["content"])]


def chat_model(service: Service, **options) -> ChatOpenAI:
    usual = {"api_key": service.key, "model": service.model, "temperature": 0, "max_tokens": 24}
    return ChatOpenAI(base_url=service.url, max_retries=0, **usual | options)


def invoke(service: Service) -> str:
    answer = chat_model(service).invoke(ASKED)
    assert answer.content.strip()
    assert answer.response_metadata["finish_reason"] == "length"
    assert answer.response_metadata["model_name"] == service.model
    assert answer.usage_metadata["output_tokens"] == 24
    assert answer.usage_metadata["input_token_details"].keys() == {"cache_read"}
    return f"{answer.usage_metadata['total_tokens']} tokens in all"


def stream(service: Service) -> str:
    parts = list(chat_model(service, stream_usage=True).stream(ASKED))
    whole = parts[0]
    for part in parts[1:]:
        whole += part
    assert whole.content == chat_model(service).invoke(ASKED).content
    assert whole.usage_metadata["output_tokens"] == 24
    assert whole.response_metadata["finish_reason"] == "length"
    return f"{len(parts)} parts, the same text, usage at the end"


def batch(service: Service) -> str:
    questions = [[HumanMessage(f"What is {n} and {n}?")] for n in range(4)]
    together = [answer.content for answer in chat_model(service).batch(questions)]
    alone = [chat_model(service).invoke(question).content for question in questions]
    assert together == alone
    return "four at once, each as it is alone"


def completions(service: Service) -> str:
    model = OpenAI(
        base_url=service.url,
        api_key=service.key,
        model=service.model,
        max_retries=0,
        temperature=0,
        max_tokens=16,
    )
    text = model.invoke("Once upon a time")
    assert text
    assert "".join(model.stream("Once upon a time")) == text
    several = model.generate(["Once upon a time", "Twice upon a time"])
    assert several.generations[0][0].text == text
    assert several.llm_output["token_usage"]["completion_tokens"] == 32
    return "invoke, stream, two prompts in one request"


def tools(service: Service) -> str:
    model = chat_model(service, max_tokens=200)
    bound = model.bind_tools([TOOL], tool_choice="weather", parallel_tool_calls=False)
    answer = bound.invoke(ASKED)
    (call,) = answer.tool_calls
    assert call["name"] == "weather"
    assert not answer.invalid_tool_calls
    whole = None
    for part in bound.stream(ASKED):
        whole = part if whole is None else whole + part
    assert [call["args"] for call in whole.tool_calls] == [call["args"]]
    history = [*ASKED, answer, ToolMessage("21 C", tool_call_id=call["id"])]
    after = model.bind_tools([TOOL], tool_choice="none").invoke(history)
    assert after.content
    return f"weather({call['args']}), streamed alike, its result taken on"


def structured_output(service: Service) -> str:
    schema = {"title": "weather", "description": "The weather now.", **WEATHER}
    told = {}
    for method in ("json_schema", "function_calling"):
        model = chat_model(service, max_tokens=200)
        told[method] = model.with_structured_output(schema, method=method).invoke(ASKED)
        assert told[method].keys() == {"city", "unit"}
    strict = chat_model(service, max_tokens=200).with_structured_output(
        schema, method="json_schema", strict=True, include_raw=True
    )
    is_weather(strict.invoke(ASKED)["raw"].content)
    return str(told)


def logprobs(service: Service) -> str:
    answer = chat_model(service, logprobs=True, top_logprobs=2).invoke(ASKED)
    entries = answer.response_metadata["logprobs"]["content"]
    assert len(entries) == 24
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    return f"{len(entries)} tokens"


def several_choices_and_stop(service: Service) -> str:
    model = chat_model(service, n=2, temperature=1, seed=7)
    (texts,) = model.generate([ASKED]).generations
    assert len({choice.text for choice in texts}) == 2
    whole = chat_model(service).invoke(ASKED).content
    stop = whole[10:16]
    cut = chat_model(service).invoke(ASKED, stop=[stop])
    assert cut.content == whole[: whole.index(stop)]
    assert cut.response_metadata["finish_reason"] == "stop"
    return f"two texts; cut before {stop!r}"


def errors(service: Service) -> str:
    wanted = [
        (openai.AuthenticationError, {"api_key": "wrong"}, ASKED),
        (openai.NotFoundError, {"model": "gpt-4"}, ASKED),
        (openai.BadRequestError, {"temperature": 9}, ASKED),
        (openai.BadRequestError, {}, [HumanMessage("word " * 9000)]),
    ]
    for kind, options, messages in wanted:
        model = chat_model(service, **options)
        refused(kind, partial(model.invoke, messages))
        refused(kind, lambda ask=model.stream, messages=messages: list(ask(messages)))
    return ", ".join(sorted({kind.__name__ for kind, *_ in wanted}))


def leaving(service: Service) -> str:
    async def ask() -> None:
        model = chat_model(service, max_tokens=LONG, extra_body={"ignore_eos": True})
        parts = model.astream(ASKED)
        await anext(parts)
        assert service.open_requests() == 1
        await parts.aclose()

    asyncio.run(ask())
    return service.left()


if __name__ == "__main__":
    run(
        version("langchain-openai"),
        [
            invoke,
            stream,
            batch,
            completions,
            tools,
            structured_output,
            logprobs,
            several_choices_and_stop,
            errors,
            leaving,
        ],
    )
