"""The memory of a KV pool: one tensor, and the same bits as a numpy array."""

import numpy as np
import torch

from workers.api.info import BYTES_PER_ELEMENT, Part

_BITS = {2: torch.uint16, 4: torch.uint32}
_SIDE = {Part.KEY: 0, Part.VALUE: 1}


class KVStore:
    """K and V of every layer and slot; slot = block x block size + offset.

    `bits`: [layers, 2, slots, kv_heads, head_size], unsigned, the raw bits of `dtype`.
    """

    def __init__(self, layers: int, slots: int, kv_heads: int, head_size: int, dtype: str) -> None:
        # Zeros, not empty: whatever a padded row of attention gathers must be finite.
        self._values = torch.zeros(
            (layers, 2, slots, kv_heads, head_size), dtype=getattr(torch, dtype)
        )
        self.bits: np.ndarray = self._values.view(_BITS[BYTES_PER_ELEMENT[dtype]]).numpy()
        # Indexing a tensor costs more than a decode step's gather: the views are made once.
        self._sides = [(self._values[layer, 0], self._values[layer, 1]) for layer in range(layers)]

    def write(self, layer: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Round and store k and v, [tokens, kv_heads, head_size], at `slots`, [tokens] int64."""
        keys, values = self._sides[layer]
        keys.index_copy_(0, slots, k.to(keys.dtype))
        values.index_copy_(0, slots, v.to(values.dtype))

    def gather(self, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Stored K and V at `slots`, [n] int64, each [n, kv_heads, head_size] float32."""
        keys, values = self._sides[layer]
        return keys.index_select(0, slots).float(), values.index_select(0, slots).float()

    def copy_slots(self, source: np.ndarray, target: np.ndarray) -> None:
        """Copy every layer's K and V from slots `source` to slots `target`."""
        self.bits[:, :, target] = self.bits[:, :, source]

    def read_bits(self, layer: int, part: Part, slots: np.ndarray) -> np.ndarray:
        """A copy of the bits at `slots`, [n, kv_heads, head_size]."""
        return self.bits[layer, _SIDE[part], slots]

    def values(self, layer: int, part: Part) -> torch.Tensor:
        """All of one layer's K or V in place, [slots, kv_heads, head_size]."""
        return self._sides[layer][_SIDE[part]]

    def keys(self, layer: int, slots: np.ndarray) -> np.ndarray:
        """Stored K at `slots`, [n, kv_heads, head_size] float32."""
        return self._sides[layer][0].index_select(0, torch.from_numpy(slots)).float().numpy()

    def read_all_bits(self, slots: np.ndarray) -> np.ndarray:
        """A copy of the bits at `slots` of every layer, [layers, 2, n, kv_heads, head_size]."""
        return self.bits[:, :, slots]

    def write_bits(self, layer: int, part: Part, slots: np.ndarray, data: np.ndarray) -> None:
        self.bits[layer, _SIDE[part], slots] = data
