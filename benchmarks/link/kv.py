"""Real KV of the default model out of a file, as much of it as a transfer needs."""

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


def slices(kv: np.ndarray, tokens: int, step: int) -> list[Slice]:
    """The first `tokens` of each layer and part, in slices of `step` tokens."""
    return [
        Slice(
            key=SliceKey(layer, part, start, min(start + step, tokens)),
            positions=np.arange(start, min(start + step, tokens), dtype=np.int32),
            data=kv[layer, number, start : min(start + step, tokens)],
        )
        for layer in range(LAYERS)
        for number, part in enumerate("kv")
        for start in range(0, tokens, step)
    ]
