"""The model's own chat template, rendered in a sandbox."""

import json
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from orchestrator.live.openai.errors import ApiError, scrub
from orchestrator.live.openai.service import Tokenizer
from orchestrator.live.openai.tools.told import told_in_words

RENDER_SECONDS = 5.0
RENDER_CHARS = 16 << 20


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; its body is rendered as is."""

    tags = {"generation"}  # noqa: RUF012  as jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Template(NamedTuple):
    text: Template
    takes_tools: bool


class ChatTemplate:
    """A tokenizer's template, compiled once. A tokenizer without one: `render` raises.

    Where there are several by name, `tool_use` is the one for tools.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        source = tokenizer.chat_template
        named = source if isinstance(source, dict) else {"default": source}
        self._special = tokenizer.special_tokens_map
        self._default = _compiled(named.get("default"))
        self._for_tools = _compiled(named.get("tool_use")) or self._default

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] = (),
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt for the assistant's next turn; `tools` as clients describe them.

        Raises ApiError 400 when the template refuses the messages, and when there is none.
        """
        template = self._for_tools if tools else self._default
        if template is None:
            raise ApiError(
                400,
                "this model has no chat template; use /v1/completions",
                param="messages",
                code="no_chat_template",
            )
        if not template.takes_tools:
            messages, tools = told_in_words(messages, tools), ()
        values = self._special | {
            "messages": messages,
            "tools": list(tools) or None,  # what templates expect where there are none
            "add_generation_prompt": add_generation_prompt,
        }
        until = time.monotonic() + RENDER_SECONDS
        pieces: list[str] = []
        size = 0
        try:
            for piece in template.text.generate(values):
                pieces.append(piece)
                size += len(piece)
                if size > RENDER_CHARS or time.monotonic() > until:
                    raise TemplateError("the rendered prompt is too large")
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise ApiError(
                400,
                f"messages: the model's chat template refuses them: {scrub(str(error))}",
                param="messages",
            ) from error
        return "".join(pieces)


def _compiled(source: str | None) -> _Template | None:
    if not source:
        return None
    environment = _environment()
    names = meta.find_undeclared_variables(environment.parse(source))
    return _Template(environment.from_string(source), "tools" in names)


def _environment() -> ImmutableSandboxedEnvironment:
    """What templates written for transformers expect to find."""
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = _strftime_now
    return env


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, where jinja's own filter would escape it for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)
