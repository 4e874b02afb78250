"""Real KV of the default model out of a file, as much of it as a transfer needs."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from transport.base import Slice, SliceKey

LAYERS, HEADS, SIZE = 30, 3, 64  # SmolLM2-135M's
TOKEN_BYTES = 2 * LAYERS * HEADS * SIZE * 2


def tiled(path: Path, tokens: int) -> np.ndarray:
    """The file's KV again and again, up to `tokens`."""
    once = np.load(path)
    times = -(-tokens // once.shape[2])
    return np.ascontiguousarray(np.tile(once, (1, 1, times, 1, 1))[:, :, :tokens])


def slices(kv: np.ndarray, step: int) -> Iterator[Slice]:
    """`kv` [layers, 2, tokens, heads, size] in slices of `step` tokens."""
    positions = np.arange(kv.shape[2], dtype=np.int32)
    for layer, parts in enumerate(kv):
        for part, rows in zip("kv", parts, strict=True):
            whole = Slice(key=SliceKey(layer, part, 0, len(rows)), positions=positions, data=rows)
            for start in range(0, len(rows), step):
                yield whole.tokens(start, min(start + step, len(rows)))
