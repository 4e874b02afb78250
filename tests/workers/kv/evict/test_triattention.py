"""TriAttention's scores against the formula as it is written, on keys that RoPE has turned."""

from pathlib import Path

import numpy as np
import pytest

from workers.kv.evict.config import Heads
from workers.kv.evict.triattention import (
    OFFSETS,
    Calibration,
    ForeignCalibration,
    Over,
    Scorer,
    combined,
    paired,
)

LAYERS, HEADS, KV_HEADS, SIZE, KEYS = 2, 4, 2, 16, 40
OMEGA = 10_000.0 ** -(np.arange(SIZE // 2) / (SIZE // 2))
rng = np.random.default_rng(3)


def complex_normal(*shape: int) -> np.ndarray:
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


def calibration(model: dict[str, object] | None = None) -> Calibration:
    mean = complex_normal(LAYERS, HEADS, SIZE // 2).astype(np.complex64)
    size = (np.abs(mean) + rng.random(mean.shape)).astype(np.float32)
    return Calibration(model=model or {"tensors": "a"}, omega=OMEGA, mean=mean, size=size, tokens=9)


def turned(keys: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """RoPE of complex keys [n, kv_heads, D/2], as real rows."""
    spun = keys * np.exp(1j * OMEGA * positions[:, None, None])
    return np.concatenate([spun.real, spun.imag], axis=-1).astype(np.float32)


def by_the_book(
    c: Calibration, layer: int, keys: np.ndarray, positions: np.ndarray, at: int
) -> tuple[np.ndarray, np.ndarray]:
    """trig [heads, offsets, n] and norm [heads, n] from keys before RoPE."""
    trig = np.zeros((HEADS, len(OFFSETS), KEYS))
    norm = np.zeros((HEADS, KEYS))
    for head in range(HEADS):
        q, a = c.mean[layer, head], c.size[layer, head]
        k = keys[:, head // (HEADS // KV_HEADS)]
        for i, offset in enumerate(OFFSETS):
            ahead = at - 1 + offset - positions
            phase = OMEGA * ahead[:, None] + np.angle(q * np.conj(k))
            trig[head, i] = (np.abs(q) * np.abs(k) * np.cos(phase)).sum(axis=1)
        norm[head] = ((a - np.abs(q)) * np.abs(k)).sum(axis=1)
    return trig, norm


@pytest.mark.parametrize("over", Over)
def test_scores_from_turned_keys_are_those_of_the_formula(over: Over) -> None:
    c, at = calibration(), 100
    positions = np.sort(rng.choice(at, KEYS, replace=False))
    keys = complex_normal(KEYS, KV_HEADS, SIZE // 2)
    trig, norm = by_the_book(c, 1, keys, positions, at)
    expected = (trig.mean(axis=1) if over is Over.MEAN else trig.max(axis=1)) + norm
    found = Scorer(c, at, over).raw(1, turned(keys, positions))
    assert found == pytest.approx(expected, abs=1e-3)


def test_a_query_at_the_mean_pays_what_was_foreseen() -> None:
    """Where queries do not spread, the trig term is the logit of the query to come."""
    c = calibration()
    key = complex_normal(1, KV_HEADS, SIZE // 2)
    row = turned(key, np.array([7]))
    at = 50
    q = c.mean[0, 0] * np.exp(1j * OMEGA * at)
    logit = float((q.real @ paired(row)[0, 0].real) + (q.imag @ paired(row)[0, 0].imag))
    trig, _ = by_the_book(c, 0, np.repeat(key, KEYS, 0), np.full(KEYS, 7), at)
    assert trig[0, 0, 0] == pytest.approx(logit, abs=1e-4)  # one position ahead of at - 1


def test_query_heads_count_alike_whatever_their_scale() -> None:
    c = calibration()
    loud = Calibration(model=c.model, omega=OMEGA, mean=c.mean.copy(), size=c.size.copy(), tokens=9)
    loud.mean[0, 0] *= 100
    loud.size[0, 0] *= 100
    keys = turned(complex_normal(KEYS, KV_HEADS, SIZE // 2), np.arange(KEYS))
    ours, theirs = (Scorer(each, KEYS).layer(0, keys) for each in (c, loud))
    assert ours.shape == (KV_HEADS, KEYS)
    assert ours == pytest.approx(theirs, abs=1e-3)


def test_the_three_modes_of_heads() -> None:
    scores = rng.normal(size=(LAYERS, KV_HEADS, KEYS))
    assert combined(scores, Heads.PER_LAYER_HEAD).shape == scores.shape
    by_head = combined(scores, Heads.PER_HEAD)
    assert by_head == pytest.approx(scores.mean(axis=0))
    union = combined(scores, Heads.UNION)
    assert union == pytest.approx(by_head.max(axis=0))
    best = set(np.argsort(-union)[:10].tolist())
    picked = {t for head in by_head for t in np.argsort(-head)[:10].tolist()}
    assert best <= picked  # the union of the heads' own choices, ranked again


def test_shares_are_what_attention_would_be_if_the_series_were_right() -> None:
    c = calibration()
    keys = turned(complex_normal(KEYS, KV_HEADS, SIZE // 2), np.arange(KEYS))
    scorer = Scorer(c, KEYS)
    shares = scorer.shares(1, keys)
    logits = scorer.raw(1, keys) / SIZE**0.5
    paid = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert shares == pytest.approx(paid.reshape(KV_HEADS, -1, KEYS).mean(axis=1), abs=1e-5)
    assert shares.sum(axis=1) == pytest.approx(np.ones(KV_HEADS), abs=1e-5)
    both = np.stack([scorer.shares(n, keys) for n in range(LAYERS)])
    assert combined(both, Heads.SHARES) == pytest.approx(both.mean(axis=(0, 1)))


def test_a_calibration_is_found_again_and_refused_for_another_model(tmp_path: Path) -> None:
    c, file = calibration({"tensors": "a", "rope": "x"}), tmp_path / "c.npz"
    c.save(file)
    again = Calibration.load(file, {"tensors": "a", "rope": "x"})
    assert np.array_equal(again.mean, c.mean)
    assert again.tokens == 9
    with pytest.raises(ForeignCalibration, match="rope here 'y', there 'x'"):
        Calibration.load(file, {"tensors": "a", "rope": "y"})
