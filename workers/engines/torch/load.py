"""From a model directory to a running engine: loading, probing, fingerprinting."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from workers.api.info import BYTES_PER_ELEMENT, EngineInfo, Fingerprint
from workers.engines.digest import tensors_digest
from workers.engines.models import (
    ModelError,
    ModelUnsupported,
    check_directory,
)
from workers.engines.torch.attention import (
    NAME,
    LayerCall,
    UnsupportedAttention,
    register,
    running,
)
from workers.engines.torch.engine import TorchEngine
from workers.engines.torch.store import KVStore
from workers.kv.evict.config import Eviction
from workers.kv.evict.triattention import Calibration

# Their rotation of a key depends on the longest sequence in the batch, so cached keys go stale.
_BATCH_DEPENDENT_ROPE = ("dynamic", "longrope")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory and what it needs of an engine; several engines may share one."""

    name: str
    model: PreTrainedModel
    tensors: str
    tokenizer: str
    tokenizer_file: Path
    kv_heads: int
    head_size: int
    rope: str
    windows: tuple[int | None, ...]
    max_context: int
    vocab_size: int
    stop_ids: tuple[int, ...]


def load_model(model_dir: Path) -> LoadedModel:
    """Load in float32, refuse what the engine could not serve. Raises ModelError."""
    check_directory(model_dir)
    model = _load(model_dir)
    config = model.config.get_text_config()
    layers = _probe(model, model_dir)
    return LoadedModel(
        name=model_dir.name,
        model=model,
        tensors=tensors_digest(
            model_dir,
            (transformers.__version__, torch.__version__),
            lambda: sorted(model.state_dict().items()),
        ),
        tokenizer=blake2b((model_dir / "tokenizer.json").read_bytes(), digest_size=16).hexdigest(),
        tokenizer_file=model_dir / "tokenizer.json",
        kv_heads=layers[0].k.shape[0],
        head_size=layers[0].k.shape[2],
        rope=_rope(config),
        windows=tuple(layer.window for layer in layers),
        max_context=config.max_position_embeddings,
        vocab_size=config.vocab_size,
        stop_ids=_stop_ids(model),
    )


def build_engine(
    loaded: LoadedModel,
    *,
    kv_tokens: int,
    block_size: int = 16,
    kv_dtype: str = "bfloat16",
    chunk_tokens: int = 128,
    eviction: Eviction | None = None,
    calibration: Calibration | None = None,
) -> TorchEngine:
    """An engine with a pool of its own: `kv_tokens` rounded down to whole blocks.

    K and V are kept, attended over and moved as `kv_dtype`; a step prefills at most
    `chunk_tokens` tokens. `eviction`: what is kept of a sequence, None: everything; TriAttention
    needs the model's `calibration`.
    """
    if kv_dtype not in BYTES_PER_ELEMENT:
        raise ValueError(f"kv_dtype {kv_dtype!r}: one of {', '.join(BYTES_PER_ELEMENT)}")
    if not 1 <= block_size <= kv_tokens or chunk_tokens < 1:
        raise ValueError(
            f"block_size {block_size}, kv_tokens {kv_tokens}, chunk_tokens {chunk_tokens}: "
            "need 1 <= block_size <= kv_tokens and chunk_tokens >= 1"
        )
    layers = len(loaded.windows)
    slots = kv_tokens // block_size * block_size
    info = EngineInfo(
        engine="torch",
        model=loaded.name,
        fingerprint=Fingerprint(
            tensors=loaded.tensors,
            tokenizer=loaded.tokenizer,
            kv_dtype=kv_dtype,
            layers=layers,
            kv_heads=loaded.kv_heads,
            head_size=loaded.head_size,
            rope=loaded.rope,
            windows=loaded.windows,
        ),
        block_size=block_size,
        kv_total_tokens=slots,
        max_context=loaded.max_context,
        vocab_size=loaded.vocab_size,
        stop_ids=loaded.stop_ids,
    )
    if eviction is not None and eviction.policy == "triattention" and calibration is None:
        raise ValueError("policy triattention: it scores by a calibration, and none was given")
    store = KVStore(layers, slots, loaded.kv_heads, loaded.head_size, kv_dtype)
    return TorchEngine(
        loaded.model,
        info,
        store,
        chunk_tokens=chunk_tokens,
        tokenizer=loaded.tokenizer_file,
        eviction=eviction,
        calibration=calibration,
    )


def _load(path: Path) -> PreTrainedModel:
    register()
    try:
        with _no_progress_bar():
            model, report = AutoModelForCausalLM.from_pretrained(
                path,
                dtype=torch.float32,
                attn_implementation=NAME,
                local_files_only=True,
                output_loading_info=True,
            )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise ModelError(f"model {str(path)!r} cannot be loaded: {_one_line(error)}") from error
    for what in ("missing_keys", "mismatched_keys"):
        if report[what]:
            first = sorted(map(str, report[what]))[0]
            raise ModelError(
                f"model {str(path)!r}: its weights do not fit its config.json "
                f"({len(report[what])} {what.replace('_', ' ')}, the first is {first})"
            )
    return model.eval()


class _Probe:
    """Notes what every layer asks for; attends to nothing."""

    def __init__(self) -> None:
        self.calls: list[LayerCall] = []

    def attend(self, call: LayerCall) -> torch.Tensor:
        self.calls.append(call)
        heads, tokens, _ = call.q.shape
        return call.v.new_zeros((tokens, heads, call.v.shape[2]))


def _probe(model: PreTrainedModel, path: Path) -> list[LayerCall]:
    """What each layer asks of its attention, layer by layer; refuses what we could not serve."""
    config = model.config.get_text_config()

    def refuse(why: str) -> ModelUnsupported:
        return ModelUnsupported(
            f"model {str(path)!r} ({config.model_type}) cannot run on the torch engine: {why}"
        )

    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in (rope, *(p for p in rope.values() if isinstance(p, dict))):
        if parameters.get("rope_type") in _BATCH_DEPENDENT_ROPE:
            raise refuse(f"its RoPE type {parameters['rope_type']!r} depends on the batch")
    kinds = set(getattr(config, "layer_types", None) or ()) - {
        "full_attention",
        "sliding_attention",
    }
    if kinds:
        raise refuse(f"it has layers of type {', '.join(sorted(kinds))}")
    if getattr(config, "max_position_embeddings", None) is None:
        raise refuse("its config names no context limit (max_position_embeddings)")
    probe = _Probe()
    try:
        with torch.inference_mode(), running(probe):
            model(
                input_ids=torch.tensor([[0, 0]]),
                position_ids=torch.tensor([[0, 1]]),
                use_cache=False,
                logits_to_keep=torch.tensor([1]),
            )
    except (UnsupportedAttention, AttributeError, TypeError) as error:
        raise refuse(_one_line(error)) from error
    if [call.layer for call in probe.calls] != list(range(config.num_hidden_layers)):
        raise refuse(
            f"{len(probe.calls)} attention calls for {config.num_hidden_layers} layers, "
            "so some state is not plain KV"
        )
    shapes = {(call.k.shape[0], call.k.shape[2], call.v.shape[2]) for call in probe.calls}
    if len(shapes) > 1 or any(k != v for _, k, v in shapes):
        raise refuse("its K and V differ in shape between layers or from each other")
    return probe.calls


def _stop_ids(model: PreTrainedModel) -> tuple[int, ...]:
    ids = model.generation_config.eos_token_id
    if ids is None:
        ids = model.config.get_text_config().eos_token_id
    if ids is None:
        return ()
    return tuple(ids) if isinstance(ids, list) else (ids,)


def _rope(config: Any) -> str:
    """Canonical JSON of what turns a position into a rotation."""
    parameters = getattr(config, "rope_parameters", None)
    return json.dumps(parameters, sort_keys=True)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
