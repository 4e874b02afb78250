"""Eviction in the torch engine: against transformers' own attention with the dead hidden."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.workers.engines.torch.helpers import collect, near_ties, sequence_spec, tiny_llama
from workers.api.info import Part
from workers.engines.base import SeqId
from workers.engines.torch.engine import TorchEngine
from workers.engines.torch.load import build_engine, load_model
from workers.kv.evict.config import Eviction, Reclaim

A, B, C = SeqId("a", 1), SeqId("b", 1), SeqId("c", 1)
RANDOM = Eviction(policy="random", budget=0.4, slack=30, recent=10, first=2, low=1.0)


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, 512, length).tolist()


@pytest.fixture(scope="module")
def tiny_dir(save_tiny):
    torch.set_num_threads(1)
    return save_tiny(tiny_llama())


@pytest.fixture(scope="module")
def loaded(tiny_dir):
    return load_model(tiny_dir)


def engine(loaded, eviction: Eviction | None = RANDOM, **more: object) -> TorchEngine:
    sizes = {"kv_tokens": 1024, "kv_dtype": "float32", "chunk_tokens": 48}
    return build_engine(loaded, **(sizes | more), eviction=eviction)


def begin(one: TorchEngine, seq: SeqId, tokens: list[int], new: int) -> None:
    one.open(seq, sequence_spec(tokens, new), reuse=False)
    one.set_goal(seq, len(tokens) + new)


def test_the_dead_are_not_attended_to_and_the_living_are(tiny_dir, loaded) -> None:
    """Tokens die once, when the prompt is computed; transformers is told by a mask."""
    one, tokens, new = engine(loaded), prompt(80), 20
    begin(one, A, tokens, new)
    ours = collect(one, [A])[0]
    kept = one.read(A, 0, Part.KEY, 0, 99).positions
    assert len(kept) == 32 + 19
    dead = np.setdiff1d(np.arange(80), kept)

    model = AutoModelForCausalLM.from_pretrained(tiny_dir, attn_implementation="eager").eval()
    ids, theirs = list(tokens), []
    for _ in range(new):
        n = len(ids)
        mask = torch.full((n, n), float("-inf")).triu(1)
        mask[80:, dead] = float("-inf")  # the prompt itself was computed while all of it lived
        with torch.inference_mode():
            logits = model(torch.tensor([ids]), attention_mask=mask[None, None]).logits
        theirs.append(int(logits[0, -1].argmax()))
        ids.append(theirs[-1])
    assert near_ties(ours, theirs) == 0


@pytest.mark.parametrize("reclaim", Reclaim)
@pytest.mark.parametrize("block_size", [4, 16])
def test_packing_changes_no_token(loaded, reclaim: Reclaim, block_size: int) -> None:
    """Ragged batches, several rounds of dying, prompts in chunks; alone and unpacked the same."""
    tight = replace(RANDOM, slack=6)
    prompts = {A: prompt(90), B: prompt(33, 1), C: prompt(64, 2)}
    alone = {}
    for seq, tokens in prompts.items():
        plain = engine(loaded, replace(tight, low=0.0))
        begin(plain, seq, tokens, 40)
        alone[seq] = collect(plain, [seq])[0]
        assert plain.kept().evicted_tokens > 0
    together = engine(loaded, replace(tight, reclaim=reclaim), block_size=block_size)
    for seq, tokens in prompts.items():
        begin(together, seq, tokens, 40)
    for seq, output in zip(prompts, collect(together, list(prompts)), strict=True):
        assert near_ties(output, alone[seq].tokens) == 0
    if reclaim is Reclaim.REPACK:
        assert together._keeping.counts.moved_tokens > 0


def test_a_pruned_prompt_goes_on_elsewhere_with_the_same_tokens(loaded) -> None:
    source, target = engine(loaded), engine(loaded, None, block_size=32)
    tokens = prompt(80)
    begin(source, A, tokens, 21)
    whole = collect(source, [A])[0]
    source.close(A)
    begin(source, A, tokens, 1)
    first = collect(source, [A])[0].tokens
    target.open(A, sequence_spec([*tokens, *first], 20, prompt_len=80), reuse=False)
    target.open_import(A, 80)
    for layer in range(4):
        for part in Part:
            for start, stop in ((40, 80), (0, 40)):
                target.put(A, source.read(A, layer, part, start, stop))
    target.commit_import(A)
    assert target.kv_held_tokens() == 32
    target.set_goal(A, 101)
    rest = collect(target, [A])[0].tokens
    assert near_ties(whole, [*first, *rest]) == 0


@pytest.mark.parametrize("policy", ["h2o", "scissorhands"])
def test_what_tokens_were_paid_is_what_attention_says(tiny_dir, loaded, policy: str) -> None:
    one, tokens = engine(loaded, replace(RANDOM, policy=policy, budget=500)), prompt(70)
    begin(one, A, tokens, 3)
    said = collect(one, [A])[0].tokens
    model = AutoModelForCausalLM.from_pretrained(tiny_dir, attn_implementation="eager").eval()
    with torch.inference_mode():
        out = model(torch.tensor([[*tokens, *said]]), output_attentions=True)
    paid = torch.stack(out.attentions).mean(dim=(0, 1, 2)).numpy()  # layers, batch, heads
    attention = one._sequences[A].attention
    assert attention.mass == pytest.approx(paid.sum(axis=0), abs=1e-3)
    assert attention.queries == 73


def test_h2o_keeps_the_heavy_hitters(loaded) -> None:
    one = engine(loaded, replace(RANDOM, policy="h2o", budget=40))
    begin(one, A, prompt(90), 2)
    collect(one, [A])
    mass = one._sequences[A].attention.mass
    kept = one.read(A, 0, Part.KEY, 0, 80).positions
    dead = np.setdiff1d(np.arange(2, 80), kept)
    assert mass[dead].max() < np.median(mass[kept])
