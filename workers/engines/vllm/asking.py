"""What vLLM is asked for a sequence, and how its answer is read. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from workers.api.messages import Sampling, TokenLogprobs
from workers.engines.base import SequenceSpec
from workers.engines.vllm.inside.wanted import Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A run: compute `tokens`, of which the first `have` have their KV in the pool's `blocks`, and
    sample `count` tokens after them.
    """

    model: str
    pool: str
    row: int
    run: int
    have: int
    blocks: Sequence[int]
    block_size: int
    tokens: Sequence[int]
    count: int


def completion(spec: SequenceSpec, ask: Ask) -> dict[str, Any]:
    """The body of a request to /v1/completions.

    Every setting that vLLM would fill in from the model's directory is named. Anything but the
    plain best token is drawn by our own sampler, which knows the whole output so far.
    """
    sampling = spec.sampling
    sampled = len(ask.tokens) - spec.prompt_len
    body: dict[str, Any] = {
        "model": ask.model,
        "prompt": list(ask.tokens),
        "max_tokens": ask.count,
        "stream": True,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "skip_special_tokens": False,
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "ignore_eos": True,
        "stop_token_ids": list(spec.stop_ids),
        "min_tokens": min(max(0, spec.min_tokens - sampled), ask.count),
        "kv_transfer_params": {
            "pdd": {
                "pool": ask.pool,
                "row": ask.row,
                "run": ask.run,
                "have": ask.have,
                "blocks": list(ask.blocks),
                "block_size": ask.block_size,
            }
        },
    }
    if spec.cache_salt:
        # vLLM takes none of any length, nor with any character; ours are the clients' own words.
        body["cache_salt"] = blake2b(spec.cache_salt.encode(), digest_size=16).hexdigest()
    if sampling.logprobs is not None:
        body["logprobs"] = sampling.logprobs
    if not _is_plain(sampling):
        wanted = Wanted(
            sampling=sampling,
            prompt_len=spec.prompt_len,
            pool=ask.pool,
            row=ask.row,
            run=ask.run,
        )
        body["vllm_xargs"] = {"pdd": wanted.text}
    return body


def _is_plain(sampling: Sampling) -> bool:
    """Whether it is the best logit that is wanted, and nothing beside it."""
    return (
        sampling.temperature <= 0
        and not sampling.presence_penalty
        and not sampling.frequency_penalty
        and sampling.repetition_penalty == 1
        and not sampling.logit_bias
        and not sampling.margins
    )


def read_chunk(chunk: dict[str, Any]) -> tuple[list[tuple[int, TokenLogprobs | None]], str | None]:
    """The tokens of one piece of a streamed answer, and why it ends; None: it goes on.

    Raises KeyError, TypeError, ValueError where it is not what vLLM answers.
    """
    choice = chunk["choices"][0]
    ids = [int(id) for id in choice.get("token_ids") or ()]
    logprobs = choice.get("logprobs")
    details: list[TokenLogprobs | None] = [None] * len(ids)
    if logprobs is not None:
        details = [
            TokenLogprobs(logprob=value, top=_ranked(top or {}))
            for value, top in zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
        ]
    return list(zip(ids, details, strict=True)), choice.get("finish_reason")


def _ranked(top: dict[str, float]) -> tuple[tuple[int, float], ...]:
    values = [(int(name.removeprefix("token_id:")), value) for name, value in top.items()]
    return tuple(sorted(values, key=lambda item: -item[1]))
