"""The short form of `pdd bench vtoken`, and what its simulated worker must get right."""

import json

import pytest

from benchmarks.vtoken.serving import LENGTHS, Job, jobs, play
from orchestrator.cli.main import run as pdd
from workers.kv.evict.config import Eviction, Reclaim

HALF = Eviction(policy="random", budget=0.5, slack=16, recent=16, first=4, low=1.0, waste=0.1)


def test_the_short_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert pdd(["bench", "vtoken", "--short", "-o", "json"]) == 0
    result = json.loads(capsys.readouterr().out)
    (cell,), (control,) = result["cells"], result["control"]
    assert cell["policy"] == "random"
    assert 0.45 < cell["blocks_saved"] <= 0.5
    assert cell["concurrency_gain"] > 1.1
    assert cell["throughput_gain"] > 1.0
    assert control["policy"] == "sink-recent"
    assert abs(control["blocks_saved"]) < 0.02
    for row in result["random"]:
        assert row["measured"] == pytest.approx(row["formula"], abs=0.01)
    assert result["table_overhead"] < 0.01
    assert max(result["lines"].values()) < 50


def test_jobs_keep_to_their_lengths_and_their_rate() -> None:
    work = jobs(LENGTHS["longbench"], 400, 2.0, seed=1)
    assert work[-1].at == pytest.approx(200, rel=0.2)
    assert max(job.prompt for job in work) <= 7000
    assert 2400 < sorted(job.prompt for job in work)[200] < 3600


def test_one_request_alone_takes_its_steps() -> None:
    played = play([Job(0.0, 100, 10)] * 2, None, kv_tokens=112, block_size=16)
    assert played.concurrency == pytest.approx(1.0)  # there is room for one
    assert played.ended_at == pytest.approx(2 * 10 * 0.02, rel=0.1)
    assert played.evicted == 0


def test_the_same_tokens_die_however_they_are_reclaimed() -> None:
    work = jobs(LENGTHS["sharegpt"], 20, None, seed=2)
    packed, naive = (
        play(
            work,
            Eviction(policy="random", budget=0.5, slack=16, recent=16, low=1.0, reclaim=reclaim),
            kv_tokens=80_000,
            block_size=16,
        )
        for reclaim in (Reclaim.REPACK, Reclaim.NAIVE)
    )
    assert packed.evicted == naive.evicted > 0
    assert packed.blocks_per_request < naive.blocks_per_request
