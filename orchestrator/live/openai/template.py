"""The model's own chat template, rendered in a sandbox."""

import json
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from orchestrator.live.openai.errors import ApiError
from orchestrator.live.openai.service import Tokenizer

RENDER_SECONDS = 5.0
RENDER_CHARS = 16 << 20


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; its body is rendered as is."""

    tags: ClassVar[set[str]] = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A tokenizer's template, compiled once. A tokenizer without one: `render` raises."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        source = tokenizer.chat_template
        if isinstance(source, dict):
            source = source.get("default")
        self._special = tokenizer.special_tokens_map
        self._template = _environment().from_string(source) if source else None

    def render(self, messages: Sequence[dict[str, Any]]) -> str:
        """The prompt for the assistant's next turn.

        Raises ApiError 400 when the template refuses the messages, and when there is none.
        """
        if self._template is None:
            raise ApiError(
                400,
                "this model has no chat template; use /v1/completions",
                param="messages",
                code="no_chat_template",
            )
        until = time.monotonic() + RENDER_SECONDS
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate(
                self._special, messages=messages, add_generation_prompt=True
            ):
                pieces.append(piece)
                size += len(piece)
                if size > RENDER_CHARS or time.monotonic() > until:
                    raise TemplateError("the rendered prompt is too large")
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise ApiError(
                400, f"messages: the model's chat template refuses them: {error}", param="messages"
            ) from error
        return "".join(pieces)


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
