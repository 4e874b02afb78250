"""Chat templates: the model's own, what they expect to find, and what they may not do."""

from types import SimpleNamespace

import pytest

from orchestrator.live.openai import template
from orchestrator.live.openai.errors import ApiError
from orchestrator.live.openai.template import ChatTemplate

MESSAGES = [{"role": "user", "content": "hi <b> & 你"}]


def render(source, messages=MESSAGES, tools=(), **special):
    tokenizer = SimpleNamespace(chat_template=source, special_tokens_map=special)
    return ChatTemplate(tokenizer).render(messages, tools)


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
    assert render("  {% if tools %}\n x{% endif %}\nz{{ tools is none }}") == "zTrue"
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
        ("{{ cycler.__init__.__globals__.os.system('true') }}", "messages"),
        ("{{ self._TemplateReference__context.environment }}", "messages"),
        ("{{ raise_exception.__globals__['_UNTIL'] }}", "messages"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "messages"),
        ("{% include '/etc/passwd' %}", "messages"),
        ("{{ 'x' * 99999999 }}", "longer than"),
        ("{{ 99999999 * 'x' }}", "longer than"),
        ("{{ 9 ** 999999 }}", "bits"),
        ("{{ 'x'.ljust(999999999) }}", "in a call"),
        (
            "{% set ns = namespace(x='x') %}{% for i in range(60) %}"
            "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
            "longer than",
        ),
        (
            "{% set ns = namespace(x='x') %}{% for i in range(60) %}"
            "{% set ns.x = ns.x + ns.x %}{% endfor %}",
            "longer than",
        ),
    ],
)
def test_what_a_template_refuses_or_may_not_do_is_a_400(source, told):
    with pytest.raises(ApiError) as caught:
        render(source)
    assert caught.value.status == 400
    assert caught.value.param == "messages"
    assert told in caught.value.message


@pytest.mark.parametrize(
    "source",
    [
        "{{ lipsum.__globals__ }}",
        "{{ messages | attr('__class__') }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ raise_exception.__code__ }}",
        "{{ messages.__reduce__ }}",
    ],
)
def test_what_a_template_may_not_reach_is_not_there(source):
    assert render(source) == ""


ROUND = "{% for i in range(99999) %}"
ROUNDS = f"{ROUND * 4}{'{% endfor %}' * 4}"


@pytest.mark.parametrize(
    "source",
    [
        ROUNDS,
        f"{{% macro m() %}}{ROUNDS}{{% endmacro %}}{{{{ m() }}}}",
        "{% for i in range(99999) recursive %}{{ loop(range(99999)) if not loop.depth0 > 3 }}"
        "{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
        "{{ m(60) }}",
    ],
)
def test_a_template_that_says_nothing_for_ever_is_stopped(source, monkeypatch):
    """No piece of it ever comes, so nobody but the template itself can look at the clock."""
    monkeypatch.setattr(template, "RENDER_SECONDS", 0.05)
    with pytest.raises(ApiError, match=r"longer than 0\.05 s"):
        render(source)


@pytest.mark.parametrize("source", [None, "", {}, {"tool_use": "t"}])
def test_no_template(source):
    with pytest.raises(ApiError) as caught:
        render(source)
    assert caught.value.code == "no_chat_template"


# ---------------------------------------------------------------- tools

TOOLS = [{"type": "function", "function": {"name": "now", "description": "The “time”"}}]
CALLED = [
    {"role": "user", "content": "What time is it?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "now", "arguments": {"zone": "é"}}}
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": "noon"},
]
KNOWS_TOOLS = (
    "{% if tools %}{% for t in tools %}[{{ t | tojson }}]{% endfor %}{% endif %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls %}<{{ c.function.name }} {{ c.function.arguments.zone }}>{% endfor %}"
    "{% endfor %}"
)
KNOWS_NONE = "{% for m in messages %}{{ m.role }}:{{ m.content }}|{% endfor %}"


def test_a_template_that_takes_tools_has_them_and_the_calls_as_they_are():
    text = '[{"type": "function", "function": {"name": "now", "description": "The “time”"}}]'
    calls = "user:What time is it?assistant:<now é>tool:noon"
    assert render(KNOWS_TOOLS, CALLED, TOOLS) == text + calls
    assert render(KNOWS_TOOLS, CALLED) == calls


def test_the_template_for_tools_is_taken_where_there_are_tools():
    several = {"default": "d", "tool_use": "{{ tools[0].function.name }}"}
    assert render(several, tools=TOOLS) == "now"
    assert render(several) == "d"


def test_a_template_without_tools_is_told_in_words():
    system, user, assistant, tool, rest = render(KNOWS_NONE, CALLED, TOOLS).split("|")
    assert system.startswith("system:")
    assert (
        '{"type": "function", "function": {"name": "now", "description": "The “time”"}}' in system
    )
    assert (
        '<tool_call>\n{"name": "<its name>", "arguments": {<its arguments>}}\n</tool_call>'
        in system
    )
    assert user == "user:What time is it?"
    assert assistant == (
        'assistant:<tool_call>\n{"name": "now", "arguments": {"zone": "é"}}\n</tool_call>'
    )
    assert tool == "user:<tool_response>\nnoon\n</tool_response>"
    assert rest == ""


def test_words_about_tools_go_after_the_clients_own_system_message():
    messages = [{"role": "system", "content": "Be brief."}, *MESSAGES]
    text = render(KNOWS_NONE, messages, TOOLS)
    assert text.startswith("system:Be brief.\n\nYou can call functions")
    assert text.count("system:") == 1
    assert render(KNOWS_NONE, messages) == "system:Be brief.|user:hi <b> & 你|"


def test_the_default_models_prompt_tells_of_tools(tokenizer):
    text = ChatTemplate(tokenizer).render(CALLED, TOOLS)
    assert text.count('"name": "now"') == 2
    assert "<tool_response>\nnoon" in text
