"""A model's tensors in one hash, kept: to hash them takes longer than to load them."""

import json
from collections.abc import Callable, Iterable
from hashlib import blake2b
from pathlib import Path

import torch

from workers.engines.models import cache_dir, weight_files

HEX_DIGITS = 32

Named = Iterable[tuple[str, torch.Tensor]]


def tensors_digest(path: Path, made_with: Iterable[object], tensors: Callable[[], Named]) -> str:
    """Names, dtypes, shapes and bytes of `tensors`, in their order.

    Kept in the user's cache under the weight files' paths, sizes and times, and `made_with`, JSON
    values: what else the tensors depend on.
    """
    files = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in weight_files(path)]
    key = json.dumps([str(path.resolve()), files, *made_with])
    note = cache_dir() / "tensors" / blake2b(key.encode(), digest_size=16).hexdigest()
    if note.is_file() and len(known := note.read_text()) == HEX_DIGITS:
        return known
    digest = blake2b(digest_size=HEX_DIGITS // 2)
    for name, tensor in tensors():
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(digest.hexdigest())
    except OSError:  # a cache that cannot be written only costs time
        pass
    return digest.hexdigest()
