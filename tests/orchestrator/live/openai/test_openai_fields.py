"""Echo, biases, usage in every chunk, and the endpoints about tokens."""

import json

import pytest


def test_biases_reach_the_workers(gateway):
    gateway.chat(logit_bias={"50": -100, "7": 2.5})
    gateway.complete(logit_bias={"3": 1})
    first, second = (a.sampling.logit_bias for a in gateway.service.arrived)
    assert first == ((7, 2.5), (50, -100.0))
    assert second == ((3, 1.0),)


def test_priority_reaches_the_queue_for_every_choice(gateway):
    gateway.chat(priority=-3, n=2)
    gateway.complete()
    assert [a.priority for a in gateway.service.arrived] == [-3, -3, 0]


# ---------------------------------------------------------------- echo


def test_echo_stands_before_each_prompts_own_answer(gateway):
    gateway.service.says(" end.")
    told = gateway.complete(prompt=["One <|im_end|>", "Two"], n=2, echo=True).json()
    texts = [choice["text"] for choice in told["choices"]]
    assert texts == ["One <|im_end|> end."] * 2 + ["Two end."] * 2
    assert told["usage"]["completion_tokens"] == 4 * len(gateway.service.script.ids)


def test_echo_of_token_ids_is_their_text(gateway):
    ids = list(gateway.service.text("Grüße 🗼 "))
    gateway.service.says("an alle")
    assert (
        gateway.complete(prompt=ids, echo=True).json()["choices"][0]["text"] == "Grüße 🗼 an alle"
    )


@pytest.mark.parametrize("text", ["Paris.", ""])
def test_echo_is_streamed_once_and_first(gateway, sse, text):
    gateway.service.says(text)
    *frames, _ = sse(gateway.complete(prompt="In France: ", echo=True, stream=True).text)
    texts = [json.loads(frame)["choices"][0]["text"] for frame in frames]
    assert texts[0].startswith("In France: ")
    assert "".join(texts) == "In France: " + text


def test_echo_is_no_part_of_what_stop_strings_see(gateway):
    gateway.service.says("a stop b")
    told = gateway.complete(prompt="a stop: ", echo=True, stop=["stop"]).json()
    assert told["choices"][0]["text"] == "a stop: a "


# ---------------------------------------------------------------- usage


@pytest.mark.parametrize("path", ["chat", "complete"])
def test_usage_in_every_chunk(gateway, sse, path):
    gateway.service.says("one two three four", groups=(2, 1))
    ask = getattr(gateway, path)
    options = {"include_usage": True, "continuous_usage_stats": True}
    *frames, _ = sse(ask(stream=True, stream_options=options).text)
    usages = [json.loads(frame)["usage"] for frame in frames]
    counts = [usage["completion_tokens"] for usage in usages]
    if path == "chat":
        assert counts[0] == 0  # the role
    assert counts == sorted(counts)
    assert counts[-1] == len(gateway.service.script.ids)
    prompt = usages[-1]["prompt_tokens"]
    assert all(u["total_tokens"] == prompt + u["completion_tokens"] for u in usages)
    assert json.loads(frames[-1])["choices"] == []


def test_usage_in_every_chunk_counts_all_choices(gateway, sse):
    gateway.service.says("one two")
    options = {"continuous_usage_stats": True}
    *frames, _ = sse(gateway.chat(stream=True, n=2, stream_options=options).text)
    told = json.loads(frames[-1])["usage"]["completion_tokens"]
    assert told == 2 * len(gateway.service.script.ids)


def test_a_text_that_looks_like_the_end_of_a_chunk_stays_a_text(gateway, sse):
    text = '],"usage":null}\n\n'
    gateway.service.says(text)
    options = {"include_usage": True, "continuous_usage_stats": True}
    *frames, _ = sse(gateway.complete(stream=True, stream_options=options).text)
    choices = [json.loads(frame)["choices"] for frame in frames]
    assert "".join(c[0]["text"] for c in choices if c) == text


# ---------------------------------------------------------------- tokens


def post(gateway, path, **body):
    return gateway.http.post(path, json=body)


def test_a_text_becomes_tokens_and_a_text_again(gateway):
    text = "Grüße 🗼<|im_end|>"
    told = post(gateway, "/tokenize", model="smollm2-135m", prompt=text).json()
    assert told["tokens"] == gateway.service.tokenizer.encode(text)
    assert told["count"] == len(told["tokens"])
    assert told["max_model_len"] == gateway.service.model.max_context
    assert told["token_strs"] is None
    assert post(gateway, "/detokenize", tokens=told["tokens"]).json() == {"prompt": text}


def test_tokens_in_their_own_words(gateway):
    told = post(gateway, "/tokenize", prompt="a b", return_token_strs=True).json()
    assert told["token_strs"] == gateway.service.tokenizer.convert_ids_to_tokens(told["tokens"])


def test_a_chat_becomes_the_tokens_that_its_answer_begins_from(gateway):
    messages = [{"role": "user", "content": "Hi"}]
    told = post(gateway, "/tokenize", messages=messages).json()
    gateway.chat(messages=messages)
    assert told["tokens"] == list(gateway.service.arrived[0].prompt_ids)
    bare = post(gateway, "/tokenize", messages=messages, add_generation_prompt=False).json()
    assert told["tokens"][: bare["count"]] == bare["tokens"]
    assert bare["count"] < told["count"]


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, ""),
        ("/tokenize", {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, 400, ""),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"prompt": "x", "add_tokens": True}, 400, "add_tokens"),
        ("/tokenize", {"prompt": "x", "model": "other"}, 404, "model"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, 400, "tokens"),
        ("/detokenize", {"tokens": [49152]}, 400, "tokens"),
        ("/detokenize", {"tokens": [], "model": "other"}, 404, "model"),
    ],
)
def test_what_the_endpoints_about_tokens_refuse(gateway, path, body, status, param):
    response = gateway.http.post(path, json=body)
    assert response.status_code == status
    assert response.json()["error"]["param"] == param


def test_no_tokens_are_no_text(gateway):
    assert post(gateway, "/tokenize", prompt="").json()["count"] == 0
    assert post(gateway, "/detokenize", tokens=[]).json() == {"prompt": ""}
