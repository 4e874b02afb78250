"""The model's own chat template, rendered in a sandbox."""

import json
import time
from collections.abc import Sequence, Sized
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NamedTuple

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from orchestrator.live.openai.errors import ApiError, scrub
from orchestrator.live.openai.service import Tokenizer
from orchestrator.live.openai.tools.told import told_in_words

RENDER_SECONDS = 5.0
RENDER_CHARS = 16 << 20
POWER_BITS = 1 << 16
_UNTIL: ContextVar[float] = ContextVar("until")  # when the rendering under way must be done


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; its body is rendered as is."""

    tags = {"generation"}  # noqa: RUF012  as jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's, in which nothing runs for ever and nothing grows without bounds.

    Jinja bounds what a template may reach and how long a range is; loops inside loops, macros that
    call themselves, and texts put together again and again are bounded here.
    """

    intercepted_binops = frozenset({"+", "*", "**"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        bounded: nodes.Template = _Bounds().visit(tree)
        return bounded

    def tick(self) -> None:
        """At every turn of a loop and every call. Raises TemplateError when time is up."""
        if time.monotonic() > _UNTIL.get():
            raise TemplateError(f"it takes longer than {RENDER_SECONDS:g} s")

    def bounded(self, made: Any) -> Any:
        """What was put together, if it is not too large."""
        if isinstance(made, Sized) and len(made) > RENDER_CHARS:
            raise SecurityError(f"a value longer than {RENDER_CHARS}")
        return made

    def call(self, context: Context, called: Any, /, *args: Any, **named: Any) -> Any:
        self.tick()
        for given in (*args, *named.values()):  # a width, a count
            if type(given) is int and abs(given) > RENDER_CHARS:
                raise SecurityError(f"a number beyond {RENDER_CHARS} in a call")
        return super().call(context, called, *args, **named)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for many, times in ((left, right), (right, left)):
                if (
                    isinstance(many, Sized)
                    and isinstance(times, int)
                    and len(many) * times > RENDER_CHARS
                ):
                    raise SecurityError(f"a value longer than {RENDER_CHARS}")
        numbers = isinstance(left, int) and isinstance(right, int)
        if operator == "**" and numbers and left.bit_length() * right > POWER_BITS:
            raise SecurityError(f"a number of more than {POWER_BITS} bits")
        return self.bounded(super().call_binop(context, operator, left, right))


class _Bounds(NodeTransformer):
    """Lets every turn of a loop and every macro look at the clock, and every text at its size."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802  as jinja names it
        node.body.insert(0, nodes.ExprStmt(_call("tick")))
        return self.generic_visit(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802  as jinja names it
        node.body.insert(0, nodes.ExprStmt(_call("tick")))
        return self.generic_visit(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802  as jinja names it
        return _call("bounded", self.generic_visit(node))


def _call(verb: str, *given: nodes.Node) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(verb), list(given), [], None, None)


# What rendering may end with: jinja's own, and what an expression of Python's may.
_REFUSALS = (
    TemplateError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)


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
        before = _UNTIL.set(until)
        pieces: list[str] = []
        size = 0
        try:
            for piece in template.text.generate(values):
                pieces.append(piece)
                size += len(piece)
                if size > RENDER_CHARS or time.monotonic() > until:
                    raise TemplateError("the rendered prompt is too large")
        except _REFUSALS as error:
            raise ApiError(
                400,
                f"messages: the model's chat template refuses them: {scrub(str(error))}",
                param="messages",
            ) from error
        finally:
            _UNTIL.reset(before)
        return "".join(pieces)


def _compiled(source: str | None) -> _Template | None:
    if not source:
        return None
    environment = _environment()
    names = meta.find_undeclared_variables(environment.parse(source))
    return _Template(environment.from_string(source), "tools" in names)


def _environment() -> _Sandbox:
    """What templates written for transformers expect to find."""
    env = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
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
