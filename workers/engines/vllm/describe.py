"""What a model's directory says of the model, without loading it: vLLM does that."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import AutoConfig, GenerationConfig

from workers.api.info import Fingerprint
from workers.engines.digest import tensors_digest
from workers.engines.models import (
    ModelUnsupported,
    check_directory,
    weight_files,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A model as a worker tells of it; KV is kept in the dtype that vLLM computes in."""

    name: str
    fingerprint: Fingerprint
    max_context: int
    vocab_size: int
    stop_ids: tuple[int, ...]


def describe(path: Path, dtype: str) -> Described:
    """The model as vLLM has it with `--dtype`. Raises ModelError.

    The fingerprint is that of the torch engine where both compute in the same dtype, so that they
    can take over from each other.
    """
    check_directory(path)
    config = AutoConfig.from_pretrained(path, local_files_only=True).get_text_config()
    heads = config.num_attention_heads
    tied = bool(config.tie_word_embeddings)
    return Described(
        name=path.name,
        fingerprint=Fingerprint(
            tensors=tensors_digest(
                path,
                (dtype, tied),
                lambda: _tensors(weight_files(path), getattr(torch, dtype), tied),
            ),
            tokenizer=blake2b((path / "tokenizer.json").read_bytes(), digest_size=16).hexdigest(),
            kv_dtype=dtype,
            layers=config.num_hidden_layers,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
            rope=json.dumps(getattr(config, "rope_parameters", None), sort_keys=True),
            windows=_windows(config),
        ),
        max_context=config.max_position_embeddings,
        vocab_size=config.vocab_size,
        stop_ids=_stop_ids(path, config.eos_token_id),
    )


_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def _tensors(
    files: list[Path], dtype: torch.dtype, tied: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    """By name; a head that is the embedding itself stands there under both names."""
    if any(file.suffix != ".safetensors" for file in files):
        raise ModelUnsupported(
            f"model {str(files[0].parent)!r}: engine vllm reads safetensors only; save it with "
            "save_pretrained"
        )
    where: dict[str, tuple[Path, str]] = {}
    for file in files:
        with safe_open(file, framework="pt") as opened:
            where |= {name: (file, name) for name in opened.keys()}  # noqa: SIM118
    if tied and _HEAD not in where and _EMBEDDING in where:
        where[_HEAD] = where[_EMBEDDING]
    for name in sorted(where):
        file, stored = where[name]
        with safe_open(file, framework="pt") as opened:
            tensor = opened.get_tensor(stored)
        yield name, tensor.to(dtype) if tensor.is_floating_point() else tensor


def _windows(config: AutoConfig) -> tuple[int | None, ...]:
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    strange = set(kinds) - {"full_attention", "sliding_attention"}
    if strange:
        raise ModelUnsupported(
            f"{config.model_type} has layers of type {', '.join(sorted(strange))}: only plain K "
            "and V can travel"
        )
    return tuple(config.sliding_window if kind == "sliding_attention" else None for kind in kinds)


def _stop_ids(path: Path, ends: int | list[int] | None) -> tuple[int, ...]:
    if (path / "generation_config.json").is_file():
        told = GenerationConfig.from_pretrained(path, local_files_only=True).eos_token_id
        ends = ends if told is None else told
    if ends is None:
        return ()
    return tuple(ends) if isinstance(ends, list) else (ends,)
