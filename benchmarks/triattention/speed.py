"""Decode steps of the torch engine over full and over pruned KV, and over the plainest full KV."""

import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.triattention.reading import forward
from workers.engines.torch.attention import Attender, LayerCall, PagedStep, Rows
from workers.engines.torch.load import LoadedModel
from workers.engines.torch.store import KVStore


class Contiguous:
    """Full attention over float32 KV that lies ready, one tensor a layer, KV heads not repeated.

    Nothing is gathered or rounded: what an engine without blocks does at its best.
    """

    def __init__(self, loaded: LoadedModel, batch: int, context: int) -> None:
        shape = (len(loaded.windows), 2, batch, loaded.kv_heads, context + 1, loaded.head_size)
        self._kv = torch.zeros(shape)

    def attend(self, call: LayerCall) -> torch.Tensor:
        k, v = self._kv[call.layer]
        k[:, :, -1], v[:, :, -1] = call.k.transpose(0, 1), call.v.transpose(0, 1)
        heads, batch, size = call.q.shape
        q = call.q.view(k.shape[1], -1, batch, size).permute(2, 0, 1, 3)
        out = scaled_dot_product_attention(q, k, v, scale=call.scale)
        return out.reshape(batch, heads, size)


def step_s(
    loaded: LoadedModel, batch: int, context: int, attender: Callable[[], Attender], repeats: int
) -> float:
    """CPU seconds of one decode step: what others do on this machine does not count."""
    positions, took = np.full(batch, context), []
    for _ in range(repeats + 1):
        began = time.thread_time()
        forward(loaded, [7] * batch, positions, attender())
        took.append(time.thread_time() - began)
    return median(took[1:])


def steps(
    loaded: LoadedModel, batch: int, context: int, shares: tuple[float, ...], repeats: int
) -> dict[str, float]:
    """Seconds of a step: "full", "contiguous", and each share of the tokens by its number."""
    layers = len(loaded.windows)
    store = KVStore(layers, batch * (context + 1), loaded.kv_heads, loaded.head_size, "bfloat16")

    def paged(share: float) -> Callable[[], Attender]:
        kept = np.append(np.linspace(0, context - 1, round(share * context)).astype(int), context)
        rows = [
            Rows(i, context, context + 1, context, kept, i * (context + 1) + kept)
            for i in range(batch)
        ]
        return lambda: PagedStep(store, rows, lambda layer: None)

    contiguous = Contiguous(loaded, batch, context)
    found = {
        "full": step_s(loaded, batch, context, paged(1.0), repeats),
        "contiguous": step_s(loaded, batch, context, lambda: contiguous, repeats),
    }
    for share in shares:
        found[str(share)] = step_s(loaded, batch, context, paged(share), repeats)
    return found
