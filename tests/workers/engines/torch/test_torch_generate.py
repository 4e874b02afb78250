"""Greedy tokens equal transformers' `generate` with a cache that rounds K and V alike."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma2Config,
    Gemma3TextConfig,
    MistralConfig,
    Qwen3Config,
)

from tests.workers.engines.torch.helpers import TINY, complete, generate, near_ties
from workers.engines.torch.load import build_engine, load_model

QUESTIONS = [
    "What is the capital of France?",
    "Name three primary colours.",
    "Why is the sky blue?",
    "Write a haiku about rain.",
    "How many legs does a spider have?",
    "Translate 'good morning' into Spanish.",
    "What is 12 times 7?",
    "Who wrote Hamlet?",
    "List the planets of the solar system.",
    "Explain gravity to a child.",
    "What does a compiler do?",
    "Give me a name for a cat.",
    "What is the boiling point of water?",
    "Tell me a short joke.",
    "How do bees make honey?",
    "What is photosynthesis?",
    "Define entropy in one sentence.",
    "Suggest a healthy breakfast.",
    "What is the largest ocean?",
    "How does a bicycle stay upright?",
]
# The model's own template without its system prompt, which would double what there is to compute.
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
NEW = 8
NEW_ALONE = 3  # one row a step is slow


@pytest.mark.timeout(300)  # the most that any test computes
def test_twenty_prompts_alone_and_in_a_mixed_batch(smollm, smollm_dir) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm_dir)
    prompts = [tokenizer(CHAT.format(text)).input_ids for text in QUESTIONS]
    reference = AutoModelForCausalLM.from_pretrained(smollm_dir, dtype=torch.float32)
    theirs = generate(reference, prompts, NEW)
    del reference
    engine = build_engine(smollm, kv_tokens=4096)
    together = complete(engine, prompts, NEW)
    alone = [complete(engine, [prompt], NEW_ALONE)[0] for prompt in prompts]
    ties = [near_ties(a, b) for a, b in zip(together, theirs, strict=True)]
    ties += [near_ties(a, b[:NEW_ALONE]) for a, b in zip(alone, theirs, strict=True)]
    assert sum(ties) <= 4, "near ties are the exception"
    assert tokenizer.decode(together[0].tokens).startswith("The capital of France is Paris")
    assert engine.kv_held_tokens() == 0


@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(**TINY, sliding_window=24),
        Gemma3TextConfig(
            **TINY,
            sliding_window=24,
            layer_types=["sliding_attention", "full_attention"] * 2,
            query_pre_attn_scalar=16,
        ),
        Gemma2Config(
            **TINY,
            sliding_window=24,
            layer_types=["sliding_attention", "full_attention"] * 2,
            attn_logit_softcapping=5.0,
            query_pre_attn_scalar=16,
        ),
        Qwen3Config(**TINY),
    ],
    ids=lambda config: config.model_type,
)
@pytest.mark.parametrize("chunk_tokens", [7, 128])
def test_other_architectures_and_windows(config, chunk_tokens, save_tiny) -> None:
    """Prompts shorter than, around and much longer than the window, chunked and not."""
    path = save_tiny(config)
    prompts = [[(i * k) % 500 + 3 for i in range(n)] for k, n in ((7, 5), (11, 23), (13, 90))]
    reference = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )
    theirs = [generate(reference, [prompt], 40)[0] for prompt in prompts]
    engine = build_engine(load_model(path), kv_tokens=1024, chunk_tokens=chunk_tokens)
    outputs = complete(engine, prompts, 40)
    assert sum(near_ties(a, b) for a, b in zip(outputs, theirs, strict=True)) <= 1
    assert len({tuple(out.tokens) for out in outputs}) == 3
    windows = {w for w in engine.info.fingerprint.windows if w is not None}
    assert windows == ({24} if getattr(config, "sliding_window", None) else set())
