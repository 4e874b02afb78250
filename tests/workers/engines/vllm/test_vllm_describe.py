"""What a model's directory says is what the torch engine finds once it has loaded it."""

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig

from tests.transport.kv_helpers import MemorySink
from tests.transport.tcp.tcp_pair import Pair, refused, run
from tests.workers.engines.torch.helpers import tiny_llama
from workers.engines.models import ModelUnsupported, resolve_model
from workers.engines.torch.load import build_engine, load_model
from workers.engines.vllm.describe import describe


def save(folder: Path, config: PreTrainedConfig) -> Path:
    torch.manual_seed(7)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    words = {f"w{i}": i for i in range(config.vocab_size)}
    Tokenizer(WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("tied", [True, False])
def test_both_engines_describe_a_model_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tied: bool
) -> None:
    monkeypatch.setenv("PDD_CACHE", str(tmp_path / "cache"))
    config = LlamaConfig(**{**tiny_llama().to_dict(), "tie_word_embeddings": tied})
    here = save(tmp_path / "model", config)
    described = describe(here, "float32")
    info = build_engine(load_model(here), kv_tokens=64, kv_dtype="float32").info
    assert described.fingerprint == info.fingerprint
    assert described.name == info.model
    assert described.max_context == info.max_context
    assert described.vocab_size == info.vocab_size
    assert described.stop_ids == info.stop_ids
    assert describe(here, "float32") == described  # its tensors from the cache


def test_the_default_model_is_the_torch_engines(smollm_info) -> None:
    assert describe(resolve_model("smollm2-135m"), "float32").fingerprint == smollm_info.fingerprint


@pytest.fixture(scope="module")
def smollm_info():
    loaded = load_model(resolve_model("smollm2-135m"))
    return build_engine(loaded, kv_tokens=64, kv_dtype="float32").info


def test_the_dtype_is_a_part_of_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDD_CACHE", str(tmp_path / "cache"))
    here = save(tmp_path / "model", tiny_llama())
    single, half = describe(here, "float32"), describe(here, "bfloat16")
    assert single.fingerprint.tensors != half.fingerprint.tensors
    assert half.fingerprint.kv_dtype == "bfloat16"


def test_windows_are_told_and_strange_layers_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PDD_CACHE", str(tmp_path / "cache"))
    here = save(tmp_path / "model", tiny_llama())
    config = json.loads((here / "config.json").read_text())
    layers = config["num_hidden_layers"]
    kinds = ["sliding_attention", *["full_attention"] * (layers - 1)]
    changed = config | {"layer_types": kinds, "sliding_window": 8}
    (here / "config.json").write_text(json.dumps(changed))
    assert describe(here, "float32").fingerprint.windows == (8, *[None] * (layers - 1))
    changed["layer_types"] = ["linear_attention"] * layers
    (here / "config.json").write_text(json.dumps(changed))
    with pytest.raises(ModelUnsupported, match="linear_attention"):
        describe(here, "float32")


def test_pickled_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDD_CACHE", str(tmp_path / "cache"))
    here = save(tmp_path / "model", tiny_llama())
    for file in here.glob("*.safetensors"):
        file.rename(here / "pytorch_model.bin")
    with pytest.raises(ModelUnsupported, match="safetensors only"):
        describe(here, "float32")


@pytest.mark.parametrize("what", ["weights", "dtype"])
def test_a_vllm_and_a_torch_worker_that_differ_are_refused_with_both_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Before a byte of KV; both ends say what each of them has."""
    monkeypatch.setenv("PDD_CACHE", str(tmp_path / "cache"))
    here = save(tmp_path / "model", tiny_llama())
    there = here if what == "dtype" else save(tmp_path / "other", wider(tiny_llama()))
    vllm = describe(here, "float32").fingerprint
    dtype = "bfloat16" if what == "dtype" else "float32"
    torch_one = build_engine(load_model(there), kv_tokens=64, kv_dtype=dtype).info.fingerprint
    assert vllm != torch_one

    async def test() -> None:
        async with Pair(MemorySink(), model=torch_one.canonical) as pair:
            said = await refused(pair, model=vllm.canonical)
        for value in (vllm.canonical, torch_one.canonical):
            assert value in said

    run(test)


def wider(config: PreTrainedConfig) -> PreTrainedConfig:
    return LlamaConfig(**{**config.to_dict(), "intermediate_size": 2 * config.intermediate_size})
