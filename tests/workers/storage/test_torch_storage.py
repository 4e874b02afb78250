"""The torch engine through a store: another engine goes on with the same tokens."""

import queue
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM

from tests.workers.engines.torch.helpers import (
    collect,
    complete,
    near_ties,
    sequence_spec,
    tiny_llama,
)
from tests.workers.server_rig import SECRET, wait_until
from workers.engines.base import SeqId
from workers.engines.torch.load import LoadedModel, build_engine, load_model
from workers.kv.prefix import block_names
from workers.outputs import LoadBlocks, SaveBlocks
from workers.storage.storage import Storage
from workers.tiers.client import StoreClient
from workers.tiers.server import StoreServer
from workers.tiers.store import BlockStore, StoreConfig

A = SeqId("a", 1)
PROMPT = [(i * 7) % 500 + 3 for i in range(150)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    torch.set_num_threads(1)
    torch.manual_seed(7)
    path = tmp_path_factory.mktemp("llama")
    config = tiny_llama()
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    words = {f"w{i}": i for i in range(config.vocab_size)}
    Tokenizer(WordLevel(words, unk_token="w0")).save(str(path / "tokenizer.json"))
    return load_model(path)


@pytest.mark.parametrize("block_size", [16, 48])
def test_another_engine_loads_what_one_computed(
    tiny: LoadedModel, tmp_path: Path, block_size: int
) -> None:
    store = BlockStore(StoreConfig(memory_bytes=1 << 24, files=tmp_path, files_bytes=1 << 24))
    server = StoreServer(store, socket.create_server(("127.0.0.1", 0)), SECRET)
    server.start()
    try:
        done: queue.Queue[SeqId] = queue.Queue()
        source, target = (build_engine(tiny, kv_tokens=960, block_size=b) for b in (16, block_size))
        ways = [
            Storage(engine, [StoreClient(server.address, SECRET)], None, done.put)
            for engine in (source, target)
        ]
        whole = complete(source, [PROMPT], 20)[0]
        known = (*PROMPT, *whole.tokens[:-1])[:160]
        ways[0].save(SaveBlocks(tokens=known, cache_salt="", tenant="t"))
        wait_until(lambda: ways[0].counts().get("saved_blocks") == 10)

        target.open(A, sequence_spec(PROMPT, 20), reuse=True)
        target.open_import(A, 144)
        order = LoadBlocks(
            seq=A,
            tokens=known[:144],
            cache_salt="",
            have=0,
            prefill_tokens_per_s=100.0,
            sent_otherwise=False,
            limit_s=10.0,
        )
        ways[1].load(order)
        assert done.get(timeout=20) == A
        assert target.keep_import(A) == 144
        target.set_goal(A, len(PROMPT) + 20)
        ours = collect(target, [A])[0]
        assert near_ties(ours, whole.tokens) == 0
        name = block_names(source.info.fingerprint.canonical, "", PROMPT[:48])[-1]
        bits = source.read_cached(name)
        assert bits is not None
        assert bits.shape == (4, 2, 16, 2, 16)
        for layer in range(4):
            read = target.read(A, layer, "v", 32, 48)  # type: ignore[arg-type]
            np.testing.assert_array_equal(bits[layer, 1], read.data)
    finally:
        server.close()
