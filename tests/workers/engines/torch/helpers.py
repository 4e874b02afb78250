"""Running sequences to their end, transformers' own answer, and the rule for equal tokens."""

from typing import NamedTuple

import torch
from transformers import DynamicCache, LlamaConfig, PreTrainedModel

from workers.api.messages import Sampling
from workers.engines.base import SeqId, SequenceSpec
from workers.engines.torch.engine import TorchEngine

NEAR_TIE = 0.05  # logits


class Output(NamedTuple):
    """New tokens of one sequence, and by how much each beat the next best."""

    tokens: list[int]
    margins: list[float]


def sequence_spec(tokens: list[int], new: int = 16, **more: object) -> SequenceSpec:
    sampling = Sampling(margins=True)
    values = {
        "tokens": tokens,
        "prompt_len": len(tokens),
        "reserve": len(tokens) + new,
        "sampling": sampling,
    }
    return SequenceSpec(**(values | more))


def collect(engine: TorchEngine, seqs: list[SeqId]) -> list[Output]:
    """Run until no sequence has work."""
    outputs = {seq: Output([], []) for seq in seqs}
    for _ in range(2000):
        step = engine.begin()
        if step is None:
            return [outputs[seq] for seq in seqs]
        for sample in engine.finish(step).samples:
            outputs[sample.seq].tokens.append(sample.token)
            outputs[sample.seq].margins.append(sample.margin)
    raise AssertionError("still at work after 2000 steps")


def complete(
    engine: TorchEngine, prompts: list[list[int]], new: int, reuse: bool = False, **more: object
) -> list[Output]:
    """Open, run together and close."""
    seqs = [SeqId(f"complete-{i}", 0) for i in range(len(prompts))]
    for seq, prompt in zip(seqs, prompts, strict=True):
        engine.open(seq, sequence_spec(prompt, new, **more), reuse=reuse)
        engine.set_goal(seq, len(prompt) + new)
    outputs = collect(engine, seqs)
    for seq in seqs:
        engine.close(seq)
    return outputs


def near_ties(ours: Output, theirs: list[int]) -> int:
    """0: equal; 1: first different at a near tie. Anything else fails."""
    assert len(ours.tokens) == len(theirs)
    for i, (mine, other) in enumerate(zip(ours.tokens, theirs, strict=True)):
        if mine != other:
            assert ours.margins[i] <= NEAR_TIE, f"differs at {i} by {ours.margins[i]}"
            return 1
    return 0


class RoundingCache(DynamicCache):
    """Keeps, and gives back, K and V rounded to bfloat16."""

    def update(self, key_states, value_states, *args, **kwargs):
        rounded = [t.bfloat16().float() for t in (key_states, value_states)]
        return super().update(*rounded, *args, **kwargs)


def generate(model: PreTrainedModel, prompts: list[list[int]], new: int) -> list[list[int]]:
    """transformers' own greedy answer, `new` tokens whatever they are, prompts padded left."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    cache = RoundingCache(config=model.config.get_text_config())
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            cache=cache,
            eos_token_id=None,
            pad_token_id=0,
        )
    return out[:, longest:].tolist()


TINY = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}


def tiny_llama(**more: object) -> LlamaConfig:
    return LlamaConfig(**(TINY | more))
