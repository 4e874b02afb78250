"""A text read once: its KV, what its tokens were paid, and what the model says of what follows."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from workers.api.info import Part
from workers.engines.torch.attention import Attender, LayerCall, PagedStep, Rows, running
from workers.engines.torch.load import LoadedModel
from workers.engines.torch.store import KVStore
from workers.kv.evict.attention import Attention

CHUNK = 128
WINDOW = 32  # last queries that SnapKV looks at


@dataclass(slots=True, eq=False)
class Paid:
    """What the tokens of a context were paid by its own queries, means over layers and heads.

    `all`: of all queries; `last`: [context] float32, by the last WINDOW of them.
    """

    all: Attention
    last: np.ndarray


@dataclass(slots=True, eq=False)
class Reading:
    """A text's tokens and the KV of the first `tokens` of them, in order in `store`."""

    loaded: LoadedModel
    name: str
    ids: Sequence[int]
    store: KVStore
    paid: dict[int, Paid] = field(default_factory=dict)  # by context


def read(loaded: LoadedModel, name: str, ids: Sequence[int], contexts: Sequence[int]) -> Reading:
    """Prefill up to the longest context in chunks, and note what was paid up to each."""
    longest = max(contexts)
    layers = len(loaded.windows)
    store = KVStore(layers, longest, loaded.kv_heads, loaded.head_size, "bfloat16")
    reading = Reading(loaded, name, ids, store)
    paid = Attention()
    for start in range(0, longest, CHUNK):
        stop = min(start + CHUNK, longest)
        at = np.arange(stop)
        rows = Rows(0, start, stop, start, at, at, torch.zeros((stop - start, stop)))
        forward(loaded, ids[start:stop], at[start:], PagedStep(store, [rows], lambda layer: None))
        assert rows.paid is not None, "it was asked for"
        shares = rows.paid.numpy() / layers
        paid.add(at, shares)
        if stop in contexts:
            reading.paid[stop] = Paid(
                Attention(paid.mass.copy(), paid.hits.copy(), paid.queries),
                shares[-WINDOW:].sum(axis=0),
            )
    return reading


class Chosen:
    """Attends over chosen keys of a reading and all of the tokens behind its context.

    `kept`: [layers, kv_heads, n] tokens; None: all of them.
    """

    def __init__(self, reading: Reading, context: int, kept: np.ndarray | None) -> None:
        self._store = reading.store
        self._context = context
        self._kept = None if kept is None else torch.from_numpy(kept)
        self.queries: list[torch.Tensor] = []

    def attend(self, call: LayerCall) -> torch.Tensor:
        self.queries.append(call.q)
        k, v = (self._old(call.layer, part) for part in Part)
        new_k, new_v = call.k.bfloat16().float(), call.v.bfloat16().float()
        k, v = torch.cat([k, new_k], dim=1), torch.cat([v, new_v], dim=1)
        tokens, old = call.q.shape[1], k.shape[1] - call.k.shape[1]
        mask = torch.ones((tokens, old + tokens), dtype=torch.bool).tril(old)
        out = scaled_dot_product_attention(
            call.q[None], k[None], v[None], attn_mask=mask, scale=call.scale, enable_gqa=True
        )
        return out[0].transpose(0, 1)

    def _old(self, layer: int, part: Part) -> torch.Tensor:
        """[kv_heads, n, head_size] float32."""
        values = self._store.values(layer, part)[: self._context]
        by_head = values.transpose(0, 1)
        if self._kept is not None:
            kept = self._kept[layer][:, :, None].expand(-1, -1, by_head.shape[2])
            by_head = by_head.gather(1, kept)
        return by_head.float()


@torch.inference_mode()
def forward(
    loaded: LoadedModel, ids: Sequence[int], positions: np.ndarray, attender: Attender
) -> torch.Tensor:
    """Log-probabilities after each of `ids`, [tokens, vocab]."""
    with running(attender):
        output = loaded.model(
            input_ids=torch.tensor([list(ids)]),
            position_ids=torch.from_numpy(positions)[None],
            use_cache=False,
        )
    return output.logits[0].log_softmax(-1)


def go_on(
    reading: Reading, context: int, ids: Sequence[int], kept: np.ndarray | None
) -> torch.Tensor:
    """Log-probabilities after each of `ids`, which come behind a context of which so much stays."""
    positions = np.arange(context, context + len(ids))
    return forward(reading.loaded, ids, positions, Chosen(reading, context, kept))
