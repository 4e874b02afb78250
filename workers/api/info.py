"""What a worker is: its model's fingerprint, its KV layout and its limits."""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum


class Part(StrEnum):
    """Which tensor of a layer's cache a slice carries."""

    KEY = "k"
    VALUE = "v"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What must be the same at both ends before KV may move."""

    tensors: str
    tokenizer: str
    kv_dtype: str
    layers: int
    kv_heads: int
    head_size: int
    rope: str
    windows: tuple[int | None, ...]  # sliding window per layer, in tokens; None: full attention

    @property
    def canonical(self) -> str:
        """JSON with sorted keys and no spaces: the same text wherever the model is the same."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """An engine's model, memory and limits."""

    engine: str
    model: str
    fingerprint: Fingerprint
    block_size: int
    kv_total_tokens: int
    max_context: int
    vocab_size: int
    stop_ids: tuple[int, ...]

    @property
    def layout(self) -> str:
        """How the cache lies in this engine's memory; peers are told, and need not have it."""
        return f"{self.engine}, blocks of {self.block_size} tokens"

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V that one token occupies on the wire before coding."""
        f = self.fingerprint
        return 2 * f.layers * f.kv_heads * f.head_size * BYTES_PER_ELEMENT[f.kv_dtype]


BYTES_PER_ELEMENT = {"bfloat16": 2, "float16": 2, "float32": 4}
