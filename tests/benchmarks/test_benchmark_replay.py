"""The benchmark of the replay at scale, on little."""

from pathlib import Path

from benchmarks import replay as replay_bench
from compiled.finder import is_compiled

LINE = '{{"timestamp": {}, "input_length": 1500, "output_length": 20, "hash_ids": [1, 2, {}]}}\n'


def test_every_part_is_measured(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(LINE.format(300 * n, 10 + n) for n in range(40)), encoding="utf-8")
    result = replay_bench.run(requests=60, trace=trace)
    mooncake, without = result["mooncake"], result["mooncake_without_caches"]
    assert mooncake["requests"] == without["requests"] == 40
    assert set(mooncake["routes"]) == {"local", "direct", "relay"}
    assert mooncake["mean_end_to_end_s"] < without["mean_end_to_end_s"]
    assert mooncake["s_per_1000"] > 0
    assert result["million"] == result["scaling"][-1]
    assert result["million"]["requests"] == 60
    assert result["million"]["peak_MiB"] >= result["million"]["before_MiB"] > 10
    assert result["loop_ns"] > 0
    assert result["compiled"] is is_compiled()


def test_a_trace_that_is_not_there_is_left_out(tmp_path: Path) -> None:
    told: list[str] = []
    result = replay_bench.run(requests=10, trace=tmp_path / "none", tell=told.append)
    assert result["mooncake"] is None
    assert "none is not there" in told[0]
