"""Loading: what is refused and why, and what the fingerprint tells apart."""

import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import (
    BloomConfig,
    GptOssConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Qwen2Config,
)

from tests.workers.engines.torch.helpers import TINY, tiny_llama
from workers.engines.models import ModelError, ModelNotFound, ModelUnsupported
from workers.engines.torch.load import build_engine, load_model


@pytest.fixture
def copy(save_tiny, tmp_path: Path) -> Path:
    """A tiny Llama that a test may damage."""
    return Path(shutil.copytree(save_tiny(tiny_llama()), tmp_path / "copy"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PDD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_info_of_the_default_model(smollm) -> None:
    info = build_engine(smollm, kv_tokens=1000, block_size=48).info
    assert (info.engine, info.model) == ("torch", "smollm2-135m")
    assert (info.block_size, info.kv_total_tokens) == (48, 960)
    assert (info.max_context, info.vocab_size, info.stop_ids) == (8192, 49152, (2,))
    assert info.kv_bytes_per_token == 23040
    fingerprint = info.fingerprint
    assert (fingerprint.layers, fingerprint.kv_heads, fingerprint.head_size) == (30, 3, 64)
    assert fingerprint.windows == (None,) * 30
    assert fingerprint.rope == '{"rope_theta": 100000.0, "rope_type": "default"}'


def test_stop_ids_come_from_the_generation_config(copy: Path) -> None:
    (copy / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    assert load_model(copy).stop_ids == (2, 7)


def test_fingerprint_is_of_the_tensors_not_of_the_file(copy: Path, own_cache: Path) -> None:
    before = load_model(copy)
    assert load_model(copy).tensors == before.tensors
    assert len(list((own_cache / "tensors").iterdir())) == 1
    path = copy / "model.safetensors"
    tensors = load_file(path)
    save_file(dict(reversed(tensors.items())), path, metadata={"format": "pt", "written": "again"})
    assert load_model(copy).tensors == before.tensors
    tensors["model.layers.2.mlp.up_proj.weight"].reshape(-1).view(np.uint32)[5] ^= 1
    save_file(tensors, path, metadata={"format": "pt"})
    assert load_model(copy).tensors != before.tensors
    assert len(list((own_cache / "tensors").iterdir())) == 3


def test_fingerprint_without_a_writable_cache(copy: Path, own_cache: Path) -> None:
    before = load_model(copy).tensors
    shutil.rmtree(own_cache)
    own_cache.write_text("in the way")
    assert load_model(copy).tensors == before


def test_fingerprint_tells_windows_rope_dtype_and_tokenizer_apart(save_tiny, copy: Path) -> None:
    def fingerprint(path: Path, **how: str) -> dict[str, object]:
        return asdict(build_engine(load_model(path), kv_tokens=64, **how).info.fingerprint)

    def differing(one: dict[str, object], other: dict[str, object]) -> set[str]:
        return {name for name in one if one[name] != other[name]}

    plain = fingerprint(copy)
    assert differing(plain, fingerprint(copy)) == set()
    assert differing(plain, fingerprint(copy, kv_dtype="float16")) == {"kv_dtype"}
    turned = tiny_llama(rope_parameters={"rope_type": "default", "rope_theta": 5000.0})
    assert "rope" in differing(plain, fingerprint(save_tiny(turned)))
    windows = [fingerprint(save_tiny(MistralConfig(**TINY, sliding_window=w))) for w in (16, 17)]
    assert "windows" in differing(*windows)
    text = (copy / "tokenizer.json").read_text()
    (copy / "tokenizer.json").write_text(text.replace('"w9"', '"v9"'))
    assert differing(plain, fingerprint(copy)) == {"tokenizer"}


def one_line(caught: pytest.ExceptionInfo[ModelError], path: Path) -> str:
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text
    return text


def test_a_missing_tensor_is_refused_not_made_up(copy: Path) -> None:
    path = copy / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ModelError) as caught:
        load_model(copy)
    assert "model.layers.1.mlp.up_proj.weight" in one_line(caught, copy)


def test_weights_of_another_shape_are_refused(copy: Path) -> None:
    LlamaConfig(**(TINY | {"intermediate_size": 96})).save_pretrained(copy)
    with pytest.raises(ModelError) as caught:
        load_model(copy)
    one_line(caught, copy)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("model.safetensors", b"not a tensor file"),
        ("config.json", b"{"),
        ("config.json", b'{"model_type": "from_the_future"}'),
    ],
)
def test_damaged_files_are_refused(copy: Path, file: str, content: bytes) -> None:
    (copy / file).write_bytes(content)
    with pytest.raises(ModelError) as caught:
        load_model(copy)
    one_line(caught, copy)


def test_a_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        load_model(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (
            tiny_llama(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
            "dynamic",
        ),
        (MambaConfig(vocab_size=512, hidden_size=32, num_hidden_layers=2, state_size=8), "mamba"),
        (BloomConfig(vocab_size=512, hidden_size=32, n_layer=2, n_head=4), "bloom"),
        (
            GptOssConfig(
                **(TINY | {"num_local_experts": 2, "num_experts_per_tok": 1}), sliding_window=16
            ),
            "s_aux",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value.model_type,
)
def test_what_is_not_plain_causal_kv_is_refused(config, why: str, save_tiny) -> None:
    path = save_tiny(config)
    with pytest.raises(ModelUnsupported) as caught:
        load_model(path)
    assert why in one_line(caught, path)


@pytest.mark.parametrize(
    "how",
    [
        {"kv_dtype": "int8"},
        {"block_size": 0},
        {"kv_tokens": 8},
        {"chunk_tokens": 0},
    ],
    ids=str,
)
def test_impossible_sizes(tiny, how: dict) -> None:
    with pytest.raises(ValueError):
        build_engine(tiny, **({"kv_tokens": 64} | how))


def test_a_model_with_biases_and_tied_weights_loads(save_tiny) -> None:
    loaded = load_model(save_tiny(Qwen2Config(**(TINY | {"tie_word_embeddings": True}))))
    assert loaded.windows == (None,) * 4
