"""vLLM's cache tensors <-> canonical, token-major KV. Pure torch: no vLLM.

A layer's cache is seen by vLLM as [blocks, kv_heads, block_size, 2 x head_size], whatever its
strides. What lies in the last dimension differs:

* `content`: of each token K, then V (every attention of accelerators that keeps plain KV).
* `cpu`: the two last dimensions of a block and head are one piece of memory: all of K as
  [head_size, block_size], then all of V as [block_size, head_size].
* `pair`: or it is two tensors, K and V, each [blocks, block_size, kv_heads, head_size], as
  vLLM's plugin for Ascend has it.
"""

from collections.abc import Callable, Sequence

import torch

Cache = torch.Tensor | Sequence[torch.Tensor]
# (cache) -> K and V as [blocks, block_size, kv_heads, head_size] views of it
Views = Callable[..., tuple[torch.Tensor, torch.Tensor]]


class UnknownLayout(ValueError):
    """A cache that lies in no way that is known here; one line."""


def pair_views(cache: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    key, value = cache
    return key, value


def views_of(name: str, cache: Cache, isa: str | None) -> Views:
    """How to see a layer's cache. `isa`: for what the CPU's attention was built; None: no CPU.

    Raises UnknownLayout.
    """
    if isa is not None:
        if isa != "vec":
            raise UnknownLayout(
                f"{name}: the CPU's attention for {isa!r} keeps K in an order of its own; only "
                "'vec' is known (--dtype float32)"
            )
        return cpu_views
    if isinstance(cache, torch.Tensor) and cache.dim() == 4:
        return content_views
    shapes = [cache.shape] if isinstance(cache, torch.Tensor) else [part.shape for part in cache]
    if len(shapes) == 2 and shapes[0] == shapes[1] and len(shapes[0]) == 4:
        return pair_views
    told = ", ".join(str(list(shape)) for shape in shapes)
    raise UnknownLayout(f"{name}: a cache of shape {told} is not known")


def content_views(cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    head = cache.shape[-1] // 2
    tokens = cache.transpose(1, 2)
    return tokens[..., :head], tokens[..., head:]


def cpu_views(cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    blocks, heads, size, both = cache.shape
    head = both // 2
    flat = cache.view(blocks, heads, 2 * size * head)
    key = flat[:, :, : size * head].unflatten(2, (head, size)).permute(0, 3, 1, 2)
    value = flat[:, :, size * head :].unflatten(2, (size, head)).permute(0, 2, 1, 3)
    return key, value


VIEWS: dict[str, Views] = {"content": content_views, "cpu": cpu_views, "pair": pair_views}


def gather(view: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """A copy of the tokens at `slots`, [tokens, kv_heads, head_size]."""
    size = view.shape[1]
    return view[slots // size, slots % size]


def scatter(view: torch.Tensor, slots: torch.Tensor, data: torch.Tensor) -> None:
    """Write the tokens `data`, [tokens, kv_heads, head_size], to `slots`."""
    size = view.shape[1]
    view[slots // size, slots % size] = data
