"""From one GGUF file of the Llama family to a plain Hugging Face directory."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

_CONTROL_TOKEN = 3  # llama.cpp's token type for special tokens

_TOP_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class ConversionFailed(Exception):
    """The file cannot be converted; the text says what it holds."""


def convert_gguf(source: Path, target: Path, progress: Callable[[int, int, str], None]) -> None:
    """Write config, float32 weights, tokenizer and generation config of `source` into `target`.

    The weights are the dequantised ones, bit for bit. Raises ConversionFailed.
    """
    progress(0, 1, "reading the model file")
    reader = GGUFReader(str(source))
    fields = reader.fields

    def value(key: str, default: Any = None) -> Any:
        return fields[key].contents() if key in fields else default

    architecture = value("general.architecture")
    if architecture != "llama":
        raise ConversionFailed(f"{source.name} holds a {architecture!r} model, not llama")

    names = {tensor.name for tensor in reader.tensors}
    heads, kv_heads = value("llama.attention.head_count"), value("llama.attention.head_count_kv")
    context = value("llama.context_length")
    ids = {
        "bos_token_id": value("tokenizer.ggml.bos_token_id"),
        "eos_token_id": value("tokenizer.ggml.eos_token_id"),
        "pad_token_id": value("tokenizer.ggml.padding_token_id"),
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": value("llama.vocab_size"),
        "hidden_size": value("llama.embedding_length"),
        "intermediate_size": value("llama.feed_forward_length"),
        "num_hidden_layers": value("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": context,
        # GGUF keeps float32: 9.999999747e-06 stands for 1e-05.
        "rms_norm_eps": float(f"{value('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": value("llama.rope.freq_base"),
        },
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in names,
        **ids,
    }
    _save_json(target / "config.json", config)
    _save_json(target / "generation_config.json", ids)
    _save_tokenizer(value, target, context)

    interleaved = {"attn_q": heads, "attn_k": kv_heads}
    tensors = {}
    total = len(reader.tensors)
    for done, tensor in enumerate(reader.tensors):
        progress(done, total + 1, "converting tensors")
        weights = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        for part, count in interleaved.items():
            if f".{part}." in tensor.name:
                weights = _halves_apart(weights, count)
        tensors[_hf_name(tensor.name)] = np.ascontiguousarray(weights)
    progress(total, total + 1, "writing weights")
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    progress(total + 1, total + 1, "converted")


def _hf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if stem in _TOP_NAMES:
        return f"{_TOP_NAMES[stem]}.{kind}"
    if stem.startswith("blk."):
        _, layer, part = stem.split(".", 2)
        if part in _LAYER_NAMES:
            return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}"
    raise ConversionFailed(f"the tensor {name!r} is not one of a plain Llama model")


def _halves_apart(weights: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's order of Q and K rows: it interleaves the two halves RoPE rotates."""
    rows, columns = weights.shape
    return weights.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, -1)


def _save_tokenizer(value: Callable[..., Any], target: Path, context: int) -> None:
    if value("tokenizer.ggml.model") != "gpt2" or value("tokenizer.ggml.pre") != "smollm":
        raise ConversionFailed(
            f"its tokenizer is {value('tokenizer.ggml.model')!r}/{value('tokenizer.ggml.pre')!r}, "
            "only 'gpt2'/'smollm' is known"
        )
    tokens = value("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in value("tokenizer.ggml.merges")]
    backend = Tokenizer(BPE({token: i for i, token in enumerate(tokens)}, merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    types = value("tokenizer.ggml.token_type")
    backend.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == _CONTROL_TOKEN
        ]
    )
    backend.save(str(target / "tokenizer.json"))
    roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    _save_json(
        target / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "model_max_length": context,
            "chat_template": value("tokenizer.chat_template"),
        }
        | {
            f"{role}_token": tokens[value(f"tokenizer.ggml.{key}_token_id")]
            for role, key in roles.items()
        },
    )


def _save_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
