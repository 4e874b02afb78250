"""What `pdd bench pool` measures: a replay adds up, and decisions follow figures."""

from pathlib import Path

import pytest

from benchmarks.pool import crossover, modelled, turns
from orchestrator.catalogue import load_catalogue, roofline
from workers.kv.prefix import CANONICAL_TOKENS


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


@pytest.mark.parametrize(
    ("model", "chip", "parallel", "memory", "files"),
    [
        ("llama-3.1-70b", "h20", 2, True, True),
        ("qwen3-8b", "l40s", 1, True, False),
        ("qwen3-8b", "h100", 1, False, False),
    ],
)
@pytest.mark.parametrize("tokens", [512, 4096])
def test_the_simulated_engine_switches_where_loading_stops_to_pay(
    model: str, chip: str, parallel: int, memory: bool, files: bool, tokens: int
) -> None:
    """And is never slower than computing, but for the question."""
    catalogue = load_catalogue()
    facts = catalogue.models[model]
    costs = roofline(catalogue.chips[chip], facts, parallel)
    nbytes = round(facts.kv_bytes_per_token.value) * CANONICAL_TOKENS

    def ask(rate: float | None) -> modelled.Asked:
        return modelled.ask(costs, tokens, block_bytes=nbytes, bytes_per_s=rate, answer_s=0.001)

    alone = ask(None)
    for rate, loads in ((2e9, memory), (5e8, files)):
        asked = ask(rate)
        assert (asked.loaded > 0) is loads
        assert asked.seconds < alone.seconds + 0.002
        assert not loads or asked.seconds < 0.9 * alone.seconds or tokens == 512
