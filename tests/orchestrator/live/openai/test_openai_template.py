"""Chat templates: the model's own, what they expect to find, and what they may not do."""

from types import SimpleNamespace

import pytest

from orchestrator.live.openai.errors import ApiError
from orchestrator.live.openai.template import ChatTemplate

MESSAGES = [{"role": "user", "content": "hi <b> & 你"}]


def render(source, messages=MESSAGES, **special):
    tokenizer = SimpleNamespace(chat_template=source, special_tokens_map=special)
    return ChatTemplate(tokenizer).render(messages)


def test_the_models_own_is_rendered_as_transformers_does(tokenizer):
    for messages in (
        MESSAGES,
        [{"role": "system", "content": "s"}, *MESSAGES, {"role": "assistant", "content": "a"}],
    ):
        ours = ChatTemplate(tokenizer).render(messages)
        theirs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        assert ours == theirs


def test_what_templates_expect_to_find():
    assert render("{{ bos_token }}{{ add_generation_prompt }}", bos_token="<s>") == "<s>True"
    assert render("{{ messages[0].content | tojson }}") == '"hi <b> & 你"'
    assert render('{{ {"b": 1, "a": [2]} | tojson(indent=1) }}') == (
        '{\n "b": 1,\n "a": [\n  2\n ]\n}'
    )
    assert render("{{ strftime_now('%Y') }}").isdecimal()
    assert render("{% generation %}x{% endgeneration %}y") == "xy"
    assert render("{% for m in messages %}{% break %}x{% endfor %}y") == "y"
    assert render("  {% if tools is defined %}\n x{% endif %}\nz") == "z"
    assert render({"default": "d", "tool_use": "t"}) == "d"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.append(1) }}", "messages"),
        ("{{ ''.__class__.__mro__ }}", "messages"),
        ("{{ 1 / 0 }}", "messages"),
        ("{{ messages[7].content }}", "messages"),
        ("{{ messages[0].content + 1 }}", "messages"),
        ("{{ range(1000000) | list }}", "messages"),
        ("{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "too large"),
    ],
)
def test_what_a_template_refuses_or_may_not_do_is_a_400(source, told):
    with pytest.raises(ApiError) as caught:
        render(source)
    assert caught.value.status == 400
    assert caught.value.param == "messages"
    assert told in caught.value.message


@pytest.mark.parametrize("source", [None, "", {}, {"tool_use": "t"}])
def test_no_template(source):
    with pytest.raises(ApiError) as caught:
        render(source)
    assert caught.value.code == "no_chat_template"
