"""Calibration: it holds what queries were before RoPE, and only its own model takes it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, Qwen3Config

from tests.workers.engines.torch.helpers import TINY, collect, sequence_spec, tiny_llama
from workers.api.info import Part
from workers.engines.base import SeqId
from workers.engines.models import ModelError, ModelUnsupported
from workers.engines.torch.calibrate import calibrate, calibration_file, find_calibration
from workers.engines.torch.load import build_engine, load_model
from workers.kv.evict.config import Eviction, Heads
from workers.kv.evict.triattention import paired

A = SeqId("a", 1)
TEXTS = [np.random.default_rng(n).integers(3, 512, 300).tolist() for n in range(2)]


def nobody(done: int, total: int) -> None:
    """Progress that is not watched."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDD_CACHE", str(tmp_path))


def heard(path: Path, ids: list[int]) -> np.ndarray:
    """Queries before RoPE and after any q-norm, [layers, heads, tokens, D/2], by transformers."""
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").eval()
    found = []
    for layer in model.model.layers:
        at = getattr(layer.self_attn, "q_norm", layer.self_attn.q_proj)
        at.register_forward_hook(lambda module, inputs, output: found.append(output))
    with torch.inference_mode():
        model(torch.tensor([ids]))
    tokens = len(ids)
    rows = [q.reshape(tokens, -1, TINY["head_dim"]).transpose(0, 1).numpy() for q in found]
    return paired(np.stack(rows))


@pytest.mark.parametrize("config", [tiny_llama(), Qwen3Config(**TINY)], ids=["llama", "qwen3"])
def test_what_is_kept_is_what_the_queries_are_before_rope(save_tiny, config) -> None:
    path = save_tiny(config)
    found = calibrate(load_model(path), TEXTS, nobody)
    queries = np.concatenate([heard(path, ids) for ids in TEXTS], axis=2)
    assert found.tokens == 600
    scale = float(np.abs(queries).mean())
    assert found.mean == pytest.approx(queries.mean(axis=2), abs=0.02 * scale)
    assert found.size == pytest.approx(np.abs(queries).mean(axis=2), abs=0.02 * scale)


def test_two_kinds_of_rope_are_refused(save_tiny) -> None:
    loaded = load_model(save_tiny(Gemma3TextConfig(**TINY, sliding_window=8, layer_types=None)))
    with pytest.raises(ModelUnsupported, match="kinds of RoPE"):
        calibrate(loaded, TEXTS, nobody)


def test_without_one_the_way_out_is_named(tiny) -> None:
    with pytest.raises(ModelError, match=f"pdd calibrate {tiny.name}"):
        find_calibration(tiny, None)


def test_it_is_of_one_model_and_no_other(save_tiny, tiny, tmp_path: Path) -> None:
    found = calibrate(tiny, TEXTS[:1], nobody)
    found.save(calibration_file(tiny))
    assert np.array_equal(find_calibration(tiny, None).mean, found.mean)
    other = load_model(save_tiny(tiny_llama(rope_theta=777.0)))
    with pytest.raises(ModelError, match=r"another model: rope here .*777"):
        find_calibration(replace(other, tensors=tiny.tensors), str(calibration_file(tiny)))
    torn = tmp_path / "torn.npz"
    torn.write_bytes(b"PK")
    with pytest.raises(ModelError, match="no calibration"):
        find_calibration(tiny, str(torn))


@pytest.mark.parametrize("heads", [Heads.UNION, Heads.SHARES])
def test_an_engine_prunes_by_it(tiny, heads: Heads) -> None:
    eviction = Eviction(
        policy="triattention", budget=40, slack=16, recent=8, first=2, low=1.0, heads=heads
    )
    with pytest.raises(ValueError, match="calibration"):
        build_engine(tiny, kv_tokens=256, eviction=eviction)
    found = calibrate(tiny, TEXTS, nobody)
    engine = build_engine(tiny, kv_tokens=256, eviction=eviction, calibration=found)
    engine.open(A, sequence_spec(TEXTS[0][:100], 30), reuse=False)
    engine.set_goal(A, 130)
    assert len(collect(engine, [A])[0].tokens) == 30
    kept = engine.read(A, 0, Part.KEY, 0, 100).positions
    assert {0, 1} <= set(kept.tolist())
    assert engine.kv_held_tokens() <= 64
