"""What `pdd bench pool` measures: a replay adds up, and decisions follow figures."""

from pathlib import Path

import pytest

from benchmarks.pool import crossover, turns


def test_the_replay_of_conversations_adds_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "CONVERSATIONS", 5)
    monkeypatch.setattr(turns, "ENGINE_TOKENS", 1024)
    result = turns.run(tmp_path)
    tiers = result["hit_by_tier"]
    assert sum(tiers.values()) == pytest.approx(result["hit"])
    assert 0 < result["hit"] <= result["ideal_hit"]
    assert tiers["dram"] + tiers["nvme"] > 0
    assert 0 < result["restart"]["hit"] <= result["restart"]["ideal_hit"]
    first, *later = result["transfers"]
    assert first["sent_tokens"] == first["prompt_tokens"]
    assert {row["sent_tokens"] for row in later} == {turns.MORE}


def test_where_a_model_computes_slowly_all_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crossover, "PAIRS", (("smollm2-135m", "cpu", 1),))
    monkeypatch.setattr(crossover, "MEASURED_BYTES", 4 << 20)
    (row,) = crossover.run(tmp_path, tell=lambda text: None)
    for tier in ("dram", "nvme"):
        loads = row[f"{tier}_loads"]
        assert [load["loaded"] for load in loads] == [load["tokens"] for load in loads]
        assert row[f"{tier}_from_tokens"] == crossover.LENGTHS[0]
