"""TriAttention (arXiv 2604.04921): how much queries to come will heed a cached key.

The channels f and f + D/2 of a head are one complex number. Queries of a head gather around a mean
before RoPE turns them, so what the query at position t will say to a key that was cached at p,
already turned, is foreseen as Re(qbar_f e^(i omega_f t) conj(k_f)): a dot product of the cached key
with a query that is expected. Nothing has to be turned back, and the key's position is not needed.

    trig(t) = sum over f of |qbar_f| |k_f| cos(omega_f (t - p) + arg(qbar_f conj(k_f)))
    norm    = sum over f of (E|q_f| - |qbar_f|) |k_f|

A key's score is the mean (or the most) of trig over positions to come, plus norm.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from workers.kv.evict.config import Heads

OFFSETS = 2 ** np.arange(17)  # 1, 2, 4 .. 65536 positions ahead


class Over(StrEnum):
    """How the positions to come are put together."""

    MEAN = "mean"
    MAX = "max"


class ForeignCalibration(ValueError):
    """The file is of another model; one line for people, with both values."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calibration:
    """What a model's queries are like before RoPE, from one pass over plain text.

    `mean`: E[q], [layers, heads, D/2] complex64; `size`: E|q|, the same, float32. `omega`: [D/2],
    radians per position. `model`: what it is of, see `model_key`. `tokens`: how many were read.
    """

    model: dict[str, object]
    omega: np.ndarray
    mean: np.ndarray
    size: np.ndarray
    tokens: int

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(".part.npz")
        about = json.dumps({"model": self.model, "tokens": self.tokens}, sort_keys=True)
        np.savez(written, about=about, omega=self.omega, mean=self.mean, size=self.size)
        written.rename(path)

    @classmethod
    def load(cls, path: Path, model: dict[str, object]) -> "Calibration":
        """Raises ForeignCalibration, and OSError, ValueError or KeyError for what is none."""
        with np.load(path, allow_pickle=False) as file:
            about = json.loads(str(file["about"]))
            found = cls(
                model=about["model"],
                omega=file["omega"],
                mean=file["mean"],
                size=file["size"],
                tokens=about["tokens"],
            )
        for name, here in model.items():
            if found.model.get(name) != here:
                raise ForeignCalibration(
                    f"{path} is of another model: {name} here {here!r}, "
                    f"there {found.model.get(name)!r}"
                )
        return found


def paired(rows: np.ndarray) -> np.ndarray:
    """[..., D] real to [..., D/2] complex."""
    half = rows.shape[-1] // 2
    return rows[..., :half] + 1j * rows[..., half:]


class Scorer:
    """Scores for a sequence whose next token is at position `at`."""

    def __init__(self, calibration: Calibration, at: int, over: Over = Over.MEAN) -> None:
        turns = np.exp(1j * calibration.omega[None, :] * (at - 1 + OFFSETS)[:, None])
        ahead = calibration.mean[:, :, None, :] * turns  # [layers, heads, offsets, D/2]
        if over is Over.MEAN:
            ahead = ahead.mean(axis=2, keepdims=True)
        self._ahead = np.concatenate([ahead.real, ahead.imag], axis=-1).astype(np.float32)
        self._spread = (calibration.size - np.abs(calibration.mean)).astype(np.float32)

    def raw(self, layer: int, keys: np.ndarray) -> np.ndarray:
        """[heads, n]; `keys`: [n, kv_heads, D] float32 as cached."""
        n, kv_heads, size = keys.shape
        heads = len(self._ahead[layer])
        by_head = keys.transpose(1, 0, 2)
        ahead = self._ahead[layer].reshape(kv_heads, -1, size)  # [kv_heads, group x offsets, D]
        trig = (ahead @ by_head.transpose(0, 2, 1)).reshape(heads, -1, n).max(axis=1)
        lengths = np.hypot(by_head[..., : size // 2], by_head[..., size // 2 :])
        spread = self._spread[layer].reshape(kv_heads, -1, size // 2)
        scores: np.ndarray = trig + (spread @ lengths.transpose(0, 2, 1)).reshape(heads, n)
        return scores

    def layer(self, layer: int, keys: np.ndarray) -> np.ndarray:
        """[kv_heads, n]: each query head's scores brought to one scale, the most of each group."""
        scores = self.raw(layer, keys)
        spread = scores.std(axis=1, keepdims=True)
        scores = (scores - scores.mean(axis=1, keepdims=True)) / np.maximum(spread, 1e-6)
        most: np.ndarray = scores.reshape(keys.shape[1], -1, keys.shape[0]).max(axis=1)
        return most

    def shares(self, layer: int, keys: np.ndarray) -> np.ndarray:
        """[kv_heads, n]: the part of its attention that a head is expected to pay each key.

        Not in the paper, which adds up scores: attention goes by their exponentials.
        """
        logits = self.raw(layer, keys) * keys.shape[2] ** -0.5
        paid = np.exp(logits - logits.max(axis=1, keepdims=True))
        paid /= paid.sum(axis=1, keepdims=True)
        shares: np.ndarray = paid.reshape(keys.shape[1], -1, keys.shape[0]).mean(axis=1)
        return shares


def combined(scores: np.ndarray, heads: Heads) -> np.ndarray:
    """What a mode chooses by, of [layers, kv_heads, n]: the same, [kv_heads, n], or [n].

    `scores` are of `Scorer.shares` for a choice by shares, else of `Scorer.layer`.
    For a union the heads' own choices are ranked again by the most that any head gives, which is
    to say that the best by that measure stay: each of them is among its own head's best.
    """
    if heads is Heads.PER_LAYER_HEAD:
        return scores
    by_head: np.ndarray = scores.mean(axis=0)
    if heads is Heads.PER_HEAD:
        return by_head
    whole: np.ndarray = by_head.mean(axis=0) if heads is Heads.SHARES else by_head.max(axis=0)
    return whole
