"""pdd bench codec, over a model small enough to make here."""

import dataclasses

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks import codec as bench
from benchmarks.link.kv import slices
from transport.codecs.table import CODECS


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.3,  # so that it has opinions
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def reading(model: LlamaForCausalLM) -> bench.Reading:
    ids = torch.randint(0, 97, (1, 360), generator=torch.Generator().manual_seed(1))
    return bench.read(model, "noise", ids, prompt=300)


def test_a_reading_is_the_model_over_its_own_kv(model: LlamaForCausalLM, reading: bench.Reading):
    assert reading.kv.shape == (2, 2, 300, 1, 64)
    pieces = list(slices(reading.kv, 256))
    assert [piece.key[:4] for piece in pieces[:3]] == [
        (0, "k", 0, 256),
        (0, "k", 256, 300),
        (0, "v", 0, 256),
    ]
    assert sum(piece.data.nbytes for piece in pieces) == reading.kv.nbytes
    assert reading.logits.exp().sum(-1) == pytest.approx(np.ones(60), abs=1e-4)


def test_what_is_lost_shows(model: LlamaForCausalLM, reading: bench.Reading):
    quality = {name: bench.quality_of(model, name, reading) for name in CODECS}
    for name in ("raw", "zstd", "huffman"):
        assert quality[name] == {"kl": 0.0, "top1": 1.0}
    assert quality["int8"] == quality["int8+zstd"]
    assert 0 < quality["int8"]["kl"] < quality["k8v4"]["kl"] < quality["int4"]["kl"]
    assert all(0 <= q["top1"] <= 1 for q in quality.values())
    assert quality["int8"]["top1"] > 0.9


def test_the_measure_of_nothing_lost_is_nothing(model: LlamaForCausalLM, reading: bench.Reading):
    # All the prompt that is not kept exactly is zero, which int8 does not change.
    kv = reading.kv.copy()
    kv[:, :, 4:] = 0
    same = dataclasses.replace(reading, kv=kv, logits=bench.continuation(model, kv, reading.rest))
    quality = bench.quality_of(model, "int8", same)
    assert quality == {"kl": pytest.approx(0.0, abs=1e-6), "top1": 1.0}


def test_a_codec_that_is_not_what_it_is_called(
    model: LlamaForCausalLM, reading: bench.Reading, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(CODECS, "int8", dataclasses.replace(CODECS["int8"], lossless=True))
    with pytest.raises(RuntimeError, match="int8 is called lossless and is not"):
        bench.quality_of(model, "int8", reading)


@pytest.mark.parametrize("name", CODECS)
def test_a_row(name: str, reading: bench.Reading):
    pieces = list(slices(reading.kv, 256))
    row = bench.speed_of(name, pieces, rounds=2)
    assert row.keys() == {"ratio", "encode_MBps", "decode_MBps"}
    assert row["ratio"] >= 1
    assert row["encode_MBps"] > 0
    assert row["decode_MBps"] > 0
    assert bench.two_threads_mb_per_s(name, pieces) > 0
