"""Caches as vLLM keeps them, and a pool, without vLLM."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from workers.engines.vllm.inside.copier import CachedLayer, Copier
from workers.engines.vllm.inside.layouts import VIEWS
from workers.engines.vllm.pool import PoolShape, SharedPool

LAYERS, HEADS, HEAD, SLOTS, SIZE = 3, 4, 8, 96, 16
SHAPE = PoolShape(
    layers=LAYERS,
    slots=SLOTS,
    kv_heads=HEADS,
    head_size=HEAD,
    kv_dtype="float32",
    block_size=SIZE,
    rows=4,
    ranks=1,
)


def shape(**changes: object) -> PoolShape:
    return PoolShape(**{f: getattr(SHAPE, f) for f in SHAPE.__slots__} | changes)  # type: ignore[arg-type]


def cache(blocks: int, size: int, heads: int = HEADS, dtype: torch.dtype = torch.float32):
    """A cache full of nothing, for a layer."""
    return torch.full((blocks, heads, size, 2 * HEAD), float("nan"), dtype=dtype)


def paired(blocks: int, size: int) -> list[torch.Tensor]:
    """The same as two tensors."""
    return [torch.full((blocks, size, HEADS, HEAD), float("nan")) for _ in range(2)]


def copier(
    folder: Path,
    caches: list[Any],
    *,
    size: int,
    kind: str = "content",
    rank: int = 0,
    ranks: int = 1,
    groups: tuple[int, ...] = (0, 0, 0),
) -> Copier:
    layers = {
        f"model.layers.{n}.attn": CachedLayer(n, groups[n], caches[n], VIEWS[kind])
        for n in range(len(caches))
    }
    sizes = [size] * (max(groups) + 1)
    return Copier(lambda name: SharedPool.open(folder, name), layers, sizes, rank=rank, ranks=ranks)


def save_all(one: Copier) -> None:
    for n in range(LAYERS):
        one.save(f"model.layers.{n}.attn")


def values(tokens: int, seed: int = 0) -> np.ndarray:
    """[layers, 2, tokens, heads, head]."""
    return np.random.default_rng(seed).random((LAYERS, 2, tokens, HEADS, HEAD), dtype=np.float32)
