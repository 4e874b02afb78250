"""Attention over the paged pool, as a function that transformers' models call.

The sequences of a step are flattened into one row of tokens. `paged_attention` hands each layer's
Q, K and V to the step that is running in this thread, which stores K and V and attends for every
sequence over its own slots. Decode rows of similar length share one call.

K and V are always attended over as read back from the pool, in its rounded dtype, so that it makes
no difference in which chunks, or in which process, they were computed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from workers.engines.torch.store import KVStore

NAME = "pdd_paged"


class UnsupportedAttention(Exception):
    """The model asks its attention for something this one does not do."""


@dataclass(frozen=True, slots=True)
class LayerCall:
    """What one layer asks for. q: [heads, tokens, head_size]; k, v: [kv_heads, tokens, ...]."""

    layer: int
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scale: float
    window: int | None
    softcap: float | None


class Attender(Protocol):
    """Whoever the running model's layers call: a step, or the probe at load time."""

    def attend(self, call: LayerCall) -> torch.Tensor:
        """[tokens, heads, head_size]."""


_running: ContextVar[Attender] = ContextVar("pdd_running_step")


@contextmanager
def running(attender: Attender) -> Iterator[None]:
    """Send the attention calls of models run in this context to `attender`."""
    token = _running.set(attender)
    try:
        yield
    finally:
        _running.reset(token)


def register() -> None:
    """Make `NAME` known to transformers; repeating it is harmless."""
    AttentionInterface.register(NAME, paged_attention)
    AttentionMaskInterface.register(NAME, _no_mask)


def _no_mask(*args: object, **kwargs: object) -> None:
    """The step knows what each token may see."""


# What some models pass along that would change the result.
_CHANGING = ("position_bias", "s_aux", "head_mask")


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention signature; query, key, value: [1, heads, tokens, head_size]."""
    for name in _CHANGING:
        if kwargs.get(name) is not None:
            raise UnsupportedAttention(f"its attention needs {name}")
    if is_causal is False:
        raise UnsupportedAttention("its attention is not causal")
    call = LayerCall(
        layer=int(module.layer_idx),
        q=query[0],
        k=key[0],
        v=value[0],
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window,
        softcap=softcap,
    )
    return _running.get().attend(call).unsqueeze(0), None


@dataclass(frozen=True, slots=True)
class Rows:
    """One sequence's part of a step: tokens [start, stop) at flat rows [first, ...).

    `positions`: its tokens of [0, stop) that are kept, ascending; the new ones always are. `slots`:
    where they are in the pool; both int64. Tokens below `write_from` are in the pool already and
    are not written again. `paid`: [tokens, keys] float32, to which every layer adds the attention
    that each token pays, a mean over heads; None: nobody asks.
    """

    first: int
    start: int
    stop: int
    write_from: int
    positions: np.ndarray
    slots: np.ndarray
    paid: torch.Tensor | None = None

    @property
    def count(self) -> int:
        return self.stop - self.start

    @property
    def keys(self) -> int:
        return len(self.slots)

    @property
    def new(self) -> int:
        """How many of its last tokens are to be written."""
        return self.stop - max(self.start, self.write_from)

    def first_key(self, window: int | None) -> int:
        """The first key that its first query sees: of itself and window - 1 tokens before it."""
        if window is None:
            return 0
        return int(np.searchsorted(self.positions, self.start - window + 1))


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows that attend in one call: several decode rows, or one chunk.

    `rows`: flat row indices, a slice where they are consecutive. `slots`: [batch x keys].
    `mask`: added to the scores, broadcast to [batch, 1, queries, keys]; None: nothing to hide.
    `payers`: whose attention is asked for, as (number in the batch, first key, its rows).
    """

    rows: torch.Tensor | slice
    batch: int
    slots: torch.Tensor
    mask: torch.Tensor | None
    payers: tuple[tuple[int, int, Rows], ...]


class PagedStep:
    """One step's attention. `after_write(layer)` is called once a layer's K and V are stored."""

    def __init__(
        self, store: KVStore, rows: Sequence[Rows], after_write: Callable[[int], None]
    ) -> None:
        self._store = store
        self._rows = rows
        self._after_write = after_write
        self._tokens = sum(r.count for r in rows)
        self._groups: dict[int | None, list[_Group]] = {}
        slots = [r.slots[r.keys - r.new :] for r in rows]
        self._write_slots = torch.from_numpy(np.concatenate(slots))
        self._write_rows = None
        if len(self._write_slots) < self._tokens:
            flat = [np.arange(r.first + r.count - r.new, r.first + r.count) for r in rows]
            self._write_rows = torch.from_numpy(np.concatenate(flat))

    def attend(self, call: LayerCall) -> torch.Tensor:
        k, v = call.k.transpose(0, 1), call.v.transpose(0, 1)
        if self._write_rows is not None:
            k, v = k.index_select(0, self._write_rows), v.index_select(0, self._write_rows)
        self._store.write(call.layer, self._write_slots, k, v)
        self._after_write(call.layer)
        if call.window not in self._groups:
            self._groups[call.window] = _grouped(self._rows, call.window)
        groups = self._groups[call.window]
        if len(groups) == 1 and isinstance(groups[0].rows, slice):
            return self._attend_group(call, groups[0])
        heads, tokens, size = call.q.shape
        out = call.q.new_empty((tokens, heads, size))
        for group in groups:
            out[group.rows] = self._attend_group(call, group)
        return out

    def _attend_group(self, call: LayerCall, group: _Group) -> torch.Tensor:
        """[rows of the group, heads, head_size]."""
        heads, _, size = call.q.shape
        kv_heads = call.k.shape[0]
        k, v = self._store.gather(call.layer, group.slots)
        shape = (group.batch, -1, kv_heads, size)
        k, v = k.view(shape).transpose(1, 2), v.view(shape).transpose(1, 2)
        q = call.q[:, group.rows]
        if group.batch == 1 and isinstance(group.rows, slice) and q.shape[1] > 1:
            out = _attention(q.unsqueeze(0), k, v, group, call)
            return out[0].transpose(0, 1)
        # Decode: the query heads that share a KV head become its query tokens.
        q = q.view(kv_heads, heads // kv_heads, group.batch, size).permute(2, 0, 1, 3)
        return _attention(q, k, v, group, call).reshape(group.batch, heads, size)


def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: _Group, call: LayerCall
) -> torch.Tensor:
    if call.softcap is None and not group.payers:
        return scaled_dot_product_attention(
            q, k, v, attn_mask=group.mask, scale=call.scale, enable_gqa=q.shape[1] != k.shape[1]
        )
    if q.shape[1] != k.shape[1]:
        repeats = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    scores = (q @ k.transpose(2, 3)) * call.scale
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    if group.mask is not None:
        scores = scores + group.mask
    weights = scores.softmax(-1)
    for number, low, rows in group.payers:
        assert rows.paid is not None, "a payer's attention is asked for"
        theirs = weights[number].mean(0)  # of a chunk [tokens, keys], else [heads, keys]
        if rows.count == 1:
            theirs = theirs.mean(0, keepdim=True)
        rows.paid[:, low:] += theirs[:, : rows.keys - low]
    return weights @ v


def _grouped(rows: Sequence[Rows], window: int | None) -> list[_Group]:
    groups = [_chunk(r, window) for r in rows if r.count > 1]
    decode = sorted(
        ((r.keys - r.first_key(window), r) for r in rows if r.count == 1),
        key=lambda pair: (-pair[0], pair[1].first),
    )
    while decode:
        # Padding at most doubles a row's keys.
        longest = decode[0][0]
        fits = [pair for pair in decode if 2 * pair[0] >= longest]
        groups.append(_decode([r for _, r in fits], longest, window))
        decode = decode[len(fits) :]
    return groups


def _chunk(rows: Rows, window: int | None) -> _Group:
    low = rows.first_key(window)
    queries = torch.arange(rows.start, rows.stop).unsqueeze(1)
    keys = torch.from_numpy(rows.positions[low:]).unsqueeze(0)
    hidden = keys > queries
    if window is not None:
        hidden |= keys <= queries - window
    mask = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
    return _Group(
        rows=slice(rows.first, rows.first + rows.count),
        batch=1,
        slots=torch.from_numpy(rows.slots[low:].copy()),
        mask=mask[None, None],
        payers=() if rows.paid is None else ((0, low, rows),),
    )


def _decode(rows: Sequence[Rows], longest: int, window: int | None) -> _Group:
    slots = np.empty((len(rows), longest), dtype=np.int64)
    hidden = torch.zeros((len(rows), 1, 1, longest))
    for i, r in enumerate(rows):
        low = r.first_key(window)
        count = r.keys - low
        slots[i, :count] = r.slots[low:]
        # Padding repeats a slot of the sequence's own: whatever another one holds stays there.
        slots[i, count:] = r.slots[low]
        hidden[i, :, :, count:] = float("-inf")
    firsts = [r.first for r in rows]
    consecutive = firsts == list(range(firsts[0], firsts[0] + len(firsts)))
    return _Group(
        rows=slice(firsts[0], firsts[0] + len(firsts)) if consecutive else torch.tensor(firsts),
        batch=len(rows),
        slots=torch.from_numpy(slots.ravel()),
        mask=None if all(r.keys - r.first_key(window) == longest for r in rows) else hidden,
        payers=tuple((i, r.first_key(window), r) for i, r in enumerate(rows) if r.paid is not None),
    )
