"""How well the trigonometric series foretells logits: Pearson's correlation, head by head."""

import numpy as np

from benchmarks.triattention.reading import Chosen, Reading, forward
from workers.kv.evict.triattention import Calibration

DISTANCES = 64


def pearson(
    reading: Reading, context: int, ids: list[int], calibration: Calibration
) -> tuple[np.ndarray, np.ndarray]:
    """[layers x heads] twice: over keys, and over distances.

    Over keys: what the query at each position behind the context really says to each key of the
    context, against the series at that position; a mean over the queries. Over distances: logits
    and series are first averaged over all pairs of nearly the same distance, log-spaced.
    """
    chosen = Chosen(reading, context, None)
    positions = np.arange(context, context + len(ids))
    forward(reading.loaded, ids, positions, chosen)
    edges = np.unique(np.geomspace(1, context, DISTANCES + 1).astype(int))
    distance = positions[:, None] - np.arange(context)
    bins = np.digitize(distance, edges)
    by_key, by_distance = [], []
    for layer, queries in enumerate(chosen.queries):
        keys = reading.store.keys(layer, np.arange(context))
        groups = queries.shape[0] // keys.shape[1]
        for head in range(queries.shape[0]):
            rows = keys[:, head // groups]
            true = queries[head].numpy() @ rows.T
            turns = np.exp(1j * calibration.omega * positions[:, None])
            ahead = calibration.mean[layer, head] * turns
            told = np.concatenate([ahead.real, ahead.imag], axis=1).astype(np.float32) @ rows.T
            by_key.append(np.mean(_correlation(true, told)))
            count = np.maximum(np.bincount(bins.ravel()), 1)
            means = [np.bincount(bins.ravel(), x.ravel()) / count for x in (true, told)]
            there = np.bincount(bins.ravel()) > 0
            by_distance.append(_correlation(means[0][there], means[1][there]))
    return np.array(by_key), np.array(by_distance)


def quartiles(values: np.ndarray) -> dict[str, float]:
    q25, median, q75 = np.percentile(values, [25, 50, 75])
    return {"median": float(median), "q25": float(q25), "q75": float(q75)}


def _correlation(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Along the last axis."""
    a = a - a.mean(-1, keepdims=True)
    b = b - b.mean(-1, keepdims=True)
    norm = np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
    return (a * b).sum(-1) / np.maximum(norm, 1e-12)
