"""Routes beside the answers, keys, readiness, and what reaches the core."""

from contextlib import suppress

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.live.openai.border.door import Door
from orchestrator.live.openai.errors import ApiError
from orchestrator.live.openai.schemas import ChatRequest, CompletionRequest, read
from orchestrator.state.events import HandoffMode, Route
from workers.api.messages import Sampling


def test_models_health_ready_status_metrics(gateway):
    models = gateway.get("/v1/models").json()
    assert models["object"] == "list"
    assert models["data"][0]["id"] == "smollm2-135m"
    assert models["data"][0]["max_model_len"] == 1024
    assert gateway.get("/health").json() == {"status": "ok"}
    assert gateway.get("/ready").json() == {"status": "ready"}
    assert gateway.get("/status").json() == {"model": "smollm2-135m", "open": 0}
    assert "# TYPE pdd_ttft_seconds histogram" in gateway.get("/metrics").text


def test_not_ready(gateway):
    gateway.service.not_ready = "waiting for pool memory at 10.0.0.9:7000"
    ready = gateway.get("/ready")
    assert ready.status_code == 503
    assert ready.headers["retry-after"] == "1"
    assert ready.json()["reason"] == "waiting for pool memory at <address>"
    assert gateway.get("/health").status_code == 200
    response = gateway.chat()
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert "waiting for pool memory" in response.json()["error"]["message"]
    assert gateway.service.arrived == []


def test_keys(scripted, serve):
    scripted.says("ok")
    with serve(scripted, door=Door({"first": "default", "sécond": "default"})) as gateway:
        for headers in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "Bearer"},
            {"authorization": "Basic first"},
            {"authorization": "first"},
            {"authorization": "Bearer firstfirst"},
        ):
            for path in ("/v1/models", "/metrics", "/status", "/nowhere"):
                response = gateway.get(path, headers=headers)
                assert response.status_code == 401
                assert response.json()["error"]["code"] == "invalid_api_key"
                assert response.headers["www-authenticate"] == "Bearer"
            assert gateway.chat(headers=headers).status_code == 401
        assert scripted.arrived == []
        assert gateway.get("/health").status_code == 200
        assert gateway.get("/ready").status_code == 200
        for key in ("first", "sécond"):
            headers = {"authorization": f"Bearer {key}".encode()}
            assert gateway.get("/v1/models", headers=headers).status_code == 200
        with (
            openai.OpenAI(base_url=gateway.url + "/v1", api_key="wrong", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.models.list()
        with openai.OpenAI(base_url=gateway.url + "/v1", api_key="first") as client:
            assert client.models.list().data[0].id == "smollm2-135m"


def test_only_operators_may_change_the_deployment(scripted, serve):
    door = Door({"client": "default", "boss": "default"}, operators=["boss"])
    order = {"site": "hami"}
    with serve(scripted, door=door) as gateway:

        def drain(key, **more):
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            return gateway.http.post("/pdd/drain", headers=headers, **({"json": order} | more))

        assert drain("boss").json() == {"ordered": order}
        assert (drain(None).status_code, drain("client").status_code) == (401, 403)
        assert "security.operator_keys_env" in drain("client").json()["error"]["message"]
        assert (
            gateway.get("/pdd/drain", headers={"authorization": "Bearer boss"}).status_code == 405
        )
        assert drain("boss", json={"site": "h" * 5000}).status_code == 413
    with serve(scripted) as gateway:
        assert gateway.http.post("/pdd/drain", json=order).status_code == 200
        # As a page of another origin could send it, without asking.
        text = {"content": b'{"site": "hami"}', "headers": {"content-type": "text/plain"}}
        assert gateway.http.post("/pdd/drain", **text).status_code == 415


# ---------------------------------------------------------------- what reaches the core


def test_every_field_reaches_the_core(gateway):
    gateway.chat(
        temperature=0.8,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.1,
        seed=-7,
        stop=["\n", "END"],
        max_completion_tokens=50,
        min_tokens=2,
        logprobs=True,
        top_logprobs=3,
        cache_salt="tenant",
        pdd_margins=True,
        pdd_route="direct",
        pdd_handoff="one-shot",
        pdd_weight=4,
    ).raise_for_status()
    (arrived,) = gateway.service.arrived
    assert arrived.sampling == Sampling(
        temperature=0.8,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.1,
        seed=2**64 - 7,
        logprobs=3,
        margins=True,
    )
    assert arrived.limit == 50
    assert arrived.min_tokens == 2
    assert arrived.stop_ids == gateway.service.model.stop_ids
    assert arrived.stop_strings == ("\n", "END")
    assert arrived.cache_salt == "tenant"
    assert arrived.route is Route.DIRECT
    assert arrived.handoff is HandoffMode.ONE_SHOT
    assert arrived.weight == 4.0


def test_defaults(gateway):
    gateway.chat().raise_for_status()
    (arrived,) = gateway.service.arrived
    assert arrived.limit == 1024 - len(arrived.prompt_ids)
    assert arrived.sampling.temperature == 1.0
    assert arrived.sampling.logprobs is None
    assert arrived.sampling.margins is False
    assert (arrived.route, arrived.handoff, arrived.weight) == (None, None, 1.0)
    gateway.chat(pdd_route="auto", pdd_handoff="auto", top_k=0, ignore_eos=True)
    arrived = gateway.service.arrived[1]
    assert (arrived.route, arrived.handoff) == (None, HandoffMode.AUTO)
    assert arrived.sampling.top_k is None
    assert arrived.stop_ids == ()


def test_a_seed_is_drawn_only_when_sampling_without_one(gateway):
    gateway.chat()
    gateway.chat()
    gateway.chat(temperature=0)
    gateway.chat(seed=5)
    first, second, greedy, given_one = (a.sampling.seed for a in gateway.service.arrived)
    assert second == first + 1 >= 1001  # the fixture draws by counting
    assert (greedy, given_one) == (0, 5)


def test_text_parts_and_the_developer_role(gateway):
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    gateway.chat(messages=messages).raise_for_status()
    prompt = gateway.service.tokenizer.decode(gateway.service.arrived[0].prompt_ids)
    assert prompt == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\none\ntwo<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_long_prompt_is_read_in_a_thread_and_means_the_same(gateway):
    text = "word " * 900
    gateway.complete(prompt=text, metadata={"pad": "x" * 40_000}).raise_for_status()
    gateway.complete(prompt=text).raise_for_status()
    long, short = gateway.service.arrived
    assert long.prompt_ids == short.prompt_ids == gateway.service.text(text)


def test_a_model_without_a_chat_template(scripted, serve, tokenizer):
    class Bare:
        chat_template = None
        special_tokens_map = tokenizer.special_tokens_map
        backend_tokenizer = tokenizer.backend_tokenizer

    scripted.says("ok")
    scripted.tokenizer = Bare()
    with serve(scripted) as gateway:
        response = gateway.chat()
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "no_chat_template"
        assert gateway.complete().json()["choices"][0]["text"] == "ok"


# ---------------------------------------------------------------- any JSON at all

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=4,
)
FIELDS = st.sampled_from(
    ["model", "messages", "prompt", "stop", "n", "logprobs", "stream_options", "tools", "x"]
)


@settings(max_examples=100, deadline=None)
@given(JSON | st.dictionaries(FIELDS, JSON, max_size=4), st.booleans())
def test_any_json_is_read_or_refused(body, chat):
    with suppress(ApiError):
        request = read(ChatRequest if chat else CompletionRequest, body)
        assert request.model == body["model"]
