"""The short form of `pdd bench triattention`, and the figures it is made of, by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.triattention.choosing import CHOICES, Context, freed_ratio
from benchmarks.triattention.reading import go_on, read
from benchmarks.triattention.series import pearson, quartiles
from orchestrator.cli.main import run as pdd
from workers.engines.models import DEFAULT_MODEL, resolve_model
from workers.engines.torch.calibrate import calibrate, calibration_file
from workers.engines.torch.load import LoadedModel, load_model
from workers.kv.evict.triattention import Calibration

CONTEXT = 256


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    torch.set_num_threads(1)
    return load_model(resolve_model(DEFAULT_MODEL))


@pytest.fixture(scope="module")
def calibration(loaded: LoadedModel) -> Calibration:
    """Of a few tokens: enough to try the ways, not to judge by."""
    ids = np.random.default_rng(1).integers(100, 20_000, 512).tolist()
    return calibrate(loaded, [ids], lambda done, total: None)


@pytest.fixture(scope="module")
def seen(loaded: LoadedModel, calibration: Calibration) -> Context:
    ids = np.random.default_rng(2).integers(100, 20_000, CONTEXT + 32).tolist()
    return Context(read(loaded, "text", ids, [CONTEXT]), CONTEXT, calibration)


def test_the_short_form(
    loaded: LoadedModel,
    calibration: Calibration,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    models = resolve_model(DEFAULT_MODEL).parents[2]
    (tmp_path / "models").symlink_to(models)
    monkeypatch.setenv("PDD_CACHE", str(tmp_path))
    calibration.save(calibration_file(loaded))
    assert pdd(["bench", "triattention", "--short", "-o", "json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["pearson"]["q25"] <= result["pearson"]["median"] <= result["pearson"]["q75"] <= 1
    assert result["pearson"]["median"] > 0.3
    rows = {row["policy"]: row for row in result["budgets"]}
    assert rows.keys() == CHOICES.keys()
    assert all(row["kl"] > 0 and 0 < row["top1"] <= 1 for row in rows.values())
    assert rows["triattention"]["kv_ratio"] == pytest.approx(2.0)
    assert rows["triattention/per-layer-head"]["kv_ratio"] < 1.5  # few tokens die in every head
    assert rows["triattention"]["speedup"] > 0


@pytest.mark.parametrize("name", CHOICES)
def test_every_choice_keeps_its_share_and_what_is_protected(seen: Context, name: str) -> None:
    kept = CHOICES[name](seen, 0.75)
    assert kept.shape == (30, 3, 192)
    assert (np.diff(kept) > 0).all()
    assert (kept[..., :4] == np.arange(4)).all()
    assert (kept[..., -128:] == np.arange(128, 256)).all()


def test_keeping_all_changes_nothing(seen: Context) -> None:
    rest = list(seen.reading.ids[CONTEXT:])
    every = np.broadcast_to(np.arange(CONTEXT), (30, 3, CONTEXT)).copy()
    full = go_on(seen.reading, CONTEXT, rest, None)
    assert torch.allclose(full, go_on(seen.reading, CONTEXT, rest, every), atol=1e-4)


def test_memory_is_freed_where_no_head_keeps_a_token() -> None:
    kept = np.array([[[0, 1], [0, 2]], [[0, 1], [0, 3]]])
    assert freed_ratio(kept, 8) == 2.0


def test_a_series_of_the_queries_own_means_correlates(seen: Context, calibration) -> None:
    rest = list(seen.reading.ids[CONTEXT:])
    by_key, by_distance = pearson(seen.reading, CONTEXT, rest, calibration)
    assert len(by_key) == len(by_distance) == 30 * 9
    assert (np.abs(by_key) <= 1 + 1e-6).all()
    assert quartiles(np.arange(5.0)) == {"median": 2.0, "q25": 1.0, "q75": 3.0}
