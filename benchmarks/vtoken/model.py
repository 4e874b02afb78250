"""The default model's own attention: which tokens die of a real text, and what a table costs."""

import inspect
import time
from statistics import median
from typing import Any

import numpy as np
import tokenizers
import torch

from benchmarks.triattention.reading import read
from benchmarks.triattention.speed import steps
from workers.api.messages import Sampling
from workers.engines.base import SeqId, SequenceSpec
from workers.engines.models import DEFAULT_MODEL, resolve_model
from workers.engines.paged.sequence import PagedSequence
from workers.engines.torch.load import LoadedModel, load_model
from workers.kv.evict.attention import Attention
from workers.kv.evict.config import Eviction
from workers.kv.evict.dying import name_dying
from workers.kv.pool import BlockTable
from workers.kv.tokens import TokenTable

_ROUNDS = 200


def load() -> LoadedModel:
    """The default model, on one thread. Raises ModelNotFound."""
    torch.set_num_threads(1)
    return load_model(resolve_model(DEFAULT_MODEL))


def attention_of(loaded: LoadedModel, context: int) -> Attention:
    """What the tokens of a real text, source code, were paid by one another."""
    tokenizer = tokenizers.Tokenizer.from_file(str(loaded.tokenizer_file))
    ids = tokenizer.encode(inspect.getsource(inspect)).ids[:context]
    return read(loaded, "code", ids, [context]).paid[context].all


def blocks(
    attention: Attention, policy: str, ratio: float, block_size: int, context: int
) -> tuple[int, int]:
    """Blocks that a context holds when so much of it is dead: in place, and packed."""
    eviction = Eviction(policy=policy, budget=1 - ratio, slack=1, recent=32, first=4)
    every = np.arange(context)
    dying = name_dying(eviction, every, context, 0, name="code", attention=attention)
    living = np.setdiff1d(every, dying)
    return len(np.unique(living // block_size)), -(-len(living) // block_size)


def table_overhead(loaded: LoadedModel, batch: int, context: int) -> dict[str, Any]:
    """What finding a batch's slots takes by tables and without, beside a decode step.

    The tables lack one token each, so that they are there and attention is as much.
    """
    size = 16
    count = context // size + 1
    spec = SequenceSpec(tokens=(1,), prompt_len=1, reserve=context, sampling=Sampling())
    plain = PagedSequence(id=SeqId("a", 0), spec=spec, root=b"", computed=context)
    plain.table = BlockTable(blocks=list(range(count)))
    tabled = PagedSequence(id=SeqId("b", 0), spec=spec, root=b"", computed=context)
    tabled.table = BlockTable(blocks=list(range(count)))
    tabled.kept = TokenTable(size, context)
    tabled.kept.kill(np.array([context // 2]))

    def slots_s(sequence: PagedSequence) -> float:
        took = []
        for _ in range(_ROUNDS):
            began = time.perf_counter()
            sequence.living(0, context)
            sequence.slots(size, 0, context)
            took.append(time.perf_counter() - began)
        return median(took)

    step_s = steps(loaded, batch, context, (), 3)["full"]
    more_s = batch * max(0.0, slots_s(tabled) - slots_s(plain))
    return {"batch": batch, "context": context, "step_s": step_s, "more_s": more_s}
