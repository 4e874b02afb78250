"""From a request body to the core's `Arrived` events, one per choice."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.live.openai.errors import ApiError
from orchestrator.live.openai.schemas import (
    INT64,
    MAX_CHOICES,
    ChatRequest,
    Common,
    CompletionRequest,
    DetokenizeRequest,
    Message,
    StreamOptions,
    TokenizeRequest,
    read,
)
from orchestrator.live.openai.service import ModelCard
from orchestrator.live.openai.template import ChatTemplate
from orchestrator.live.openai.tools.schemas import Tool
from orchestrator.live.openai.tools.wanted import wanted_grammar
from orchestrator.live.openai.vocabulary import Vocabulary
from orchestrator.state.events import Arrived, HandoffMode, Route
from workers.api.messages import Sampling

TIMINGS_HEADER = "x-pdd-timings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """The `pdd` object was asked for, with these optional parts."""

    token_ids: bool
    margins: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A request ready to be submitted: one `Arrived` per choice, in the order of their indices.

    Each prompt has `n` choices, one after the other. `prompt_tokens` counts each prompt once,
    however many choices it has. `reads_calls`: tool calls are to be told from text. `echoes`: per
    choice, what stands before its text; empty: nothing.
    """

    arrivals: tuple[Arrived, ...]
    n: int
    prompt_tokens: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    reads_calls: bool
    echoes: tuple[str, ...]
    extension: Extension | None

    def usage(self, completion: int) -> dict[str, int]:
        """OpenAI's account of so many completion tokens."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request that was read and tokenised. `where` and `limit_name` are its fields' names.

    `grammar` is what the answer must keep to, and `grammar_name` the field that asks for it.
    """

    request: Common
    prompts: tuple[tuple[int, ...], ...]
    where: str
    max_tokens: int | None
    limit_name: str
    logprobs: int | None
    grammar: str | None
    grammar_name: str
    reads_calls: bool = False
    echoes: tuple[str, ...] = ()


class Intake:
    """`chat` and `completion` do the slow part and may run in any thread; `plan` the rest."""

    def __init__(self, model: ModelCard, vocabulary: Vocabulary, template: ChatTemplate) -> None:
        self._model = model
        self._vocabulary = vocabulary
        self._template = template

    def chat(self, body: Any) -> Prepared:
        """Read, render and tokenise. Raises ApiError 400 or 404."""
        request = read(ChatRequest, body)
        self._check_model(request.model)
        limits = {request.max_tokens, request.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise ApiError(
                400,
                f"max_tokens: {request.max_tokens} and max_completion_tokens "
                f"{request.max_completion_tokens} differ",
                param="max_tokens",
            )
        if request.top_logprobs is not None and not request.logprobs:
            raise ApiError(400, "top_logprobs: needs logprobs: true", param="top_logprobs")
        tools = () if request.tool_choice == "none" else request.tools
        grammar = wanted_grammar(
            request.response_format,
            tools,
            request.tool_choice,
            several=request.parallel_tool_calls,
        )
        text = self._render(request.messages, tools)
        return Prepared(
            request=request,
            prompts=(self._vocabulary.encode(text, add_special_tokens=False),),
            where="messages",
            max_tokens=next(iter(limits), None),
            limit_name=(
                "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
            ),
            logprobs=(request.top_logprobs or 0) if request.logprobs else None,
            grammar=grammar,
            grammar_name="response_format" if not tools else "tools",
            reads_calls=bool(tools),
        )

    def completion(self, body: Any) -> Prepared:
        """Read and tokenise. Raises ApiError 400 or 404."""
        request = read(CompletionRequest, body)
        self._check_model(request.model)
        if request.echo and request.logprobs is not None:
            raise ApiError(
                400,
                "logprobs: not with echo, the engines do not give those of a prompt",
                param="logprobs",
                code="unsupported_parameter",
            )
        prompts = tuple(map(self._prompt, request.prompt))
        return Prepared(
            request=request,
            prompts=prompts,
            where="prompt",
            max_tokens=request.max_tokens,
            limit_name="max_tokens",
            logprobs=request.logprobs,
            grammar=wanted_grammar(request.response_format),
            grammar_name="response_format",
            echoes=tuple(
                prompt if isinstance(prompt, str) else self._vocabulary.spell(prompt)
                for prompt in request.prompt
            )
            if request.echo
            else (),
        )

    def tokenize(self, body: Any) -> dict[str, Any]:
        """What a text or a chat becomes, in vLLM's shape. Raises ApiError 400 or 404."""
        request = read(TokenizeRequest, body)
        if request.model is not None:
            self._check_model(request.model)
        if request.messages is None:
            text, special = request.prompt or "", request.add_special_tokens is not False
        else:
            text = self._render(
                request.messages, request.tools, add_generation_prompt=request.add_generation_prompt
            )
            special = request.add_special_tokens is True
        ids = self._vocabulary.encode(text, add_special_tokens=special)
        return {
            "count": len(ids),
            "max_model_len": self._model.max_context,
            "tokens": ids,
            "token_strs": (
                [self._vocabulary.token(id) for id in ids] if request.return_token_strs else None
            ),
        }

    def detokenize(self, body: Any) -> dict[str, Any]:
        """The text of token ids, special ones too, in vLLM's shape. Raises ApiError 400 or 404."""
        request = read(DetokenizeRequest, body)
        if request.model is not None:
            self._check_model(request.model)
        self._check_ids(request.tokens, "tokens")
        return {"prompt": self._vocabulary.spell(request.tokens)}

    def plan(
        self,
        prepared: Prepared,
        headers: Mapping[str, str],
        *,
        tenant: str,
        new_request_id: Callable[[], str],
        draw_seed: Callable[[], int],
    ) -> Plan:
        """What to submit. Raises ApiError 400."""
        request = prepared.request
        if request.stream_options is not None and not request.stream:
            raise ApiError(400, "stream_options: needs stream: true", param="stream_options")
        self._check_ids(request.logit_bias, "logit_bias")
        _check_grammar(prepared)
        choices = len(prepared.prompts) * request.n
        if choices > MAX_CHOICES:
            raise ApiError(
                400,
                f"n: {request.n} for each of {len(prepared.prompts)} prompts is more than the "
                f"{MAX_CHOICES} choices that one request may have",
                param="n",
            )
        extension = _extension(request, headers, choices)
        limits = [self._limit(len(prompt), prepared) for prompt in prepared.prompts]
        seed = request.seed
        if seed is None:
            # Drawn here, at the border: the core and the workers have no randomness of their own.
            seed = draw_seed() if request.temperature > 0 else 0
        arrivals = tuple(
            Arrived(
                request=new_request_id(),
                prompt_ids=prompt,
                limit=limit,
                min_tokens=request.min_tokens,
                stop_ids=() if request.ignore_eos else self._model.stop_ids,
                stop_strings=request.stop,
                sampling=_sampling(prepared, (seed + nth) % (2 * INT64)),
                cache_salt=request.cache_salt,
                tenant=tenant,
                weight=request.pdd_weight,
                priority=request.priority,
                route=None if request.pdd_route == "auto" else Route(request.pdd_route),
                handoff=None if request.pdd_handoff is None else HandoffMode(request.pdd_handoff),
            )
            for prompt, limit in zip(prepared.prompts, limits, strict=True)
            for nth in range(request.n)
        )
        options = request.stream_options or StreamOptions()
        continuous = options.continuous_usage_stats
        return Plan(
            arrivals=arrivals,
            n=request.n,
            prompt_tokens=sum(map(len, prepared.prompts)),
            stream=request.stream,
            include_usage=extension is not None or options.include_usage or continuous,
            continuous_usage=continuous,
            reads_calls=prepared.reads_calls,
            echoes=tuple(echo for echo in prepared.echoes for _ in range(request.n)),
            extension=extension,
        )

    def _check_model(self, name: str) -> None:
        if name != self._model.name:
            raise unknown_model(name)

    def _prompt(self, prompt: str | tuple[int, ...]) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return self._vocabulary.encode(prompt, add_special_tokens=True)
        self._check_ids(prompt, "prompt")
        return prompt

    def _render(self, messages: Sequence[Message], tools: Sequence[Tool], **how: bool) -> str:
        told = [
            # OpenAI's newer name for the system role; no open model's template knows it.
            m.model_dump(exclude_none=True)
            | ({"role": "system"} if m.role == "developer" else {})
            | ({"content": ""} if m.content is None else {})
            for m in messages
        ]
        return self._template.render(
            told, [t.model_dump(exclude_none=True, exclude_unset=True) for t in tools], **how
        )

    def _check_ids(self, ids: Iterable[int], where: str) -> None:
        size = self._model.vocab_size
        for id in ids:
            if not 0 <= id < size:
                raise ApiError(
                    400,
                    f"{where}: token id {id} is outside the vocabulary (0 to {size - 1})",
                    param=where,
                )

    def _limit(self, prompt: int, prepared: Prepared) -> int:
        """Output tokens that a prompt of `prompt` tokens may get. Raises ApiError 400."""
        context, where = self._model.max_context, prepared.where
        least = prepared.request.min_tokens
        if prompt == 0:
            raise ApiError(400, f"{where}: holds no tokens", param=where)
        if prompt >= context:
            raise ApiError(
                400,
                f"This model's maximum context length is {context} tokens. However, your {where} "
                f"has {prompt} tokens, which leaves no room for an answer.",
                param=where,
                code="context_length_exceeded",
            )
        limit = context - prompt if prepared.max_tokens is None else prepared.max_tokens
        if prompt + limit > context:
            raise ApiError(
                400,
                f"This model's maximum context length is {context} tokens. However, you requested "
                f"{prompt + limit} tokens ({prompt} in the {where}, {limit} in "
                f"{prepared.limit_name}).",
                param=prepared.limit_name,
                code="context_length_exceeded",
            )
        if least > limit:
            raise ApiError(
                400,
                f"min_tokens: {least} is more than the {limit} tokens that the answer may have",
                param="min_tokens",
            )
        return limit


def unknown_model(name: str) -> ApiError:
    """404 in OpenAI's words."""
    return ApiError(
        404, f"the model {name!r} does not exist", param="model", code="model_not_found"
    )


def _sampling(prepared: Prepared, seed: int) -> Sampling:
    request = prepared.request
    return Sampling(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        logit_bias=tuple(sorted(request.logit_bias.items())),
        grammar=prepared.grammar,
        seed=seed,
        logprobs=prepared.logprobs,
        margins=request.pdd_margins,
    )


def _check_grammar(prepared: Prepared) -> None:
    """A grammar says itself where the text may end. Raises ApiError 400."""
    request = prepared.request
    for field, given in (("ignore_eos", request.ignore_eos), ("min_tokens", request.min_tokens)):
        if given and prepared.grammar is not None:
            raise ApiError(400, f"{field}: not together with {prepared.grammar_name}", param=field)


def _extension(request: Common, headers: Mapping[str, str], choices: int) -> Extension | None:
    by_header = headers.get(TIMINGS_HEADER) == "1"
    if not (by_header or request.pdd_timings or request.pdd_token_ids or request.pdd_margins):
        return None
    if choices > 1:
        raise ApiError(
            400, f"pdd_timings: tells of one choice, {choices} were asked for", param="pdd_timings"
        )
    return Extension(token_ids=request.pdd_token_ids, margins=request.pdd_margins)
