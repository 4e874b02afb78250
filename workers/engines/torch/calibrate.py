"""What a model's queries are like before RoPE turns them: one pass over plain text.

TriAttention scores by it. Queries are heard where attention gets them, so after a q-norm where the
model has one, and turned back by their positions. Kept in the user's cache, one file for a model.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from workers.engines.models import ModelError, ModelUnsupported, cache_dir
from workers.engines.torch.attention import LayerCall, PagedStep, Rows, running
from workers.engines.torch.load import LoadedModel
from workers.engines.torch.store import KVStore
from workers.kv.evict.triattention import Calibration, ForeignCalibration, paired

_CHUNK = 256
_FAR = 37  # a position at which a turned query must be what RoPE makes of it at 0
_NEAR_ENOUGH = 0.02  # of a query's length

Progress = Callable[[int, int], None]  # tokens read, tokens in all


class _Listener:
    """Hears every layer's queries, [heads, tokens, D]; attends as `inner` does, if at all."""

    def __init__(self, inner: PagedStep | None) -> None:
        self._inner = inner
        self.queries: list[np.ndarray] = []

    def attend(self, call: LayerCall) -> torch.Tensor:
        self.queries.append(call.q.numpy().copy())
        if self._inner is not None:
            return self._inner.attend(call)
        heads, tokens, size = call.q.shape
        return call.v.new_zeros((tokens, heads, size))


def calibration_file(loaded: LoadedModel) -> Path:
    """Where the user's own of this model is."""
    return cache_dir() / "calibrations" / f"{loaded.tensors}.npz"


def calibrate(
    loaded: LoadedModel, texts: Sequence[Sequence[int]], progress: Progress
) -> Calibration:
    """Read `texts`, each of at most the model's context. Raises ModelUnsupported."""
    omega = _omega(loaded)
    total, done = sum(map(len, texts)), 0
    layers = len(loaded.windows)
    store = KVStore(layers, max(map(len, texts)), loaded.kv_heads, loaded.head_size, "bfloat16")
    mean: np.ndarray | float = 0.0
    size: np.ndarray | float = 0.0
    for ids in texts:
        for start in range(0, len(ids), _CHUNK):
            stop = min(start + _CHUNK, len(ids))
            at = np.arange(stop)
            rows = Rows(0, start, stop, start, at, at)
            listener = _Listener(PagedStep(store, [rows], lambda layer: None))
            _run(loaded, ids[start:stop], at[start:], listener)
            turned = paired(np.stack(listener.queries))  # [layers, heads, tokens, D/2]
            before = turned * np.exp(-1j * omega * at[start:, None])
            mean = mean + before.sum(axis=2)
            size = size + np.abs(before).sum(axis=2)
            done += stop - start
            progress(done, total)
    return Calibration(
        model=_model_key(loaded),
        omega=omega,
        mean=(mean / total).astype(np.complex64),
        size=(size / total).astype(np.float32),
        tokens=total,
    )


def find_calibration(loaded: LoadedModel, file: str | None) -> Calibration:
    """What `file` holds, or the user's own of this model. Raises ModelError with the way out."""
    path = calibration_file(loaded) if file is None else Path(file).expanduser()
    make = f"make one with: pdd calibrate {loaded.name}"
    try:
        return Calibration.load(path, _model_key(loaded))
    except ForeignCalibration as error:
        raise ModelError(f"{error}; {make}") from error
    except FileNotFoundError as error:
        raise ModelError(f"there is no calibration of {loaded.name} at {path}; {make}") from error
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{path} is no calibration: {error}; {make}") from error


def _model_key(loaded: LoadedModel) -> dict[str, object]:
    return {
        "tensors": loaded.tensors,
        "layers": len(loaded.windows),
        "kv_heads": loaded.kv_heads,
        "head_size": loaded.head_size,
        "rope": loaded.rope,
    }


def _omega(loaded: LoadedModel) -> np.ndarray:
    """Radians per position of each pair of channels, [D/2]; tried on the model itself."""
    found = {
        tuple(module.inv_freq.tolist())
        for module in loaded.model.modules()
        if isinstance(getattr(module, "inv_freq", None), torch.Tensor)
    }

    def refuse(why: str) -> ModelUnsupported:
        return ModelUnsupported(f"model {loaded.name!r} cannot be calibrated: {why}")

    if len(found) != 1:
        raise refuse(f"it has {len(found)} kinds of RoPE, TriAttention is for one")
    omega = np.array(found.pop())
    if 2 * len(omega) != loaded.head_size:
        raise refuse(f"RoPE turns {2 * len(omega)} of a head's {loaded.head_size} channels")
    near, far = _Listener(None), _Listener(None)
    _run(loaded, [1], np.array([0]), near)
    _run(loaded, [1], np.array([_FAR]), far)
    for layer, (before, after) in enumerate(zip(near.queries, far.queries, strict=True)):
        expected = paired(before) * np.exp(1j * omega * _FAR)
        if np.abs(paired(after) - expected).max() > _NEAR_ENOUGH * np.abs(expected).max():
            raise refuse(f"layer {layer} does not turn the channels f and f + D/2 together")
    return omega


@torch.inference_mode()
def _run(
    loaded: LoadedModel, ids: Sequence[int], positions: np.ndarray, listener: _Listener
) -> None:
    with running(listener):
        loaded.model(
            input_ids=torch.tensor([list(ids)]),
            position_ids=torch.from_numpy(positions)[None],
            use_cache=False,
            logits_to_keep=1,
        )
